"""tools/ptxas_report.py on reports as ptxas 13.0 writes them, and on a made-up compiler."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import common
import ptxas_report as report

TOOL = os.path.join(common.TOOLS, "ptxas_report.py")


def compiled(name, arch, registers=40, stores=0, loads=0):
    return f"""ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{name}' for '{arch}'
ptxas info    : Function properties for {name}
    {stores} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers, 560 bytes cmem[0]
ptxas info    : Compile time = 231.470 ms
"""


EXACT = "_ZN8ringfold4cuda5exact12exact_kernelINS1_6TraitsILi128ELi4ELb0ELb0EEEEEvNS1_11ExactParamsENS0_6LayersElii"
GENERAL = "_ZN8ringfold4cuda7generalENS_6detail16RecurrenceParamsENS0_6LayersE"
WARNING = (f"ptxas warning : Registers are spilled to local memory in function '{GENERAL}', 48 bytes spill stores, "
           "64 bytes spill loads\n")


class Parser(unittest.TestCase):
    def test_kernels(self):
        text = WARNING + compiled(EXACT, "sm_90a", 128) + "nvcc: hello\n" + compiled(GENERAL, "sm_80", 40, 48, 64)
        self.assertEqual(report.parse(text), [report.Kernel(EXACT, "sm_90a", 128, 0, 0),
                                              report.Kernel(GENERAL, "sm_80", 40, 48, 64)])
        self.assertEqual(report.parse(""), [])

    def test_warnings_are_not_counted(self):
        self.assertEqual(report.parse(compiled(EXACT, "sm_90a") + WARNING), report.parse(compiled(EXACT, "sm_90a")))

    def test_called_functions_belong_to_their_kernel(self):
        called = ("ptxas info    : Function properties for called\n"
                  "    8 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n")
        (kernel,) = report.parse(compiled(EXACT, "sm_90a", 64, 16, 16) + called)
        self.assertEqual((kernel.spill_stores, kernel.spill_loads), (24, 20))

    def test_faults(self):
        def count(*arguments):
            return len(list(report.faults(report.parse(compiled(*arguments)))))

        self.assertEqual(count(EXACT, "sm_90a", 128, 4, 0), 1)
        self.assertEqual(count(EXACT, "sm_90a", 128, 0, 4), 1)
        self.assertEqual(count("_Z11verify_fastv", "sm_90a", 128, 4, 4), 1)
        self.assertEqual(count(EXACT, "sm_90a", 128, 0, 0), 0)
        self.assertEqual(count(EXACT, "sm_80", 128, 4, 4), 0)
        self.assertEqual(count(GENERAL, "sm_90a", 40, 48, 64), 0)

    def test_summary(self):
        text = compiled(EXACT, "sm_90a", 128) + compiled(GENERAL, "sm_90a", 40, 8, 8) + compiled(EXACT, "sm_80", 99, 8)
        self.assertEqual(list(report.summary(report.parse(text))), [
            "sm_80: 1 kernel instances, 1 of them tuned, at most 99 registers, 1 tuned and 0 other instances spill",
            "sm_90a: 2 kernel instances, 1 of them tuned, at most 128 registers, 0 tuned and 1 other instances spill"])


class Whole(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ringfold_ptxas_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.object = os.path.join(self.folder, "a.cu.o")

    def run_tool(self, *arguments):
        return subprocess.run([sys.executable, "-B", TOOL, *arguments], capture_output=True, text=True, timeout=60)

    def compile(self, says, code=0, output=None):
        """A compiler that writes `says` to stderr, leaves an object file and exits with `code`."""
        program = os.path.join(self.folder, "nvcc.py")
        with open(program, "w", encoding="utf-8") as file:
            file.write(f"import sys\nsys.stderr.write({says!r})\nopen(sys.argv[-1], 'w')\nsys.exit({code})\n")
        return self.run_tool("record", sys.executable, program, "-c", "a.cu", "-o", output or self.object)

    def test_record_and_check(self):
        done = self.compile(WARNING + compiled(EXACT, "sm_90a", 128) + "a.cu(1): warning: x\n")
        self.assertEqual((done.returncode, done.stderr), (0, WARNING + "a.cu(1): warning: x\n"))
        for act in ("count", "check"):
            done = self.run_tool(act, self.object)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(done.stdout.startswith("1 kernel instances\nsm_90a: 1 kernel"), done.stdout)

    def test_spills_are_red(self):
        self.compile(compiled(EXACT, "sm_90a", 128, 16, 20))
        self.assertEqual(self.run_tool("count", self.object).returncode, 0)
        done = self.run_tool("check", self.object)
        self.assertEqual(done.returncode, 1)
        for text in (EXACT, "16 bytes of spill stores", "20 of spill loads"):
            self.assertIn(text, done.stdout)

    def test_a_failing_compiler_is_passed_on(self):
        done = self.compile(compiled(EXACT, "sm_90a") + "a.cu(1): error: x\n", 7)
        self.assertEqual((done.returncode, done.stderr), (7, "a.cu(1): error: x\n"))
        self.assertFalse(os.path.exists(self.object + ".ptxas"))

    def test_no_stale_report(self):
        self.compile(compiled(EXACT, "sm_90a"))
        self.compile("")
        done = self.run_tool("check", self.object)
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no report", done.stderr)
        self.assertEqual(self.run_tool("count", self.object).returncode, 0)

    def test_only_objects_get_reports(self):
        self.compile(compiled(EXACT, "sm_90a"), output=os.path.join(self.folder, "a.ptx"))
        self.assertEqual([name for name in os.listdir(self.folder) if name.endswith(".ptxas")], [])

    def test_usage(self):
        for arguments in ([], ["check"], ["record"], ["fly", "x"]):
            self.assertEqual(self.run_tool(*arguments).returncode, 2, arguments)


if __name__ == "__main__":
    unittest.main(verbosity=2)
