#!/usr/bin/env python3
"""Checks the hard rules that a script can check (CONTRIBUTING.md lists them).

    tools/lint.py              check the tree; exit 1 and one line per finding
    tools/lint.py --self-test  show that every rule can fail, and passes what it should pass
"""

import argparse
import os
import re
import subprocess
import sys
from collections import namedtuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CODE = (".h", ".c",  # C: the example and the header test of the C ABI
        ".cc", ".cu", ".cuh")
SCRIPTS = (".py", ".sh", ".cmake")
BUILD_NAMES = ("CMakeLists.txt", "CMakePresets.json", "dev", "run")
SELF = "tools/lint.py"

Finding = namedtuple("Finding", "path line rule message fatal")

# ---------------------------------------------------------------------------------------------------------------------
# Text helpers


def blank(match):
    """Spaces in place of a comment or string, line ends kept, so that line numbers stay."""
    return re.sub(r"[^\n]", " ", match.group(0))


TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)


def code_only(text):
    """C++ without comments and literals."""
    return TOKEN.sub(blank, text)


def without_comments(text):
    return TOKEN.sub(lambda m: blank(m) if m.group(0).startswith("/") else m.group(0), text)


def is_code(path):
    return path.endswith(CODE)


def is_build(path):
    return path.endswith((".cmake",)) or os.path.basename(path) in BUILD_NAMES


def is_text(path):
    return is_code(path) or path.endswith(SCRIPTS + (".md",)) or is_build(path)


def is_library(path):
    return path.startswith(("src/", "include/")) and is_code(path)


def matches(path, text, pattern, rule, message, fatal=True):
    for number, line in enumerate(text.split("\n"), 1):
        found = re.search(pattern, line)
        if found:
            yield Finding(path, number, rule, message.format(found.group(0).strip()), fatal)


# ---------------------------------------------------------------------------------------------------------------------
# Rules. Each takes (path, text) and yields findings.

# Folder -> prefixes (or whole names) that its files may include with quotes. The first entry whose prefix fits counts.
ARROWS = [
    ("include/", ["ringfold/"]),
    ("src/core/", ["ringfold/", "core/"]),
    ("src/ref/oracle", ["ringfold/types.h", "ref/oracle"]),
    ("src/ref/", ["ringfold/", "core/", "ref/reference"]),
    ("src/cpu/", ["ringfold/", "core/", "cpu/", "hwy/"]),
    ("src/cuda/", ["ringfold/", "core/", "cuda/"]),
    ("src/dispatch/", ["ringfold/", "core/", "ref/reference", "cpu/", "cuda/", "dispatch/"]),
    ("src/pool/", ["ringfold/", "core/", "pool/", "dispatch/commit_step.h", "dispatch/select.h"]),
    ("src/capi/", ["ringfold/", "capi/"]),
    ("src/io/", ["ringfold/", "io/"]),
    ("src/check/", ["ringfold/", "check/", "ref/oracle.h", "core/check_view.h", "core/device_memory.h",
                    "dispatch/select.h"]),
    ("engine/", ["ringfold/", "io/", "engine/", "core/parallel.h", "hwy/"]),
    # The twins convert as the kernels do and are compiled for the same instruction sets. Tensors lie on the device.
    ("bench/", ["ringfold/", "bench/", "core/check_view.h", "core/device_memory.h", "core/parallel.h",
                "core/scalar_io.h", "cpu/targets.h", "cuda/common/check.h", "dispatch/select.h", "hwy/"]),
    ("cli/", ["ringfold/", "io/", "check/", "engine/", "bench/", "cli/"]),
    ("python/src/", ["ringfold/", "check/check.h", "python/src/"]),
]
ORACLE_SYSTEM = re.compile(r"<[a-z_0-9]+>")  # standard headers only


def rule_arrows(path, text):
    if not is_code(path):
        return
    allowed = next((targets for prefix, targets in ARROWS if path.startswith(prefix)), None)
    if allowed is None:
        return
    for number, line in enumerate(text.split("\n"), 1):
        found = re.match(r'\s*#\s*include\s+(["<][^">]+[">])', line)
        if not found:
            continue
        name = found.group(1)
        if name.startswith("<"):
            if path.startswith("src/ref/oracle") and not ORACLE_SYSTEM.fullmatch(name):
                yield Finding(path, number, "arrows", f"the oracle includes {name}; allowed: standard headers", True)
            if path.startswith("include/") and re.search(r"cuda|hwy|fmt|nlohmann", name):
                yield Finding(path, number, "arrows", f"a public header includes {name}", True)
        elif not name.strip('"').startswith(tuple(allowed)):
            yield Finding(path, number, "arrows", f"includes {name}; allowed from here: {', '.join(allowed)}", True)


def rule_silent(path, text):
    if is_library(path):
        pattern = (r"\b(?<!n)(printf|fprintf|vprintf|puts|fputs|putchar|perror|abort|_?exit|quick_exit|terminate|assert"
                   r"|HWY_ABORT|HWY_ASSERT)\s*\(|\bstd::(cout|cerr|clog)\b|\bfmt::print\b")
        yield from matches(path, code_only(text), pattern, "silent", "the library never prints, aborts or exits: {}")


def rule_throw(path, text):
    if is_library(path) and not path.startswith("src/check/"):  # the conformance kit catches what its own bodies throw
        yield from matches(path, code_only(text), r"\bthrow\b", "throw", "the library reports errors as Status: {}")


def rule_todo(path, text):
    if (is_code(path) or path.endswith(SCRIPTS) or is_build(path)) and path != SELF:
        yield from matches(path, text, r"\b(TODO|FIXME|XXX|HACK)\b", "todo", "finish it, or file an issue: {}")


COMMENTED_CODE = re.compile(
    r"^\s*//+\s*(?:"
    r"(?:if|for|while|switch)\s*\(.*\)\s*\{?|return\b[^.]*;|#\s*(?:include|define|if|endif)\b.*|\}\s*(?:else\b.*)?"
    r"|[\w:.>\[\]-]+\s*(?:[-+*/]?=)\s*[^=].*;|[\w:.>-]+\(.*\);|(?:auto|const|int|float|double|std::\w+)\b.*[;{]"
    r")\s*$")


def rule_dead_code(path, text):
    if is_code(path):
        yield from matches(path, text, COMMENTED_CODE, "dead-code", "commented-out code: {}")


def rule_budget(path, text):
    if not (is_library(path) or (is_code(path) and path.startswith(("engine/", "cli/", "bench/", "python/")))):
        return
    lines = text.count("\n")
    if lines > 600:
        yield Finding(path, lines, "budget", f"{lines} lines; split it (at most 600, aim at 400)", True)
    elif lines > 400:
        yield Finding(path, lines, "budget", f"{lines} lines; aim at 400", False)


PTX = "src/cuda/common/ptx.cuh"


def rule_asm(path, text):
    if is_code(path) and path != PTX:
        yield from matches(path, code_only(text), r"\b(asm|__asm__|__asm)\b", "asm", f"{{}} belongs in {PTX}")


def rule_launch(path, text):
    if path.startswith("src/cuda/") and is_code(path):
        yield from matches(path, code_only(text), r"<<<", "launch", "{} is no launch that starts early and returns its "
                           "error; expected start<kernel>(..) of common/start.cuh")


KERNEL = re.compile(r"__global__[^{;]*?\{\s*", re.DOTALL)


def rule_kernel(path, text):
    """A kernel that start() starts early and that does not wait reads what is still being written."""
    if not path.startswith("src/cuda/") or not is_code(path):
        return
    code = code_only(text)
    for found in KERNEL.finditer(code):
        if not code.startswith("ptx::begin_kernel();", found.end()):
            yield Finding(path, code.count("\n", 0, found.start()) + 1, "kernel",
                          "expected ptx::begin_kernel() as the kernel's first statement", True)


def rule_tabs(path, text):
    if is_text(path):
        yield from matches(path, text, r"\t", "tabs", "a tab; use spaces")


def rule_paths(path, text):
    if is_text(path) and path != SELF:
        yield from matches(path, text, r"(?<![\w.$}])/(?:work|tmp|home|root)/", "paths", "a path of one machine: {}")


def rule_fast_math(path, text):
    if (is_code(path) or is_build(path) or path.endswith(SCRIPTS)) and path != SELF:
        yield from matches(path, text, r"-ffast-math|-Ofast|-funsafe-math\S*|-ffp-contract=fast|--use_fast_math",
                           "fast-math", "{} changes bits")


def rule_width(path, text):
    if not is_code(path):
        return
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > 120 and "http" not in line:
            yield Finding(path, number, "width", f"{len(line)} columns; at most 120", True)


def rule_space(path, text):
    if is_text(path):
        yield from matches(path, text, r"[ ]+$", "space", "white space at the end of the line")
        if text and not text.endswith("\n"):
            yield Finding(path, text.count("\n") + 1, "space", "no line end at the end of the file", True)


def rule_header(path, text):
    # A file named -inl is included once per instruction set.
    if path.endswith((".h", ".cuh")) and not path.endswith("-inl.h") and "#pragma once" not in text:
        yield Finding(path, 1, "header", "no #pragma once", True)
    if is_code(path):
        yield from matches(path, code_only(text), r"\busing\s+namespace\s+std\b", "header", "{}")


RULES = [rule_arrows, rule_silent, rule_throw, rule_todo, rule_dead_code, rule_budget, rule_asm, rule_launch, rule_kernel, rule_tabs,
         rule_paths, rule_fast_math, rule_width, rule_space, rule_header]


def lint(path, text):
    return [finding for rule in RULES for finding in rule(path, text)]


# ---------------------------------------------------------------------------------------------------------------------
# The tree


def files_of_tree():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        sys.exit("lint: not a git checkout")
    return sorted(path for path in listed.stdout.split("\n") if path and os.path.isfile(os.path.join(ROOT, path)))


def check_tree():
    findings, count = [], 0
    for path in files_of_tree():
        if not is_text(path):
            continue
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            findings += lint(path, file.read())
        count += 1
    for finding in findings:
        kind = "error" if finding.fatal else "warning"
        print(f"{finding.path}:{finding.line}: {kind}: [{finding.rule}] {finding.message}")
    fatal = sum(finding.fatal for finding in findings)
    print(f"lint: {count} files, {fatal} errors, {len(findings) - fatal} warnings")
    return 1 if fatal else 0


# ---------------------------------------------------------------------------------------------------------------------
# Self-test: (rule, path, text that must be found, text that must not)

CASES = [
    ("arrows", "src/core/a.cc", '#include "cpu/b.h"\n', '#include "core/b.h"\n#include <vector>\n'),
    ("arrows", "src/cpu/a.cc", '#include "ref/reference.h"\n', '#include "core/b.h"\n'),
    ("arrows", "src/ref/reference.cc", '#include "cpu/b.h"\n', '#include "core/b.h"\n'),
    ("arrows", "src/ref/reference.cc", '#include "ref/oracle.h"\n', '#include "ref/reference.h"\n'),
    ("arrows", "src/cuda/a.cu", '#include "cpu/b.h"\n', '#include "cuda/common/ptx.cuh"\n'),
    ("arrows", "src/cuda/a.cc", '#include "dispatch/select.h"\n', '#include "core/b.h"\n'),
    ("arrows", "src/cpu/a.cc", '#include "cuda/common/device.h"\n', '#include "cpu/b.h"\n'),
    ("arrows", "src/dispatch/a.cc", '#include "pool/b.h"\n', '#include "cpu/b.h"\n'),
    ("arrows", "src/pool/a.cc", '#include "cuda/pool.h"\n', '#include "dispatch/select.h"\n#include "pool/b.h"\n'),
    ("arrows", "src/pool/a.cc", '#include "dispatch/run.h"\n', '#include "dispatch/commit_step.h"\n'),
    ("arrows", "src/ref/oracle.cc", '#include "core/arith.h"\n', '#include "ringfold/types.h"\n#include <cmath>\n'),
    ("arrows", "src/ref/oracle.cc", "#include <fmt/core.h>\n", "#include <cmath>\n"),
    ("arrows", "include/ringfold/a.h", "#pragma once\n#include <cuda_runtime.h>\n", "#pragma once\n#include <span>\n"),
    ("arrows", "engine/a.cc", '#include "core/params.h"\n', '#include "ringfold/ringfold.h"\n#include "io/b.h"\n'),
    ("arrows", "cli/a.cc", '#include "dispatch/b.h"\n', '#include "check/check.h"\n'),
    ("arrows", "python/src/a.cc", '#include "core/b.h"\n', '#include "check/check.h"\n#include "ringfold/pool.h"\n'),
    ("arrows", "src/io/a.cc", '#include "core/b.h"\n', '#include "io/b.h"\n'),
    ("arrows", "src/capi/a.cc", '#include "core/b.h"\n', '#include "capi/a.h"\n#include "ringfold/b.h"\n'),
    ("width", "examples/a.c", "/* " + "x" * 118 + " */\n", "/* x */\n"),
    ("silent", "src/core/a.cc", 'void f() { printf("x"); }\n', '// printf("x")\nint n = snprintf(b, 1, "abort()");\n'),
    ("silent", "src/pool/a.cc", "void f() { assert(x); }\n", "static_assert(sizeof(int) == 4);\n"),
    ("silent", "src/io/a.cc", "void f() { std::abort(); }\n", "void f() { exit_code(); }\n"),
    ("silent", "src/check/a.cc", "void f() { std::cerr << 1; }\n", "std::string s = fmt::format(x);\n"),
    ("throw", "src/pool/a.cc", "void f() { throw 1; }\n", "// may throw\ntry { f(); } catch (const X&) {}\n"),
    ("todo", "engine/a.cc", "// TO" + "DO later\n", "// done\n"),
    ("dead-code", "src/cpu/a.cc", "// x = y + 1;\n", "// x = y + 1, as in the paper; then z\n"),
    ("dead-code", "cli/a.cc", "  // if (a) {\n", "  // if a row is null, skip it\n"),
    ("dead-code", "tests/a.cc", "  // run(a, b);\n", "  // run(a, b) is called twice here\n"),
    ("dead-code", "tests/a.cc", "  // return x;\n", "  // return the slot; it is free. See above;\n"),
    ("budget", "src/cpu/a.cc", "int x;\n" * 601, "int x;\n" * 400),
    ("budget", "cli/a.cc", "int x;\n" * 401, "int x;\n" * 399),
    ("budget", "python/src/a.cc", "int x;\n" * 601, "int x;\n" * 400),
    ("asm", "src/cuda/recurrence/a.cuh", 'void f() { asm("x"); }\n', "int asm_count;  // no asm here\n"),
    ("asm", "src/cuda/common/warp.cuh", 'void f() { asm volatile("x"); }\n', "void f() { ptx::wait_copies<0>(); }\n"),
    ("asm", "src/cuda/recurrence/ptx.cuh", 'void f() { __asm__("x"); }\n', 'const char* s = "asm";\n'),
    ("launch", "src/cuda/a.cu", "k<<<1, 32>>>(p);\nreturn {};\n", 'return start<k>("k", 1, 32, 0, stream, p);\n'),
    ("launch", "src/cuda/a/b.cuh", 'k<<<1, 1>>>();\nreturn check(cudaGetLastError(), "k");\n',
     "// k<<<1, 1>>>() is launched elsewhere\n"),
    ("kernel", "src/cuda/a.cu", "__global__ void k(int* p) {\n  *p = 1;\n  ptx::begin_kernel();\n}\n",
     "__global__ void __launch_bounds__(32)\n    k(int* p) {\n  ptx::begin_kernel();\n  *p = 1;\n}\n"),
    ("kernel", "src/cuda/a.cuh", "template <class T>\n__global__ void k(T t) {}\n",
     "__global__ void k(int);\nvoid f() { g(); }\n"),
    ("tabs", "cli/a.cc", "\tint x;\n", "    int x;\n"),
    ("paths", "docs/a.md", "see /wo" + "rk/main\n", "see work/main and build/tmp/x\n"),
    ("paths", "tests/cli/a.py", 'open("/t' + 'mp/x")\n', "tempfile.mkdtemp()\n"),
    ("fast-math", "CMakeLists.txt", "add_compile_options(-ffast-math)\n", "add_compile_options(-fno-fast-math)\n"),
    ("width", "cli/a.cc", "// " + "x" * 118 + "\n", "// " + "x" * 117 + "\n"),
    ("space", "cli/a.cc", "int x; \n", "int x;\n"),
    ("space", "docs/a.md", "no end", "end\n"),
    ("header", "src/core/a.h", "int x;\n", "#pragma once\nint x;\n"),
    ("header", "cli/a.cc", "using namespace std;\n", "using namespace ringfold;\n"),
]


def self_test():
    failures = 0
    for rule, path, bad, good in CASES:
        if rule not in {finding.rule for finding in lint(path, bad)}:
            print(f"self-test: [{rule}] misses {bad[:60]!r} in {path}")
            failures += 1
        found = [finding for finding in lint(path, good) if finding.rule == rule]
        if found:
            print(f"self-test: [{rule}] refuses {good[:60]!r} in {path}")
            failures += 1
    covered = {rule for rule, *_ in CASES}
    named = {name.replace("rule_", "").replace("_", "-") for name in (rule.__name__ for rule in RULES)}
    for rule in sorted(named - covered):
        print(f"self-test: [{rule}] has no case")
        failures += 1
    print(f"lint self-test: {len(CASES)} cases, {failures} failures")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self-test", action="store_true", help="check the rules themselves")
    return self_test() if parser.parse_args().self_test else check_tree()


if __name__ == "__main__":
    sys.exit(main())
