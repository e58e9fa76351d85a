"""tools/mutate.py: its faults still have their places, and its scratch copy of the tree can be configured."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import common

sys.path.insert(0, common.TOOLS)
import mutate  # noqa: E402


class Mutate(unittest.TestCase):
    def test_anchors(self):
        done = subprocess.run([sys.executable, "-B", mutate.__file__, "--anchors"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_scratch_copy_configures(self):
        with tempfile.TemporaryDirectory(prefix="ringfold_mutate_") as folder:
            tree, build = pathlib.Path(folder, "tree"), pathlib.Path(folder, "build")
            mutate.copy_tree(tree)
            done = mutate.configure(tree, build)
            self.assertEqual(done.returncode, 0, done.stdout[-4000:])


if __name__ == "__main__":
    unittest.main(verbosity=2)
