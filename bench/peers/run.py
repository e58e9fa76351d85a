#!/usr/bin/env python3
"""ringfold beside other libraries' kernels, on the same inputs in the same run, on one GPU. docs/peers.md says how.

    bench/peers/run.py [--peers DIR] [--library PATH] [--only PART,..] [--shapes PART,..] [--seconds N] [--warm N]

Every result is compared with fp64 before it is timed. Nothing is reported while the tests are red.
"""

import argparse
import dataclasses
import gc
import importlib
import os
import shlex
import subprocess
import sys
import time

import results
import shapes

HERE = os.path.dirname(os.path.abspath(__file__))
ADAPTERS = {"sglang": ("peer_sglang", "SGLang"), "replayssm": ("peer_replayssm", "ReplaySSM"),
            "fla": ("peer_fla", "Fla"), "atom": ("peer_atom", "Atom"), "flashinfer": ("peer_flashinfer", "FlashInfer")}
REPLAYS = 15
WARM_BATCHES = (1, 8, 128)  # what kernels are compiled for: some take other tiles for large batches
DECODE_AT = 4  # one token does not depend on T: it is measured along with windows of 4


def say(text):
    print(f"peers: {text}", flush=True)


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="a folder with folders sglang, replayssm, fla, atom, flashinfer, each a place "
                        "to import from; what is not there is looked for among what is installed")
    parser.add_argument("--library", help="libringfold.so.1, or its folder; default: that of build-gpu or build")
    parser.add_argument("--only", help="comma-separated parts of PEER:WORK, for example sglang:verify,atom")
    parser.add_argument("--shapes", help="comma-separated parts of shapes, for example gdn_f32_t4_b32")
    parser.add_argument("--seconds", type=float, default=600, help="after so many no further shape is begun")
    parser.add_argument("--warm", type=int, metavar="N", default=min(12, os.cpu_count() or 1),
                        help="compile kernels in N processes first; 0: as they come")
    parser.add_argument("--replays", type=int, default=REPLAYS, help="graph replays behind a median")
    parser.add_argument("--accuracy-tokens", type=int, default=4096, help="0: no accuracy")
    parser.add_argument("--out", help=f"the file to write; default {os.path.relpath(results.FOLDER, results.ROOT)}"
                        "/DATE-DEVICE.json")
    parser.add_argument("--unchecked", action="store_true",
                        help="for trying out: run although the tests are red or have not run. The file says so, and no "
                        "table is made of it")
    options = parser.parse_args(argv)
    if options.replays < 1 or options.warm < 0 or options.seconds <= 0 or options.accuracy_tokens < 0:
        parser.error("expected positive numbers")
    try:
        options.chosen = shapes.chosen(options.shapes)
    except ValueError as error:
        parser.error(str(error))
    return options


def load_peers(folder):
    """(peers that are there, entries of those that are not)."""
    from loading import Missing
    found, missing = [], []
    for name, (module, cls) in ADAPTERS.items():
        try:
            found.append(getattr(importlib.import_module(module), cls)(folder))
        except Missing as reason:
            missing.append({"peer": name, "reason": str(reason)})
        except ImportError as error:
            missing.append({"peer": name, "reason": f"cannot be imported: {error}"})
    return found, missing


def wanted(only, peer, work):
    return not only or any(part in f"{peer}:{work}" for part in only.split(","))


def works_of(peer, shape, only):
    """Its works for a shape that are to be measured."""
    return [work for work, reason in peer.works(shape).items() if reason is None and wanted(only, peer.name, work)
            and (not work.startswith("decode") or shape.T == DECODE_AT)]


class Bench:
    """A run: problems of the shape at hand, ringfold's times of it, and the file."""

    def __init__(self, options, ringfold, peers, out):
        self.options, self.ringfold, self.peers, self.out = options, ringfold, peers, out
        self.family, self.state = None, None

    def problem(self, shape, decode):
        from problem import Problem
        if self.family != dataclasses.replace(shape.family(), T=0):
            self.family, self.state = dataclasses.replace(shape.family(), T=0), None
        if decode:
            shape = dataclasses.replace(shape, T=1)
        made = Problem(shape, "cuda", state=self.state)
        self.state = made.state
        return made

    def time(self, subject, work, shape, problem):
        """(us, note), or None after having said why not."""
        import torch
        from loading import Missing
        from timing import measure
        job = None
        try:
            job = subject.job(work, problem)
            job.checked()
            us, _ = measure(job, self.options.replays)
            return us, job.note
        except Missing:
            return None
        except Exception as error:  # Refused, or whatever a peer's code raises: it must not end the run
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
            self.out.add("refused", {"peer": subject.name, "work": work, "shape": str(shape), "error": text})
            say(f"refused: {subject.name} {work} {shape}: {text}")
            if "CUDA error" in text or "AcceleratorError" in text:
                raise
            return None
        finally:
            del job
            torch.cuda.synchronize()

    def shape(self, shape):
        import torch
        problems = {False: self.problem(shape, False)}
        own = {}

        def problem_for(work):
            decode = work.startswith("decode")
            if decode not in problems:
                problems[decode] = self.problem(shape, decode)
            return problems[decode]

        for peer in self.peers:
            for work in works_of(peer, shape, self.options.only):
                theirs = self.time(peer, work, shape, problem_for(work))
                if theirs is None:
                    continue
                for name in shapes.BESIDE[work.partition("/")[0]]:
                    if name not in own:
                        own[name] = self.time(self.ringfold, name, shape, problem_for(name))
                    if own[name] is not None:
                        us, note = own[name]
                        self.out.add("rows", results.row(peer.name, peer.version, f"{work}:{name}", shape, theirs[0],
                                                         us, f"{theirs[1]}; {note}"))
        problems.clear()
        gc.collect()
        torch.cuda.empty_cache()


# ---------------------------------------------------------------------------------------------------------------------
# Compiling beforehand: processes of their own fill Triton's cache, each for one peer and one kind of shape at a time.
# `compiles_for_others` says whether a peer's kernels are found there.


def compile_one(folder, name, family, only, tokens):
    import accuracy
    import torch
    from loading import Missing
    from problem import Problem
    module, cls = ADAPTERS[name]
    peer = compile_one.peers.get(name)
    if peer is None:
        peer = compile_one.peers[name] = getattr(importlib.import_module(module), cls)(folder)
    if family.T == accuracy.T and tokens and wanted(only, name, "step_"):
        for case in accuracy.CASES:
            if case == (family.kind, family.H, family.HV, family.state):
                list(accuracy.of_peer(peer, case, "cuda", 1))
    state = None
    for B in WARM_BATCHES:
        shape = dataclasses.replace(family, B=B)
        for work in works_of(peer, shape, only):
            if B > 8 and not work.startswith("verify_states"):
                continue
            p = Problem(dataclasses.replace(shape, T=1) if work.startswith("decode") else shape, "cuda", cold_bytes=0,
                        state=state)
            state = p.state
            try:
                peer.job(work, p).check()
            except Missing:
                pass
            except Exception as error:  # said when it is measured
                print(f"peers: warming {name} {work} {shape}: {type(error).__name__}: {error}"[:300], flush=True)
    del state
    gc.collect()
    torch.cuda.empty_cache()


compile_one.peers = {}


def warm(options, peers):
    import concurrent.futures
    import multiprocessing
    families = list(dict.fromkeys(shape.family() for shape in options.chosen))
    tasks = [(peer.name, family) for family in families for peer in peers
             if peer.compiles_for_others and works_of(peer, dataclasses.replace(family, B=1), options.only)]
    begin = time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(options.warm, multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(compile_one, options.peers, name, family, options.only,
                               options.accuracy_tokens) for name, family in tasks]
        for task in running:
            try:
                task.result()
            except Exception as error:
                say(f"warming: {type(error).__name__}: {error}"[:300])
    say(f"compiled {len(tasks)} kinds in {time.monotonic() - begin:.0f} s")


def head_of(options, ringfold):
    import torch
    import triton
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                            text=True).stdout.split("\n")[0].strip()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True,
                            cwd=results.ROOT).stdout.strip()
    ev = results.evidence
    head = {"device": torch.cuda.get_device_name(), "driver": driver, "torch": torch.__version__,
            "triton": triton.__version__, "cuda": torch.version.cuda, "ringfold": ringfold.version,
            "commit": commit or os.environ.get("RINGFOLD_COMMIT", "unknown"),
            "tree_hash": ev.tree_hash(ev.hash_files(results.ROOT)),
            "command": shlex.join(["bench/peers/run.py", *sys.argv[1:]])}
    if options.unchecked:
        head["unchecked"] = True
    return head


def main(argv=None):
    begin = time.monotonic()
    options = arguments(argv)
    sys.path.insert(0, HERE)
    red = results.red()
    if red and not options.unchecked:
        for line in red:
            say(line)
        say("refused: nothing is reported while the tests are red")
        return 1
    import capi
    library = capi.find_library(options.library)
    if library is None:
        say(f"no libringfold.so.1 at {options.library}" if options.library else
            "no libringfold.so.1 in build-gpu/src or build/src; give --library")
        return 2
    try:
        import torch
    except ImportError:
        say("torch is not installed")
        return 2
    if not torch.cuda.is_available():
        say("torch sees no GPU; bench/peers/cpu.py is for CPUs")
        return 2
    import side_ringfold
    ringfold = side_ringfold.Ringfold(library)
    peers, missing = load_peers(options.peers)
    out = results.Results(options.out, head_of(options, ringfold))
    for entry in missing:
        out.add("missing", entry)
        say(f"missing: {entry['peer']}: {entry['reason']}")
    out.save()
    if options.warm:
        warm(options, peers)
    try:
        code = measure_all(options, ringfold, peers, out, begin)
    finally:
        out.save()
    say(f"{len(out.data['rows'])} rows, {len(out.data['refused'])} refused, {len(out.data['accuracy'])} accuracy "
        f"entries in {time.monotonic() - begin:.0f} s: {out.path}")
    return code


def measure_all(options, ringfold, peers, out, begin):
    if options.accuracy_tokens:
        accuracies(options, ringfold, peers, out, begin)
    bench = Bench(options, ringfold, peers, out)
    for i, shape in enumerate(options.chosen):
        if time.monotonic() - begin > options.seconds:
            say(f"{options.seconds:.0f} s are over; {len(options.chosen) - i} shapes were not begun")
            return 3
        at = time.monotonic()
        bench.shape(shape)
        say(f"{shape}: {time.monotonic() - at:.1f} s")
    return 0


def accuracies(options, ringfold, peers, out, begin):
    import accuracy
    for case in accuracy.CASES:
        sources = [(ringfold, accuracy.of_ringfold)] + [(peer, accuracy.of_peer) for peer in peers]
        for subject, entries in sources:
            if subject is not ringfold and not wanted(options.only, subject.name, "step_"):
                continue
            at = time.monotonic()
            try:
                for entry in entries(subject, case, "cuda", options.accuracy_tokens):
                    out.add("accuracy", entry)
            except Exception as error:
                text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
                out.add("refused", {"peer": subject.name, "work": "accuracy", "shape": "_".join(map(str, case)),
                                    "error": text})
                say(f"refused: accuracy of {subject.name}: {text}")
            say(f"accuracy of {subject.name}, {case[0]} {case[3]}: {time.monotonic() - at:.1f} s")


if __name__ == "__main__":
    sys.path.insert(0, HERE)
    sys.exit(main())
