"""Calls inside the package fit their functions, also where nothing here runs them: torch's operators without torch."""

import os
import subprocess
import sys

import pytest

import ringfold

CODES = ("call-arg", "call-overload", "name-defined", "attr-defined", "misc", "syntax")


def faults(package):
    done = subprocess.run([sys.executable, "-m", "mypy", "--ignore-missing-imports", "--no-incremental",
                           "--cache-dir", os.devnull, package], capture_output=True, text=True)
    assert "Found " in done.stdout or "Success" in done.stdout, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.endswith(tuple(f"[{code}]" for code in CODES))]


def test_calls_fit_their_functions(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    assert not faults(os.path.dirname(ringfold.__file__))
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def two(a, b): ...\n\ndef one(x: int) -> None:\n    two(x)\n")
    assert len(faults(str(wrong))) == 1  # it can fail
