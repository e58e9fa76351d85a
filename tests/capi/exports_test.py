"""The shared library shows what c_api.h declares, and nothing else: no C++ symbol, no template, no typeinfo.

    exports_test.py libringfold.so c_api.h
"""

import re
import subprocess
import sys


def declared(header):
    with open(header, encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.DOTALL)
    return set(re.findall(r"\b(ringfold_\w+)\s*\(", text))


def exported(library):
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    symbols = {}
    for line in listed.splitlines():
        *_, kind, name = line.split()
        symbols[name.split("@")[0]] = kind
    return symbols


def main():
    library, header = sys.argv[1:]
    want, found = declared(header), exported(library)
    version = re.search(r"^#define RINGFOLD_ABI_VERSION (\d+)$", open(header, encoding="utf-8").read(), re.MULTILINE)[1]
    problems = []
    if len(want) < 40:
        problems.append(f"expected 40 functions or more in {header}, found {len(want)}")
    if found.pop(f"RINGFOLD_{version}", None) != "A":
        problems.append(f"expected the version node RINGFOLD_{version}")
    problems += [f"expected an exported function {name}, found none" for name in sorted(want - set(found))]
    problems += [f"{name} ({kind}): not declared in the header" for name, kind in sorted(found.items())
                 if name not in want]
    problems += [f"{name}: expected a function (T), found {kind}" for name, kind in sorted(found.items()) if kind != "T"]
    dynamic = subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout
    soname = re.search(r"SONAME.*\[(.*)\]", dynamic)
    if not soname or soname[1] != f"libringfold.so.{version}":
        problems.append(f"expected the soname libringfold.so.{version}, found {soname and soname[1]}")
    for problem in problems:
        print(f"exports: {problem}")
    print(f"exports: {len(want)} functions, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
