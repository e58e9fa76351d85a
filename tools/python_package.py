#!/usr/bin/env python3
"""Installs the Python package as a user would (`pip install .`, build isolation and all) and runs its tests.

    tools/python_package.py [--build FOLDER] [PYTEST ARGUMENTS]
    tools/python_package.py --install-only

It works in FOLDER/python (build/python): a virtual environment, and the build of the wheel, which takes over objects
from other builds where ccache is installed. The package is built without CUDA. Exit code 77, which ctest counts as
skipped: the package index cannot be reached (where CI is set, that is a failure).
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCES = ("include", "src", "python", "CMakeLists.txt", "pyproject.toml")
SKIP = 77


def stop(message, code=1):
    print(f"python_package: {message}", file=sys.stderr)
    sys.exit(code)


def fingerprint():
    """Of all that the wheel is made from, and of this interpreter."""
    digest = hashlib.sha256(sys.version.encode())
    for source in SOURCES:
        path = os.path.join(ROOT, source)
        files = [path] if os.path.isfile(path) else [
            os.path.join(folder, name) for folder, folders, names in os.walk(path)
            if not folders.sort() for name in sorted(names) if not name.endswith(".pyc")]
        for name in files:
            with open(name, "rb") as file:
                digest.update(os.path.relpath(name, ROOT).encode() + b"\0" + file.read() + b"\0")
    return digest.hexdigest()


def version_of(python):
    try:
        return subprocess.run([python, "-c", "import sys; print(sys.version)"], capture_output=True, text=True).stdout
    except OSError:
        return ""


def install(folder):
    """The environment's python, with the package of these sources in it."""
    venv, stamp = os.path.join(folder, "venv"), os.path.join(folder, "installed")
    python = os.path.join(venv, "bin", "python")
    wanted = fingerprint()
    if os.path.exists(python) and os.path.exists(stamp):
        with open(stamp, encoding="utf-8") as file:
            if file.read() == wanted:
                return python
    if os.path.exists(stamp):
        os.remove(stamp)
    own = [] if sys.version in version_of(python) else ["--clear"]  # of another interpreter: begin anew
    if subprocess.run([sys.executable, "-m", "venv", *own, venv]).returncode != 0:
        stop("no virtual environment could be made (Debian: python3-venv)")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    # What the build and the tests need: if even that is not to be had, nothing is wrong with the package.
    if subprocess.run([*pip, "scikit-build-core", "nanobind", "numpy", "ml_dtypes", "pytest", "mypy"]).returncode != 0:
        stop("the package index cannot be reached", 1 if os.environ.get("CI") else SKIP)
    settings = [f"build-dir={os.path.join(folder, 'wheel')}", "cmake.define.RINGFOLD_CUDA=off"]
    if not shutil.which("ccache"):
        settings.append("cmake.define.RINGFOLD_FEW_TARGETS=ON")
    options = [f"--config-settings={setting}" for setting in settings]  # -C only since pip 23.1
    if subprocess.run([*pip, "--force-reinstall", "--no-deps", *options, ROOT]).returncode != 0:
        stop("pip install failed")
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(wanted)
    return python


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="the build folder")
    parser.add_argument("--install-only", action="store_true")
    options, arguments = parser.parse_known_args()
    folder = os.path.join(os.path.abspath(options.build), "python")
    os.makedirs(folder, exist_ok=True)
    os.environ.pop("PYTHONPATH", None)
    python = install(folder)
    if options.install_only:
        return 0
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    cli = os.path.join(os.path.abspath(options.build), "bin", "ringfold")
    if os.path.exists(cli):
        environment["RINGFOLD_CLI"] = cli
    elif os.environ.get("CI"):
        stop(f"expected the program at {cli}, found none")
    return subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments], cwd=ROOT,
                          env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
