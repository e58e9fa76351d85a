"""What tools/gpu.py makes of what programs print; nothing here runs on a GPU."""

import importlib.machinery
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

import common
import evidence
import gpu

OUTPUT = """[ RUN      ] All/Contract.Holds/C1_cuda
[       OK ] All/Contract.Holds/C1_cuda (5 ms)
[ RUN      ] All/Contract.Holds/C10_cuda
tests/contract_test.cc:50: Skipped
fast numerics are not
built yet
[  SKIPPED ] All/Contract.Holds/C10_cuda (0 ms)
[ RUN      ] All/Contract.Holds/C10_cuda.b
file.cc:5: Skipped
other
[  SKIPPED ] All/Contract.Holds/C10_cuda.b (0 ms)
[  SKIPPED ] 2 tests, listed below:
[  SKIPPED ] All/Contract.Holds/C10_cuda
[  SKIPPED ] All/Contract.Holds/C10_cuda.b
"""


def report(*tests):
    return {"testsuites": [{"name": "All/Contract", "testsuite": list(tests)}]}


def test(name, result="COMPLETED", **more):
    return {"name": f"Holds/{name}", "status": "RUN", "result": result, **more}


class TestResults(unittest.TestCase):
    def test_counts_and_reasons(self):
        tests = report(test("C1_cuda"), test("C10_cuda", "SKIPPED"), test("C10_cuda.b", "SKIPPED"),
                       test("C2_reference", "SUPPRESSED"))
        self.assertEqual(gpu.test_result(tests, OUTPUT, 0), {
            "passed": 1, "failed": 0,
            "skipped": ["All/Contract.Holds/C10_cuda: fast numerics are not built yet",
                        "All/Contract.Holds/C10_cuda.b: other"]})

    def test_failures_are_named(self):
        tests = report(test("C1_cuda"), test("C9_cuda", failures=[{"failure": "a.cc:1\nout differs", "type": ""}]))
        result = gpu.test_result(tests, "", "exit code 1")
        self.assertEqual((result["passed"], result["failed"]), (1, 1))
        self.assertEqual(result["failures"], ["All/Contract.Holds/C9_cuda: a.cc:1 out differs"])

    def test_a_program_that_dies_is_a_failure(self):
        text = "[ RUN      ] A.a\n[       OK ] A.a (0 ms)\n[ RUN      ] A.b\n"
        result = gpu.test_result(None, text, "exit code -11")
        self.assertEqual((result["passed"], result["failed"]), (1, 1))
        self.assertEqual(result["failures"], ["ended with exit code -11 in A.b"])
        self.assertEqual(gpu.test_result(report(test("C1_cuda")), "", "exit code 9")["failed"], 1)

    def test_programs_are_run_and_stopped(self):
        self.assertEqual(gpu.run_program([sys.executable, "-c", "print('x')"]), ("x\n", 0))
        self.assertEqual(gpu.run_program([sys.executable, "-c", "raise SystemExit(3)"])[1], "exit code 3")
        limit, gpu.TIMEOUT = gpu.TIMEOUT, 1
        try:
            text, code = gpu.run_program([sys.executable, "-uc", "import time; print('begun'); time.sleep(60)"])
        finally:
            gpu.TIMEOUT = limit
        self.assertEqual((text, code), ("begun\n", "no end after 1 s"))


class Pytest(unittest.TestCase):
    def result(self, cases, code=0):
        return gpu.pytest_result(xml.etree.ElementTree.ElementTree(xml.etree.ElementTree.fromstring(
            f"<testsuites><testsuite>{cases}</testsuite></testsuites>")), code)

    def test_counts_and_reasons(self):
        cases = ('<testcase classname="t" name="a"/>'
                 '<testcase classname="t" name="b"><skipped message="no GPU"/></testcase>')
        self.assertEqual(self.result(cases), {"passed": 1, "failed": 0, "skipped": ["t.b: no GPU"]})

    def test_failures_are_named(self):
        cases = ('<testcase classname="t" name="a"><failure message="x differs"/></testcase>'
                 '<testcase classname="t" name="b"><error message="broken"/></testcase>')
        result = self.result(cases, "exit code 1")
        self.assertEqual((result["passed"], result["failed"]), (0, 2))
        self.assertEqual(result["failures"], ["t.a: x differs", "t.b: broken"])

    def test_a_run_that_dies_is_a_failure(self):
        self.assertEqual(gpu.pytest_result(None, "exit code -11")["failures"], ["ended with exit code -11"])
        self.assertEqual(self.result('<testcase classname="t" name="a"/>', "exit code 3")["failed"], 1)


class Package(unittest.TestCase):
    def test_only_that_of_these_files_and_this_interpreter_is_taken(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertFalse(gpu.has_package(folder, "abc"))
            with open(os.path.join(folder, "tree_hash"), "w", encoding="utf-8") as file:
                file.write("abc")
            self.assertFalse(gpu.has_package(folder, "abc"))
            for suffix, taken in ((".cpython-26-x86_64-linux-gnu.so", False),
                                  (importlib.machinery.EXTENSION_SUFFIXES[0], True)):
                with open(os.path.join(folder, f"_ringfold{suffix}"), "wb"):
                    pass
                self.assertEqual(gpu.has_package(folder, "abc"), taken)
            self.assertFalse(gpu.has_package(folder, "abd"))


class Sanitizers(unittest.TestCase):
    def test_clean(self):
        self.assertEqual(gpu.sanitizer_errors("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"), [])
        summary = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
        self.assertEqual(gpu.sanitizer_errors("========= COMPUTE-SANITIZER\n" + summary), [])

    def test_errors_are_named(self):
        log = ("========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n"
               "=========     at verify+0x10\n========= Invalid __global__ write of size 4 bytes\n"
               "========= ERROR SUMMARY: 2 errors\n")
        self.assertEqual(gpu.sanitizer_errors(log), ["2 errors: Invalid __global__ write of size 4 bytes"])

    def test_suites_add_up(self):
        parts = [{"passed": 1, "failed": 0, "skipped": ["a: why"]},
                 {"passed": 0, "failed": 1, "skipped": [], "failures": ["b: wrong"]},
                 {"passed": 0, "failed": 1, "skipped": ["c: why"], "failures": ["d: 2 errors"]}]
        self.assertEqual(gpu.sum_of_suites(parts), {"passed": 1, "failed": 2, "skipped": ["a: why", "c: why"],
                                                    "failures": ["b: wrong", "d: 2 errors"]})
        self.assertEqual(gpu.sum_of_suites(parts[:1]), parts[0])

    def test_no_summary_is_an_error(self):
        self.assertEqual(gpu.sanitizer_errors(""), ["no summary in the log"])


class Bench(unittest.TestCase):
    def rows(self):
        return [{"key": "fold_gdn_f32_b1", "ratio": 0.954321, "us": 3.14159},
                {"key": "fold_kda_f32_b1", "ratio": 0, "us": 0, "skipped": "cuda: not built"},
                {"key": "fold_gdn_bf16_b1", "ratio": 0, "us": 0, "failed": "state differs"}]

    def test_rows_are_merged(self):
        data = {"suites": {}, "bench": {"decode_gdn_f32_b1": 1.0, "decode_gdn_f32_b1_us": 2.0, "fold_old_b1": 0.5},
                "bench_skipped": {}}
        result = gpu.merge_bench(data, "fold", self.rows(), None)
        self.assertEqual(data["bench"], {"decode_gdn_f32_b1": 1.0, "decode_gdn_f32_b1_us": 2.0,
                                         "fold_gdn_f32_b1": 0.9543, "fold_gdn_f32_b1_us": 3.142})
        self.assertEqual(result, {"passed": 2, "failed": 1, "skipped": ["cuda: not built"],
                                  "failures": ["fold_gdn_bf16_b1: state differs"]})
        data["suites"]["bench"] = result
        again = gpu.merge_bench(data, "decode", [], "no rows")
        self.assertEqual(again["failures"], ["fold_gdn_bf16_b1: state differs", "decode: no rows"])
        data["suites"]["bench"] = again
        again = gpu.merge_bench(data, "fold", self.rows()[:1], None)
        self.assertEqual(again["failures"], ["decode: no rows"])


class Whole(unittest.TestCase):
    """Stages on made-up programs in a made-up tree."""

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="ringfold_gpu_")
        self.addCleanup(shutil.rmtree, self.root)
        tools = os.path.join(self.root, "tools")
        os.makedirs(tools)
        for name in ("gpu.py", "evidence.py"):
            shutil.copy(os.path.join(common.TOOLS, name), tools)
        self.script("path/nvidia-smi", "print('Made-up GPU, 1.2.3, 9.0')")
        self.script("path/compute-sanitizer", """
import subprocess, sys
log = sys.argv[sys.argv.index('--log-file') + 1]
open(log, 'w').write('========= ERROR SUMMARY: 0 errors\\n')
sys.exit(subprocess.run(sys.argv[sys.argv.index('--log-file') + 2:]).returncode)""")
        self.script("build-gpu/bin/contract_test", """
import json, sys
if '--gtest_list_tests' in sys.argv:
    print('All.\\n  C1_cuda')
else:
    tests = [{'name': 'C1_cuda', 'result': 'COMPLETED'}]
    path = sys.argv[-1].split('json:')[1]
    json.dump({'testsuites': [{'name': 'All', 'testsuite': tests}]}, open(path, 'w'))""")
        self.script("build-gpu/bin/ringfold", """
import json, sys
row = {'key': sys.argv[-1] + '_gdn_f32_b1', 'ratio': 0.9, 'us': 2.0, 'bytes_twin_us': 1.8}
print(json.dumps({'rows': [row]}))""")
        self.built()

    def script(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!{sys.executable}\n{text}\n")
        os.chmod(path, 0o755)

    def built(self):
        with open(os.path.join(self.root, "build-gpu", "tree_hash"), "w", encoding="utf-8") as file:
            file.write(evidence.tree_hash(evidence.hash_files(self.root)))

    def run_stage(self, *arguments, interpreter=()):
        environment = {**os.environ, "PATH": os.path.join(self.root, "path") + os.pathsep + os.environ["PATH"]}
        return subprocess.run([sys.executable, "-B", *interpreter, os.path.join(self.root, "tools", "gpu.py"), *arguments],
                              capture_output=True, text=True, env=environment, timeout=120)

    def evidence(self):
        return evidence.load(os.path.join(self.root, evidence.FILE))

    def test_stages_merge(self):
        for arguments in (["test"], ["sanitize", "memcheck"], ["bench"]):
            done = self.run_stage(*arguments)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = self.evidence()
        self.assertEqual(evidence.problems(found), [])
        self.assertEqual(sorted(found["suites"]), ["bench", "contract_test", "sanitizer_memcheck"])
        self.assertEqual(found["bench"]["decode_gdn_f32_b1"], 0.9)
        self.assertEqual(found["bench"]["decode_gdn_f32_b1_us"], 2.0)
        self.assertEqual((found["device"], found["driver"]), ("Made-up GPU", "1.2.3"))

    def test_who_is_ended_leaves_nobody_behind(self):
        self.script("build-gpu/bin/contract_test", """
import os, sys, time
if '--gtest_list_tests' in sys.argv:
    print('All.\\n  C1_cuda')
else:
    with open('pid.new', 'w') as file:
        file.write(str(os.getpid()))
    os.rename('pid.new', 'pid')
    time.sleep(100)""")
        self.built()
        environment = {**os.environ, "PATH": os.path.join(self.root, "path") + os.pathsep + os.environ["PATH"]}
        with subprocess.Popen([sys.executable, "-B", os.path.join(self.root, "tools", "gpu.py"), "test"],
                              stdout=subprocess.DEVNULL, env=environment) as process:
            pid = os.path.join(self.root, "pid")
            while not os.path.exists(pid) and process.poll() is None:
                time.sleep(0.05)
            process.terminate()
            self.assertEqual(process.wait(60), 1)
        with open(pid, encoding="utf-8") as file:
            child = int(file.read())
        for _ in range(600):  # whoever inherits it has to wait for it
            if not os.path.exists(f"/proc/{child}") or self.is_dead(child):
                return
            time.sleep(0.1)
        self.fail("the test goes on")

    @staticmethod
    def is_dead(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                return file.read().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True

    def test_each_test_is_sanitized(self):
        self.script("build-gpu/bin/contract_test", """
import json, sys
if '--gtest_list_tests' in sys.argv:
    asked = sys.argv[1].split('=')[1]
    print('Kit/All.')
    for name in ('C1_cuda', 'C2_cuda', 'C3_cuda'):
        if '*' in asked or asked == 'Kit/All.' + name:
            print('  ' + name + '  # GetParam() = ' + name)
    sys.exit(0)
name = sys.argv[1].split('All.')[1]
tests = [{'name': name, 'result': 'COMPLETED'}]
if name == 'C2_cuda':
    tests = [{'name': name, 'result': 'COMPLETED', 'failures': [{'failure': 'bits differ'}]}]
path = sys.argv[-1].split('json:')[1]
json.dump({'testsuites': [{'name': 'Kit/All', 'testsuite': tests}]}, open(path, 'w'))
sys.exit(1 if name == 'C2_cuda' else 0)""")
        self.built()
        self.assertEqual(self.run_stage("sanitize", "racecheck").returncode, 1)
        self.assertEqual(self.evidence()["suites"]["sanitizer_racecheck"],
                         {"passed": 2, "failed": 1, "skipped": [], "failures": ["Kit/All.C2_cuda: bits differ"]})

    def test_tests_are_shared_out(self):
        self.script("build-gpu/bin/contract_test", """
import json, os, sys
names = [f'C{i}_cuda' for i in range(5)]
if '--gtest_list_tests' in sys.argv:
    print('All.')
    print(''.join(f'  {name}\\n' for name in names))
    sys.exit(0)
shares, mine = int(os.environ['GTEST_TOTAL_SHARDS']), int(os.environ['GTEST_SHARD_INDEX'])
tests = [{'name': name, 'result': 'COMPLETED'} for i, name in enumerate(names) if i % shares == mine]
path = sys.argv[-1].split('json:')[1]
json.dump({'testsuites': [{'name': 'All', 'testsuite': tests}]}, open(path, 'w'))""")
        self.built()
        self.assertEqual(self.run_stage("test").returncode, 0)
        self.assertEqual(self.evidence()["suites"]["contract_test"], {"passed": 5, "failed": 0, "skipped": []})

    def test_tests_share_the_gpu_where_there_is_a_service_for_it(self):
        self.script("path/nvidia-cuda-mps-control", """
import os, sys, time
folder = os.environ['CUDA_MPS_PIPE_DIRECTORY']
if sys.argv[1:] == ['-f']:
    open(os.path.join(folder, 'control'), 'w').close()
    while not os.path.exists(os.path.join(folder, 'quit')):
        time.sleep(0.01)
    open('ended', 'w').close()
elif sys.stdin.read() == 'quit\\n':
    open(os.path.join(folder, 'quit'), 'w').close()""")
        self.script("build-gpu/bin/contract_test", """
import json, os, sys
if '--gtest_list_tests' in sys.argv:
    print('All.\\n  C1_cuda')
    sys.exit(0)
shared = os.path.exists(os.path.join(os.environ.get('CUDA_MPS_PIPE_DIRECTORY', '/nowhere'), 'control'))
tests = [{'name': 'C1_cuda', 'result': 'COMPLETED', **({} if shared else {'failures': [{'failure': 'alone'}]})}]
path = sys.argv[-1].split('json:')[1]
json.dump({'testsuites': [{'name': 'All', 'testsuite': tests}]}, open(path, 'w'))""")
        self.built()
        done = self.run_stage("test")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(os.path.exists(os.path.join(self.root, "ended")))
        self.script("path/nvidia-cuda-mps-control", "raise SystemExit(1)")  # the tests run without it, one after the other
        self.assertIn("alone", self.run_stage("test").stdout)

    def test_copy(self):
        copy = os.path.join(self.root, "copy.json")
        self.assertEqual(self.run_stage("test", "contract_test", "--copy", copy).returncode, 0)
        self.assertEqual(evidence.load(copy), self.evidence())

    def test_other_files_start_anew(self):
        self.assertEqual(self.run_stage("test").returncode, 0)
        self.script("src/new.cc", "")
        done = self.run_stage("bench")
        self.assertEqual(done.returncode, 1)
        self.assertIn("was not built from these files", done.stderr)
        self.built()
        self.assertEqual(self.run_stage("bench", "fold").returncode, 0)
        self.assertEqual(sorted(self.evidence()["suites"]), ["bench"])

    def test_a_failing_program_is_red(self):
        self.script("build-gpu/bin/ringfold", "raise SystemExit('ringfold: broken')")
        self.assertEqual(self.run_stage("bench", "fold").returncode, 1)
        self.assertEqual(self.evidence()["suites"]["bench"]["failures"], ["fold: ringfold: broken"])

    def test_python_without_its_packages(self):
        done = self.run_stage("python", interpreter=("-S",))
        self.assertEqual(done.returncode, 1)
        self.assertIn("expected the Python packages torch numpy ml_dtypes pytest (and nanobind, to build), found no torch",
                      done.stderr)

    def test_usage(self):
        self.assertEqual(self.run_stage("fly").returncode, 2)
        self.assertEqual(self.run_stage("all", "x").returncode, 2)
        self.assertIn("no_such_test", self.run_stage("test", "no_such_test").stderr)
        self.assertIn("lintcheck", self.run_stage("sanitize", "lintcheck").stderr)


class Architectures(unittest.TestCase):
    def test_names(self):
        self.assertEqual(gpu.architecture("9.0"), "90a-real")
        self.assertEqual(gpu.architecture("8.6"), "86-real")
        self.assertEqual(gpu.architecture("12.0"), "120-real")


if __name__ == "__main__":
    unittest.main(verbosity=2)
