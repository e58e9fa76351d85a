#!/usr/bin/env python3
"""What ptxas says of the kernels: kept beside each object file, counted and judged.

    tools/ptxas_report.py record COMMAND...   run a compiler; its lines on kernels go to OBJECT.ptxas, the rest to stderr
    tools/ptxas_report.py count OBJECT...     print the number of kernel instances for each architecture
    tools/ptxas_report.py check OBJECT...     the same, and exit 1 if a tuned kernel spills registers on sm_90a

CMake puts `record` before ccache and nvcc (CMAKE_CUDA_COMPILER_LAUNCHER); what ccache replays of stderr is recorded
like what nvcc says. Sources have to be compiled with -Xptxas=-v.
"""

import os
import re
import subprocess
import sys
from collections import namedtuple

JUDGED = "sm_90a"  # what the tuned kernels are tuned for
TUNED = re.compile(r"exact_kernel|direct_kernel|direct_layer_kernel|fast")
KERNEL = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
# Of ptxas: "ptxas info : ..", and the line of numbers that follows the properties of a function.
REPORT = re.compile(r"ptxas info\s*:|\s+\d+ bytes stack frame,")

Kernel = namedtuple("Kernel", "name arch registers spill_stores spill_loads")


def parse(text):
    """The kernels of a report. Functions that are called, and not inlined, belong to the kernel named before them."""
    kernels = []
    for line in text.split("\n"):
        if found := KERNEL.search(line):
            kernels.append(Kernel(*found.groups(), 0, 0, 0))
        elif kernels and (found := SPILLS.search(line)) and not line.startswith("ptxas warning"):
            stores, loads = map(int, found.groups())
            last = kernels[-1]
            kernels[-1] = last._replace(spill_stores=last.spill_stores + stores, spill_loads=last.spill_loads + loads)
        elif kernels and (found := REGISTERS.search(line)):
            kernels[-1] = kernels[-1]._replace(registers=int(found.group(1)))
    return kernels


def spills(kernel):
    return kernel.spill_stores + kernel.spill_loads > 0


def is_tuned(kernel):
    return TUNED.search(kernel.name) is not None


def summary(kernels):
    """A line for each architecture."""
    for arch in sorted({kernel.arch for kernel in kernels}):
        of = [kernel for kernel in kernels if kernel.arch == arch]
        tuned = [kernel for kernel in of if is_tuned(kernel)]
        yield (f"{arch}: {len(of)} kernel instances, {len(tuned)} of them tuned, at most "
               f"{max(kernel.registers for kernel in of)} registers, {sum(map(spills, tuned))} tuned and "
               f"{sum(map(spills, of)) - sum(map(spills, tuned))} other instances spill")


def faults(kernels):
    for kernel in kernels:
        if kernel.arch == JUDGED and is_tuned(kernel) and spills(kernel):
            yield (f"{kernel.name} for {kernel.arch}: {kernel.registers} registers, {kernel.spill_stores} bytes of "
                   f"spill stores, {kernel.spill_loads} of spill loads; expected none")


# ---------------------------------------------------------------------------------------------------------------------


def report_path(obj):
    return obj + ".ptxas"


def record(command):
    outputs = [command[i + 1] for i, word in enumerate(command[:-1]) if word == "-o"]
    done = subprocess.run(command, stderr=subprocess.PIPE)
    lines = done.stderr.decode(errors="replace").splitlines(keepends=True)
    kept = [line for line in lines if REPORT.match(line)]
    sys.stderr.write("".join(line for line in lines if not REPORT.match(line)))
    if done.returncode == 0 and outputs and outputs[-1].endswith(".o"):
        if kept:
            with open(report_path(outputs[-1]), "w", encoding="utf-8") as file:
                file.write("".join(kept))
        elif os.path.exists(report_path(outputs[-1])):
            os.remove(report_path(outputs[-1]))
    return done.returncode


def read(objects):
    kernels = []
    for obj in objects:
        try:
            with open(report_path(obj), encoding="utf-8") as file:
                kernels += parse(file.read())
        except OSError:
            sys.exit(f"ptxas_report: {obj} has no report; was it compiled through `record`, with -Xptxas=-v?")
    if not kernels:
        sys.exit("ptxas_report: expected kernels in the reports, found none")
    return kernels


def main():
    act, arguments = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    if act == "record" and arguments:
        return record(arguments)
    if act not in ("count", "check") or not arguments:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    if act == "count":  # the build's last line; a report that is missing is no reason to fail a build
        arguments = [obj for obj in arguments if os.path.exists(report_path(obj))]
        if not arguments:
            return 0
    kernels = read(arguments)
    found = list(faults(kernels)) if act == "check" else []
    print(f"{len(kernels)} kernel instances", *summary(kernels), *found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
