"""tools/evidence.py on made-up trees."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import common
import evidence


class EvidenceTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="ringfold_tree_")
        self.addCleanup(shutil.rmtree, self.root)
        self.put("src/a.cc", "int a;\n")
        self.put("include/ringfold/a.h", "#pragma once\n")
        self.put("tests/unit/a_test.cc", "int test;\n")

    def put(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def hash(self):
        return evidence.tree_hash(evidence.hash_files(self.root))

    def good(self):
        hashes = evidence.hash_files(self.root)
        return {"device": "GPU", "driver": "1.2", "toolkit": "13.0.1", "date": "2026-01-02T03:04:05Z",
                "commit": "c0ffee", "tree_hash": evidence.tree_hash(hashes), "files": evidence.short_hashes(hashes),
                "suites": {"contract_test": {"passed": 20, "failed": 0, "skipped": ["C17: needs a hook"]}},
                "bench": {"fold_gdn_f32_b1": 0.97, "fold_gdn_f32_b1_us": 3.25}}

    def write(self, content):
        self.put(evidence.FILE, content if isinstance(content, str) else json.dumps(content))

    def check(self, code, *says):
        done = subprocess.run([sys.executable, "-B", os.path.join(common.TOOLS, "evidence.py"), "--check", "--root",
                               self.root], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(done.stderr, "")
        for text in says:
            self.assertIn(text, done.stdout)
        return done.stdout

    def test_green_on_its_own_tree(self):
        self.write(self.good())
        text = self.check(0, "belongs to this tree", "green", "GPU", "c0ffee", "contract_test", "20 passed",
                          "benchmark rows: 1")
        self.assertNotIn("changed", text)

    def test_suites_that_were_not_run_are_said(self):
        self.write(self.good())
        text = self.check(0, "incomplete", "trace_test, sanitizer_memcheck, sanitizer_racecheck", "green, in what it has")
        self.assertNotIn("nothing about contract_test", text)
        whole = self.good()
        whole["suites"] = {name: {"passed": 1, "failed": 0, "skipped": []} for name in evidence.SUITES}
        self.write(whole)
        self.assertNotIn("incomplete", self.check(0, "evidence: green\n"))

    def test_folders_of_tools_are_no_part_of_the_tree(self):
        before = self.hash()
        for folder in (".mypy_cache/3.11", "__pycache__", ".pytest_cache"):
            self.put(f"src/{folder}/cache.db", "1")
        self.assertEqual(self.hash(), before)

    def test_a_changed_tree_is_said_and_is_no_failure(self):
        self.put("src/gone.cc", "int gone;\n")
        self.write(self.good())
        os.remove(os.path.join(self.root, "src/gone.cc"))
        self.put("src/a.cc", "int b;\n")
        self.put("bench/new.cc", "int c;\n")
        text = self.check(0, "another tree", "3 files", "changed src/a.cc", "added   bench/new.cc",
                          "removed src/gone.cc", "green")
        self.assertNotIn("a_test.cc", text)

    def test_missing(self):
        self.check(1, "there is no", evidence.FILE)

    def test_red(self):
        content = self.good()
        content["suites"]["trace_test"] = {"passed": 1, "failed": 1, "skipped": [], "failures": ["Trace.X: differs"]}
        self.write(content)
        self.check(1, "red: trace_test", "Trace.X: differs")

    def test_red_on_another_tree_is_red(self):
        content = self.good()
        content["suites"]["trace_test"] = {"passed": 1, "failed": 2, "skipped": []}
        self.write(content)
        self.put("src/a.cc", "int b;\n")
        self.check(1, "another tree", "red: trace_test")

    def test_malformed(self):
        self.write("{")
        self.check(1, "cannot be read")
        self.write([])
        self.check(1, "malformed", "object")
        for key in self.good():
            content = self.good()
            del content[key]
            self.write(content)
            self.check(1, "malformed", key)
        for path, value in ((("suites", "contract_test", "failed"), "none"),
                            (("suites", "contract_test", "passed"), -1),
                            (("suites", "contract_test", "skipped"), 0), (("suites",), {}),
                            (("bench", "fold_gdn_f32_b1"), "fast")):
            content = self.good()
            place = content
            for name in path[:-1]:
                place = place[name]
            place[path[-1]] = value
            self.write(content)
            self.check(1, "malformed", path[0])

    def test_the_hash_sees_names_and_contents_of_the_tree_alone(self):
        before = self.hash()
        self.assertEqual(len(before), 64)
        self.put("docs/a.md", "text\n")
        self.put("tests/tools/__pycache__/a.pyc", "code\n")
        self.write(self.good())
        self.assertEqual(self.hash(), before)
        self.put("src/a.cc", "int a; \n")
        changed = self.hash()
        self.assertNotEqual(changed, before)
        self.put("src/a.cc", "int a;\n")
        self.assertEqual(self.hash(), before)
        os.rename(os.path.join(self.root, "src/a.cc"), os.path.join(self.root, "src/b.cc"))
        self.assertNotIn(self.hash(), (before, changed))


if __name__ == "__main__":
    unittest.main(verbosity=2)
