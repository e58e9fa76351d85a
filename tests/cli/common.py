"""Runs the program under test: its path is the first argument of every test script."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "ringfold"


def run(*arguments, timeout=300):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL)


class CliTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ringfold_cli_")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def ok(self, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, f"{arguments}: {result.stdout}{result.stderr}")
        return result.stdout

    def ok_json(self, *arguments):
        lines = self.ok(*arguments).strip().split("\n")
        self.assertEqual(len(lines), 1, "one JSON line")
        return json.loads(lines[0])

    def refused(self, *arguments, says=()):
        """Exit code 2, and one line on stderr that has every text of `says`."""
        result = run(*arguments)
        self.assertEqual(result.returncode, 2, f"{arguments}: {result.stdout}{result.stderr}")
        lines = result.stderr.strip().split("\n")
        self.assertEqual(len(lines), 1, f"{arguments}: one line, found {result.stderr!r}")
        self.assertTrue(lines[0].startswith("ringfold: "), lines[0])
        for text in says:
            self.assertIn(text, lines[0], f"{arguments}")
        return lines[0]


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
