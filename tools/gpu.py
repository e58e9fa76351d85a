#!/usr/bin/env python3
"""Builds, tests and measures the CUDA backend on this machine's GPU, and writes tests/gpu/evidence.json.

    tools/gpu.py build                    configure and build build-gpu, for the GPU at hand
    tools/gpu.py test [PROGRAM...]        the tests that concern CUDA, all or those of some programs
    tools/gpu.py sanitize [TOOL...]       the contract's small grid under compute-sanitizer
    tools/gpu.py bench [FILTER...]        benchmark rows beside their twins
    tools/gpu.py python [FILE...]         builds the Python package too, and runs tests/python, all or some files
    tools/gpu.py all                      all of it, in this order (python where its packages are there)
    tools/gpu.py peers [ARGUMENT...]      builds the shared library too, and runs bench/peers/run.py (docs/peers.md)

Every suite and every group of rows is merged into the evidence as soon as it is done. Evidence of other files, or of
another GPU, is not kept. Exits 1 if something failed.
"""

import argparse
import concurrent.futures
import contextlib
import datetime
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

import evidence as ev

BUILD = os.path.join(ev.ROOT, "build-gpu")
BIN = os.path.join(BUILD, "bin")
BUILT = os.path.join(BUILD, "tree_hash")  # of the files that build-gpu was built from
CUDA_TESTS = "*cuda*:*Cuda*:*CUDA*"
# Programs whose tests all matter on a GPU: host and device share the arithmetic and the pool. Of the others, those
# tests that name CUDA.
WHOLE = ("core_test", "pool_test")
# C19 is about tensors of more than 2^31 elements, which have no room beside a sanitizer's shadow.
SANITIZED_TESTS = "*cuda*-*C19*"
BARRIERS = 16  # in shared memory, of a block: more than any has; what the tools find by themselves is too little
SANITIZERS = ev.SANITIZERS
AT_ONCE = 12  # processes: most of what a test or a tool does here is work of the host
# Each group is a process of its own, so that rows already timed are kept if a later group is stopped.
BENCH_GROUPS = ("decode", "fold", "fused", "verify_fast_gdn", "verify_fast_kda", "verify_exact_gdn", "verify_exact_kda",
                "step_on_commit", "step_on_next_verify", "step_lazy")
TIMEOUT = 570  # seconds for one suite
MPS_STARTS = 5  # seconds until its socket is there
PACKAGE = os.path.join(BUILD, "python", "ringfold")
PYTHON_NEEDS = ("torch", "numpy", "ml_dtypes", "pytest")


class Failure(Exception):
    """Ends the program with one line."""


def say(text):
    print(f"gpu: {text}", flush=True)


def read(path):
    """The text of a file, or None."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def output_of(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ev.ROOT, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


# ---------------------------------------------------------------------------------------------------------------------
# What ran where


def device():
    """(name, driver, compute capability) of the first GPU."""
    listed = output_of("nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader")
    parts = [part.strip() for part in listed.split("\n")[0].split(",")]
    if len(parts) != 3:
        raise Failure("nvidia-smi names no GPU on this machine")
    return parts


def architecture(capability):
    """"9.0" -> "90a-real": the kernels use what only the architecture-specific target offers there."""
    number = capability.replace(".", "")
    return f"{number}a-real" if number == "90" else f"{number}-real"


def compiler():
    try:
        with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as file:
            found = re.search(r"^CMAKE_CUDA_COMPILER:\w+=(.+)$", file.read(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1) if found else "nvcc"


def toolkit():
    found = re.search(r"V(\d+\.\d+\.\d+)", output_of(compiler(), "--version"))
    return found.group(1) if found else "unknown"


def commit():
    if named := os.environ.get("RINGFOLD_COMMIT"):  # of a tree that came without its history, or with an older one
        return named
    head = output_of("git", "rev-parse", "HEAD")
    if not head:
        return "unknown"
    dirty = output_of("git", "status", "--porcelain", "--", *ev.FOLDERS, f":!{ev.FILE}", f":!{ev.RESULTS}")
    return head + ("+changes" if dirty else "")


class Evidence:
    """The file, merged part by part."""

    def __init__(self, copy):
        name, driver, _ = device()
        hashes = ev.hash_files(ev.ROOT)
        if read(BUILT) != ev.tree_hash(hashes):
            raise Failure("build-gpu was not built from these files; run ./dev gpu build")
        self.copy = copy
        self.path = os.path.join(ev.ROOT, ev.FILE)
        self.data = {"suites": {}, "bench": {}, "bench_skipped": {}}
        head = {"device": name, "driver": driver, "toolkit": toolkit(), "commit": commit(),
                "tree_hash": ev.tree_hash(hashes), "files": ev.short_hashes(hashes)}
        try:
            old = ev.load(self.path)
            if all(old[key] == head[key] for key in ("device", "driver", "toolkit", "tree_hash")):
                self.data = {key: old[key] for key in self.data}
            else:
                say("the evidence there is of other files or of another machine, and starts anew")
        except (OSError, ValueError, KeyError, TypeError):
            pass
        self.data.update(head)

    def save(self):
        self.data["date"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        order = (*ev.TEXTS, "suites", "bench", "bench_skipped", "files")
        text = json.dumps({key: self.data[key] for key in order}, indent=1) + "\n"
        for path in filter(None, (self.path, self.copy)):
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            with open(path + ".new", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(path + ".new", path)

    def suite(self, name, result):
        self.data["suites"][name] = result
        self.save()
        say(f"{name}: {result['passed']} passed, {result['failed']} failed, {len(result['skipped'])} skipped")
        for failure in result.get("failures", []):
            say(f"  {failure}")
        return result["failed"] == 0


# ---------------------------------------------------------------------------------------------------------------------
# Stages. Those that leave evidence return whether all is well.


def stage_build():
    _, _, capability = device()
    files = ev.tree_hash(ev.hash_files(ev.ROOT))
    configure = ["cmake", "-S", ".", "-B", BUILD, "-G", "Ninja", "-Wno-dev", "-DCMAKE_BUILD_TYPE=Release",
                 "-DRINGFOLD_CUDA=on", f"-DRINGFOLD_CUDA_ARCHITECTURES={architecture(capability)}",
                 "-DRINGFOLD_FEW_TARGETS=ON", "-DRINGFOLD_CAPI=auto"]
    for command in (configure, ["cmake", "--build", BUILD]):
        if subprocess.run(command, cwd=ev.ROOT).returncode != 0:
            raise Failure("the build failed")
    with open(BUILT, "w", encoding="utf-8") as file:
        file.write(files)


def skip_reasons(text):
    """{test: reason} from what a gtest program prints; its JSON says only that a test was skipped."""
    reasons, said = {}, []
    for line in text.split("\n"):
        ended = re.match(r"\[  SKIPPED \] (\S+) \(\d+ ms\)", line)
        if line.startswith("[ RUN      ]"):
            said = []
        elif ended:
            reasons[ended.group(1)] = " ".join(said)
        elif not re.fullmatch(r"\S+:\d+: Skipped", line):
            said += line.split()
    return reasons


def test_result(report, text, code):
    """The suite of one gtest program: its JSON report (None if it wrote none), its output, its exit code."""
    result = {"passed": 0, "failed": 0, "skipped": []}
    failures, reasons = [], skip_reasons(text)
    if report is None:
        result["passed"] = len(re.findall(r"^\[       OK \]", text, re.MULTILINE))
        started = re.findall(r"^\[ RUN      \] (\S+)", text, re.MULTILINE)
        failures.append(f"ended with {code}" + (f" in {started[-1]}" if started else ""))
    else:
        for suite in report["testsuites"]:
            for test in suite["testsuite"]:
                name = f"{suite['name']}.{test['name']}"
                if test.get("failures"):
                    failures.append(f"{name}: {' '.join(test['failures'][0]['failure'].split())[:400]}")
                elif test["result"] == "SKIPPED":
                    result["skipped"].append(f"{name}: {reasons.get(name, 'no reason given')}")
                elif test["result"] == "COMPLETED":
                    result["passed"] += 1
        if not failures and code != 0:
            failures.append(f"ended with {code}")
    result["failed"] = len(failures)
    if failures:
        result["failures"] = failures
    return result


started = set()  # process groups of what runs


def end_groups(*_):
    """What a signal that ends this program does: what it has started would go on, and be in the way of who is next."""
    for group in list(started):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    os._exit(1)


@contextlib.contextmanager
def group_of(command, **options):
    """A process in a group of its own, with its output as text."""
    with subprocess.Popen(command, cwd=ev.ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          errors="replace", start_new_session=True, **options) as process:
        started.add(process.pid)
        try:
            yield process
        finally:
            started.discard(process.pid)


def run_program(command, environment=None):
    """(output, what went wrong; 0 if nothing did). What takes too long is ended, with all that it started."""
    with group_of(command, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}) as process:
        try:
            text, _ = process.communicate(timeout=TIMEOUT)
            return text, f"exit code {process.returncode}" if process.returncode else 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
            return text, f"no end after {TIMEOUT} s"


def list_tests(program, test_filter):
    """Names of the tests that match."""
    listed, code = run_program([os.path.join(BIN, program), f"--gtest_filter={test_filter}", "--gtest_list_tests"])
    if code:
        raise Failure(f"{program} lists no tests: {code}")
    suite, names = "", []
    for line in listed.split("\n"):
        if line.startswith("  "):
            names.append(suite + line.split("#")[0].strip())
        elif line.split("#")[0].strip().endswith("."):
            suite = line.split("#")[0].strip()
    return names


def run_tests(program, test_filter, wrapper=(), environment=None):
    """Runs a gtest program and returns its suite, or None if no test matches."""
    if not list_tests(program, test_filter):
        return None
    command = [os.path.join(BIN, program), f"--gtest_filter={test_filter}"]
    with tempfile.TemporaryDirectory() as folder:
        report_path = os.path.join(folder, "report.json")
        text, code = run_program([*wrapper, *command, f"--gtest_output=json:{report_path}"], environment)
        try:
            report = ev.load(report_path)
        except (OSError, ValueError):
            report = None
    result = test_result(report, text, code)
    if result["failed"]:
        print(text[-6000:])
    return result


def processes():
    return min(AT_ONCE, os.cpu_count() or 1)


@contextlib.contextmanager
def side_by_side():
    """Variables for processes that share the GPU. By themselves they take turns by slices of time, and one that waits
    for its kernel waits for the slices of all others: twelve processes of traces had ended no test in a minute, and all of
    theirs in seven seconds with NVIDIA's service for that, MPS. So it is started where it is there and the caller has none. (A fault of one process
    ends the others too. They are red then, not green.)"""
    program = shutil.which("nvidia-cuda-mps-control")
    if not program or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **variables}
        with group_of([program, "-f"], stderr=subprocess.STDOUT, env=environment) as service:
            until = time.monotonic() + MPS_STARTS
            while not os.path.exists(os.path.join(folder, "control")) and service.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            there = os.path.exists(os.path.join(folder, "control")) and service.poll() is None
            try:
                yield variables if there else {}
            finally:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    subprocess.run([program], input="quit\n", text=True, env=environment, timeout=10, capture_output=True)
                    service.wait(timeout=10)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(service.pid, signal.SIGKILL)


def start_shares(pool, program, test_filter, environment):
    """run_tests(), the tests shared out among twice as many processes as run at a time: some take far longer than others."""
    shares = min(2 * processes(), len(list_tests(program, test_filter)))
    return [pool.submit(run_tests, program, test_filter, (), {
        **environment, "GTEST_TOTAL_SHARDS": str(shares), "GTEST_SHARD_INDEX": str(i)}) for i in range(shares)]


def stage_test(evidence, names):
    programs = sorted(name for name in os.listdir(BIN) if name.endswith("_test")) if os.path.isdir(BIN) else []
    unknown = set(names) - set(programs)
    if unknown or not programs:
        raise Failure(f"expected test programs among those of {BIN}, found {' '.join(unknown) or 'none'}")
    good = True
    with side_by_side() as variables, concurrent.futures.ThreadPoolExecutor(processes()) as pool:
        running = [(program, start_shares(pool, program, "*" if program in WHOLE else CUDA_TESTS,
                                          {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "2", **variables}))
                   for program in names or programs]
        for program, parts in running:
            if parts:
                good = evidence.suite(program, sum_of_suites(part.result() for part in parts)) and good
    return good


def sanitizer_errors(log):
    """What a log of compute-sanitizer complains of: the first lines of its first reports, or []."""
    summaries = [int(n) for n in re.findall(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+)", log)]
    if summaries and not any(summaries):
        return []
    lines = [line.removeprefix("=========").strip() for line in log.split("\n")
             if re.match(r"========= (?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY| )\S", line)]
    count = sum(summaries)
    return [f"{count} errors: " + "; ".join(list(dict.fromkeys(lines))[:3])] if summaries else ["no summary in the log"]


def sanitizer():
    """The program: on the PATH, or beside the compiler."""
    beside = os.path.join(os.path.dirname(compiler()), "compute-sanitizer")
    found = shutil.which("compute-sanitizer") or shutil.which(beside)
    if not found:
        raise Failure("compute-sanitizer is neither on the PATH nor beside nvcc")
    return found


def sanitize(tool, test):
    """The suite of one test of the contract under one tool."""
    with tempfile.TemporaryDirectory() as folder:
        log_path = os.path.join(folder, "log")
        wrapper = (sanitizer(), "--tool", tool, "--error-exitcode", "9", "--num-cuda-barriers", str(BARRIERS),
                   "--log-file", log_path)
        result = run_tests("contract_test", test, wrapper, {"RINGFOLD_CHECK_LEVEL": "quick", "OMP_NUM_THREADS": "2"})
        try:
            with open(log_path, encoding="utf-8", errors="replace") as file:
                log = file.read()
        except OSError:
            log = ""
    errors = [f"{test}: {error}" for error in sanitizer_errors(log)]
    if errors:
        print(log[-6000:])
        result["failures"] = result.get("failures", []) + errors
        result["failed"] = len(result["failures"])
    return result


def sum_of_suites(parts):
    total = {"passed": 0, "failed": 0, "skipped": []}
    for part in parts:
        for key in ("passed", "failed", "skipped"):
            total[key] += part[key]
        if "failures" in part:
            total["failures"] = total.get("failures", []) + part["failures"]
    return total


def stage_sanitize(evidence, names):
    unknown = set(names) - set(SANITIZERS)
    if unknown:
        raise Failure(f"expected some of {' '.join(SANITIZERS)}, found {' '.join(unknown)}")
    tests = list_tests("contract_test", SANITIZED_TESTS)
    if not tests:
        raise Failure("contract_test has no test that names cuda")
    good = True
    with concurrent.futures.ThreadPoolExecutor(processes()) as pool:
        running = {tool: [pool.submit(sanitize, tool, test) for test in tests] for tool in names or SANITIZERS}
        for tool, parts in running.items():
            good = evidence.suite(f"sanitizer_{tool}", sum_of_suites(part.result() for part in parts)) and good
    return good


def merge_bench(data, pattern, rows, error):
    """Takes the rows whose keys contain `pattern` into the evidence, in place of what it had of them."""
    suite = data["suites"].get("bench", {})
    failures = [line for line in suite.get("failures", []) if pattern not in line.split(": ")[0]]
    for part in ("bench", "bench_skipped"):
        data[part] = {key: value for key, value in data[part].items() if pattern not in key}
    for row in rows:
        if "failed" in row:
            failures.append(f"{row['key']}: {row['failed']}")
        elif "skipped" in row:
            data["bench_skipped"][row["key"]] = row["skipped"]
        else:
            data["bench"][row["key"]] = round(row["ratio"], 4)
            data["bench"][f"{row['key']}_us"] = round(row["us"], 3)
            if "chain_us" in row:
                data["bench"][f"{row['key']}_chain_us"] = round(row["chain_us"], 3)
    if error:
        failures.append(f"{pattern}: {error}")
    result = {"passed": sum(not key.endswith("_us") for key in data["bench"]), "failed": len(failures),
              "skipped": sorted(set(data["bench_skipped"].values()))}
    if failures:
        result["failures"] = failures
    return result


def stage_bench(evidence, names):
    good = True
    for pattern in names or BENCH_GROUPS:
        command = [os.path.join(BIN, "ringfold"), "bench", "--device", "cuda", "--json", "--seconds", "0.25",
                   "--filter", pattern]
        with group_of(command, stderr=subprocess.PIPE) as process:
            printed, errors = process.communicate()
        try:
            rows = json.loads(printed)["rows"]
        except (ValueError, KeyError):
            rows = []
        differs = any("failed" in row for row in rows)
        error = None if process.returncode == 0 or differs else errors.strip().split("\n")[-1] or "no rows"
        for row in rows:
            if "ratio" in row and "skipped" not in row and "failed" not in row:
                print(f"{row['key']:<40} {row['us']:>9.2f} us  twin {row['bytes_twin_us']:>9.2f} us  ratio "
                      f"{row['ratio']:.3f}  ({row.get('twin', '')})")
        good = evidence.suite("bench", merge_bench(evidence.data, pattern, rows, error)) and good
    return good


def pytest_result(report, code):
    """The suite of one pytest run: its JUnit report (None if it wrote none) and what went wrong."""
    result, failures = {"passed": 0, "failed": 0, "skipped": []}, []
    for case in [] if report is None else report.iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        bad = [part for part in case if part.tag in ("failure", "error")]
        skipped = case.find("skipped")
        if bad:
            failures.append(f"{name}: {' '.join(bad[0].get('message', '').split())[:400]}")
        elif skipped is not None:
            result["skipped"].append(f"{name}: {skipped.get('message') or 'no reason given'}")
        else:
            result["passed"] += 1
    if not failures and (code != 0 or report is None):
        failures.append(f"ended with {code}")
    result["failed"] = len(failures)
    if failures:
        result["failures"] = failures
    return result


def has_package(folder, tree):
    """Whether the folder holds the package for this interpreter, built from the files of this hash: by an earlier call,
    or on another machine for one that lacks what the build needs."""
    modules = [os.path.join(folder, f"_ringfold{suffix}") for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    return any(os.path.exists(module) for module in modules) and read(os.path.join(folder, "tree_hash")) == tree


def missing_packages():
    """What the Python stage imports and this interpreter lacks."""
    tree = ev.tree_hash(ev.hash_files(ev.ROOT))
    needs = PYTHON_NEEDS if has_package(PACKAGE, tree) else (*PYTHON_NEEDS, "nanobind")
    return [name for name in needs if importlib.util.find_spec(name) is None]


def build_package():
    tree = ev.tree_hash(ev.hash_files(ev.ROOT))
    if has_package(PACKAGE, tree):
        return
    for command in (["cmake", "-S", ".", "-B", BUILD, "-Wno-dev", "-DRINGFOLD_PYTHON=on",
                     f"-DPython_EXECUTABLE={sys.executable}"],
                    ["cmake", "--build", BUILD, "--target", "_ringfold"]):
        if subprocess.run(command, cwd=ev.ROOT).returncode != 0:
            raise Failure("the build failed")
    with open(os.path.join(PACKAGE, "tree_hash"), "w", encoding="utf-8") as file:
        file.write(tree)


def stage_python(evidence, names):
    """Nothing is downloaded: what the build and the tests import has to be there."""
    missing = missing_packages()
    if missing:
        raise Failure(f"expected the Python packages {' '.join(PYTHON_NEEDS)} (and nanobind, to build), found no "
                      f"{' '.join(missing)}")
    build_package()
    # Where pytest-xdist is there, in several processes: torch.compile takes its time. Threads that spin would be in the
    # way of the other processes' threads.
    cpus = os.cpu_count() or 1
    count = max(1, min(8, cpus // 2)) if importlib.util.find_spec("xdist") else 1
    several = ["-n", str(count)] if count > 1 else []
    environment = {"PYTHONPATH": os.path.dirname(PACKAGE), "OMP_WAIT_POLICY": "passive",
                   "OMP_NUM_THREADS": str(max(1, cpus // count))}
    if os.path.exists(os.path.join(BIN, "ringfold")):
        environment["RINGFOLD_CLI"] = os.path.join(BIN, "ringfold")
    with tempfile.TemporaryDirectory() as folder:
        report_path = os.path.join(folder, "report.xml")
        tests = os.path.join("tests", "python")
        files = [os.path.join(tests, f"test_{name}.py") for name in names] or [tests]
        text, code = run_program(
            [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report_path}",
             *several, *files], environment)
        try:
            report = xml.etree.ElementTree.parse(report_path)
        except (OSError, xml.etree.ElementTree.ParseError):
            report = None
    result = pytest_result(report, code)
    if result["failed"]:
        print(text[-6000:])
    return evidence.suite("python", result)


def stage_peers(arguments):
    """ringfold beside other libraries; writes no evidence, and asks for it. A library given by --library is not built."""
    if not any(argument.split("=")[0] in ("--library", "-h", "--help") for argument in arguments):
        for command in (["cmake", "-S", ".", "-B", BUILD, "-Wno-dev", "-DRINGFOLD_CAPI=on"],
                        ["cmake", "--build", BUILD, "--target", "ringfold_c"]):
            if subprocess.run(command, cwd=ev.ROOT).returncode != 0:
                raise Failure("the shared library could not be built; docs/c-api.md says what it needs")
    return subprocess.run([sys.executable, "-B", os.path.join(ev.ROOT, "bench", "peers", "run.py"), *arguments]).returncode


STAGES = {"test": stage_test, "sanitize": stage_sanitize, "bench": stage_bench, "python": stage_python}


def main():
    if sys.argv[1:2] == ["peers"]:
        try:
            return stage_peers(sys.argv[2:])
        except Failure as failure:
            print(f"gpu: {failure}", file=sys.stderr)
            return 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", nargs="?", default="all", choices=["build", *STAGES, "peers", "all"])
    parser.add_argument("names", nargs="*", help="test programs, sanitizer tools, parts of benchmark keys, or files of "
                        "tests/python (torch, ops, ..)")
    parser.add_argument("--copy", help="also write the evidence to this file")
    options = parser.parse_args()
    if options.names and options.stage in ("build", "all"):
        parser.error(f"{options.stage} takes no names")
    signal.signal(signal.SIGTERM, end_groups)
    try:
        good = True
        if options.stage in ("build", "all"):
            stage_build()
        for name, stage in STAGES.items():
            if options.stage == "all" and name == "python" and missing_packages():
                say(f"python: left out, since this python3 has no {' '.join(missing_packages())}")
            elif options.stage in (name, "all"):
                good = stage(Evidence(options.copy), options.names) and good
    except Failure as failure:
        print(f"gpu: {failure}", file=sys.stderr)
        return 1
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
