#!/usr/bin/env python3
"""What was run on a GPU, and on which files: tests/gpu/evidence.json, written by tools/gpu.py.

    tools/evidence.py --check     say whether the file belongs to this tree, and what it says

Exits 1 if the file is missing, malformed or red (a failed test). A tree that changed since, and suites that were not
run, are said, and are no failure.
"""

import argparse
import hashlib
import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILE = "tests/gpu/evidence.json"
FOLDERS = ("bench", "cli", "include", "python", "src", "tests")
RESULTS = "bench/peers/results"  # what is measured after the tests, and decides nothing
TEXTS = ("device", "driver", "toolkit", "date", "commit", "tree_hash")
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
# What a whole run leaves. A file without some of them says nothing about them, good or bad.
SUITES = ("capi_test", "contract_test", "core_test", "pool_test", "trace_test", *(f"sanitizer_{tool}" for tool in SANITIZERS),
          "bench", "python")
SHORT = 12  # hex digits of a file's hash
LISTED = 30  # changed files named at most


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def hash_files(root):
    """{path: sha256} of every file that decides what a GPU run shows. Folders that tools keep for themselves (__pycache__,
    .mypy_cache, ..) do not."""
    hashes = {}
    for folder in FOLDERS:
        for place, folders, names in os.walk(os.path.join(root, folder)):
            folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".") and
                          os.path.relpath(os.path.join(place, name), root).replace(os.sep, "/") != RESULTS]
            for name in names:
                path = os.path.join(place, name)
                relative = os.path.relpath(path, root).replace(os.sep, "/")
                if relative != FILE:
                    with open(path, "rb") as file:
                        hashes[relative] = sha256(file.read())
    return hashes


def tree_hash(hashes):
    return sha256("".join(f"{path} {hashes[path]}\n" for path in sorted(hashes)).encode())


def short_hashes(hashes):
    return {path: hashes[path][:SHORT] for path in sorted(hashes)}


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def problems(evidence):
    """What is malformed, in words; empty if nothing is."""
    if not isinstance(evidence, dict):
        return [f"expected an object, found {type(evidence).__name__}"]
    found = [f"{key}: expected a text" for key in TEXTS if not isinstance(evidence.get(key), str)]
    found += [f"{key}: expected an object" for key in ("files", "suites", "bench")
              if not isinstance(evidence.get(key), dict)]
    if found:
        return found
    for name, suite in evidence["suites"].items():
        if not isinstance(suite, dict) or not is_count(suite.get("passed")) or not is_count(suite.get("failed")) or \
                not isinstance(suite.get("skipped"), list):
            found.append(f"suites.{name}: expected passed, failed and a list skipped")
    if not evidence["suites"]:
        found.append("suites: expected at least one")
    found += [f"bench.{key}: expected a number" for key, value in evidence["bench"].items()
              if not isinstance(value, (int, float)) or isinstance(value, bool)]
    return found


def red_suites(evidence):
    return [name for name, suite in evidence["suites"].items() if suite["failed"] > 0]


def missing_suites(evidence):
    return [name for name in SUITES if name not in evidence["suites"]]


def changes(evidence, hashes):
    """Lines "changed PATH", "added PATH", "removed PATH" since the evidence was taken."""
    now, then = short_hashes(hashes), evidence["files"]
    lines = []
    for path in sorted(set(now) | set(then)):
        if path not in then:
            lines.append(f"added   {path}")
        elif path not in now:
            lines.append(f"removed {path}")
        elif now[path] != then[path]:
            lines.append(f"changed {path}")
    return lines


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def describe(evidence, hashes):
    print(f"evidence: {evidence['device']}, driver {evidence['driver']}, CUDA {evidence['toolkit']}, "
          f"{evidence['date']}, commit {evidence['commit']}")
    if evidence["tree_hash"] == tree_hash(hashes):
        print("evidence: belongs to this tree")
    else:
        lines = changes(evidence, hashes)
        print(f"evidence: belongs to another tree; {len(lines)} files changed since:")
        for line in lines[:LISTED]:
            print(f"  {line}")
        if len(lines) > LISTED:
            print(f"  and {len(lines) - LISTED} more")
    for name, suite in sorted(evidence["suites"].items()):
        skipped = len(suite["skipped"])
        print(f"  {name:<24} {suite['passed']:>5} passed {suite['failed']:>4} failed {skipped:>4} skipped")
        for failure in suite.get("failures", []) if suite["failed"] else []:
            print(f"    {failure}")
    print(f"  benchmark rows: {sum(not key.endswith('_us') for key in evidence['bench'])}")


def check(root, path):
    try:
        evidence = load(path)
    except FileNotFoundError:
        print(f"evidence: there is no {path}; ./dev gpu all writes it on a machine with a GPU")
        return 1
    except (OSError, ValueError) as error:
        print(f"evidence: {path} cannot be read: {error}")
        return 1
    found = problems(evidence)
    if found:
        print(f"evidence: {path} is malformed: " + "; ".join(found))
        return 1
    describe(evidence, hash_files(root))
    red = red_suites(evidence)
    missing = missing_suites(evidence)
    if missing:
        print(f"evidence: incomplete; it says nothing about {', '.join(missing)}")
    if red:
        print(f"evidence: red: {', '.join(sorted(red))}")
    else:
        print("evidence: green, in what it has" if missing else "evidence: green")
    return 1 if red else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="what is done anyway")
    parser.add_argument("--root", default=ROOT, help="the tree")
    parser.add_argument("--file", help=f"the evidence; default {FILE} in the tree")
    options = parser.parse_args()
    return check(options.root, options.file or os.path.join(options.root, FILE))


if __name__ == "__main__":
    sys.exit(main())
