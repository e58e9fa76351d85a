#!/usr/bin/env python3
"""Runs what the documents promise: code blocks that carry a mark are compiled or executed.

A block is marked by an HTML comment on the line before it:

    <!-- ci: run -->      a shell block: run with `bash -eu` in the repository root; must exit 0
    <!-- ci: compile -->  a C++ or C99 block (a whole program): compiled against build/, then run; must exit 0.
                          C++ gets the static library, C the shared one
    <!-- ci: python -->   a Python block: run in a folder of its own by build/python/venv; must exit 0

README.md must have at least one block of each kind. Needs a finished build (./dev build release all) and, for Python,
the installed package (./dev python --install-only).
    tools/readme_check.py [FILE...]     default: README.md and docs/*.md
"""

import glob
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KINDS = ("run", "compile", "python")
MARKED = re.compile(r"<!-- ci: (run|compile|python) -->\s*\n```([a-z+]*)\n(.*?)\n```", re.DOTALL)


def run_block(_, text):
    return subprocess.run(["bash", "-eu", "-o", "pipefail", "-c", text], cwd=ROOT, stdin=subprocess.DEVNULL)


def flags(*arguments):
    return subprocess.run(["pkg-config", *arguments], capture_output=True, text=True, check=True).stdout.split()


def cuda_flags():
    """The CUDA runtime, where the library of build/ has kernels."""
    with open(os.path.join(ROOT, "build", "CMakeCache.txt"), encoding="utf-8") as file:
        runtime = re.search(r"^CUDA_cudart_static_LIBRARY:FILEPATH=(.+\.a)$", file.read(), re.MULTILINE)
    return [runtime.group(1), "-ldl", "-lrt"] if runtime else []


def compile_block(language, text):
    built = os.path.join(ROOT, "build", "src")
    library = os.path.join(built, "libringfold.so" if language == "c" else "libringfold.a")
    if not os.path.exists(library):
        sys.exit(f"readme_check: expected {os.path.relpath(library, ROOT)}, found none; build first")
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "example.c" if language == "c" else "example.cc")
        program = os.path.join(folder, "example")
        with open(source, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        warnings = ["-Wall", "-Wextra", "-Werror", "-I", os.path.join(ROOT, "include")]
        if language == "c":
            command = ["gcc", "-std=c99", "-pedantic", *warnings, source, library, f"-Wl,-rpath,{built}", "-o", program]
        else:
            command = ["g++", "-std=c++20", *warnings, source, library, *flags("--libs", "libhwy", "fmt"),
                       *cuda_flags(), "-fopenmp", "-pthread", "-o", program]
        compiled = subprocess.run(command)
        return compiled if compiled.returncode != 0 else subprocess.run([program], cwd=folder)


def python_block(_, text):
    python = os.path.join(ROOT, "build", "python", "venv", "bin", "python")
    if not os.path.exists(python):
        sys.exit("readme_check: expected build/python/venv, found none; ./dev python --install-only makes it")
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([python, "-c", text], cwd=folder, stdin=subprocess.DEVNULL)


RUNNERS = {"run": run_block, "compile": compile_block, "python": python_block}


def main():
    files = sys.argv[1:] or ["README.md"] + sorted(glob.glob("docs/**/*.md", root_dir=ROOT, recursive=True))
    failed, counts = 0, {}
    for name in files:
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            text = file.read()
        for match in MARKED.finditer(text):
            kind, language, block = match.groups()
            line = text[:match.start()].count("\n") + 1
            print(f"--- {name}:{line} ({kind})", flush=True)
            result = RUNNERS[kind](language, block)
            counts[name, kind] = counts.get((name, kind), 0) + 1
            if result.returncode != 0:
                failed += 1
                print(f"readme_check: {name}:{line}: exit code {result.returncode}")
        if text.count("<!-- ci: ") != sum(counts.get((name, kind), 0) for kind in KINDS):
            failed += 1
            print(f"readme_check: {name}: expected a code block after every ci mark, found a mark without one")
    for kind in KINDS:
        if "README.md" in files and ("README.md", kind) not in counts:
            failed += 1
            print(f"readme_check: README.md: expected a block marked 'ci: {kind}', found none")
    print(f"readme_check: {sum(counts.values())} blocks, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
