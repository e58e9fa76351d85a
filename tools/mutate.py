#!/usr/bin/env python3
"""Shows that the contract tests can fail: plants faults, one at a time, and demands that the tests which should notice go red.

Works on a scratch copy of the tree, which it configures with a minimal target, and leaves the tree itself alone. A fault is a
textual edit at an anchor that must occur exactly once; a missing anchor is an error, so that the list keeps up with the code. Where
the Highway body and the plain reference have the same step in separate code, it is spoilt in both (the oracle or the fingerprints
must notice) and in each alone (the comparison of the two must notice). Faults of the CUDA kernels are planted in a second build, where
these run on the CPU (tests/emulation): --device cpu or cuda picks one.

usage: tools/mutate.py [--device cpu|cuda] [--only TEXT] [--list] [--anchors] [--keep DIR] [--jobs N]
Exit code 0: every fault was noticed. 1: a fault survived. 2: an anchor is missing, or the unspoilt tree does not build or pass.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
ARITH = "src/core/arith-inl.h"
REFERENCE = "src/ref/reference.cc"
PREPARE = "src/cpu/prepare-inl.h"
RECURRENCE = "src/cpu/recurrence-inl.h"
JUDGE = "src/core/judge.h"
PARAMS = "src/core/params.h"
HISTORY = "src/core/history.h"
LAYER = "src/cpu/layer-inl.h"
EXACT = "src/cuda/recurrence/exact.cuh"
LINES = "src/cuda/recurrence/exact_lines.cuh"
TILE = "src/cuda/recurrence/exact_tile.cuh"
FAST_HISTORY = "src/cuda/verify/fast_history.cuh"


@dataclass
class Edit:
    file: str
    anchor: str
    replacement: str


@dataclass
class Fault:
    """`shared`: edits of code that all implementations use; `cuda`: of a kernel; otherwise edits of the reference and of the Highway
    body."""
    name: str
    noticed_by: str  # contract lines (or Fingerprints) that must go red when all implementations have the fault
    shared: tuple = ()
    reference: tuple = ()
    highway: tuple = ()
    cuda: tuple = ()
    alone: str = "C4 C9"  # lines that notice a fault of one body

    @property
    def device(self):
        return "cuda" if self.cuda else "cpu"


FAULTS = [
    Fault("softplus in place of the safe gate", "C3 ACC",
          reference=(Edit(REFERENCE, "g[k] = p.safe_gate ? arith::safe_gate<S>", "g[k] = false ? arith::safe_gate<S>"),),
          highway=(Edit(PREPARE, "hn::Store(p.safe_gate ? safe_gate<Vector>", "hn::Store(false ? safe_gate<Vector>"),)),
    Fault("beta rounded to bf16", "C3 ACC",
          reference=(Edit(REFERENCE, "token->beta = arith::sigmoid<S>(load(p.b.dtype, p.b.at(0, row, t, at.hv), 0));",
                          "token->beta = arith::round_bf16<S>(arith::sigmoid<S>(load(p.b.dtype, p.b.at(0, row, t, at.hv), 0)));"),),
          highway=(Edit(PREPARE, "hn::Store(sigmoid<Vector>(hn::Load(d, b + t)), d, beta + t);",
                        "hn::Store(round_bf16<Vector>(sigmoid<Vector>(hn::Load(d, b + t))), d, beta + t);"),)),
    Fault("decay applied after the dot", "ACC",
          reference=(Edit(REFERENCE, "token.kd[k] = S::mul(token.k[k], token.decay[k]);", "token.kd[k] = token.k[k];"),),
          highway=(Edit(PREPARE, "hn::Store(hn::Mul(hn::Load(d, k + i), x), d, kd + i);", "hn::Store(hn::Load(d, k + i), d, kd + i);"),)),
    Fault("one token too few accepted", "C4",
          reference=(Edit(REFERENCE, "  const int64_t tokens = p.tokens(row);",
                          "  const int64_t tokens = p.tokens(row) - (p.num_accepted && p.tokens(row) > 0 ? 1 : 0);"),),
          highway=(Edit(RECURRENCE, "count = history + p.tokens(task.row);",
                        "count = history + p.tokens(task.row) - (p.num_accepted && p.tokens(task.row) > 0 ? 1 : 0);"),)),
    Fault("one token too few accepted in the conv window", "C4",
          shared=(Edit("src/core/conv_window.cc", "advance(p, layer, slot, dst, p.num_accepted[row], c0, c1, input);",
                       "advance(p, layer, slot, dst, p.num_accepted[row] > 0 ? p.num_accepted[row] - 1 : 0, c0, c1, input);"),)),
    Fault("a missing track store", "C4",
          reference=(Edit(REFERENCE, "if (track >= 0 && p.track_steps[row] == t) {", "if (track >= 0 && p.track_steps[row] == t && t > 0) {"),),
          highway=(Edit(RECURRENCE, "if (i == block.track_step) keep(block.track);",
                        "if (i == block.track_step && i > 0) keep(block.track);"),)),
    Fault("a missing track store in the conv window", "C4",
          shared=(Edit("src/core/conv_window.cc",
                       "if (const int64_t target = p.track_slot(row); target >= 0) {",
                       "if (const int64_t target = p.track_slot(row); target >= 0 && false) {"),)),
    Fault("one stale ring row", "C3 C4",
          reference=(Edit(REFERENCE, "  if (!p.records()) return;\n", "  if (!p.records() || at.t == 1) return;\n"),),
          highway=(Edit(PREPARE, "if (p.records() && !in_ring) Record(",
                        "if (p.records() && !in_ring && t - task.replay.rows != 1) Record("),)),
    Fault("a stale v in one ring row", "C3 C4",
          reference=(Edit(REFERENCE, "  std::memcpy(p.ring_v.at(0, at.ring, at.ring_row, at.hv),",
                          "  if (at.t != 2) std::memcpy(p.ring_v.at(0, at.ring, at.ring_row, at.hv),"),),
          highway=(Edit(PREPARE, "  std::memcpy(p.ring_v.at(0, task.ring, to, task.hv) +",
                        "  if (t - task.replay.rows != 2) std::memcpy(p.ring_v.at(0, task.ring, to, task.hv) +"),)),
    Fault("k normalised before recording", "C3",
          reference=(Edit(REFERENCE,
                          "    std::memcpy(p.ring_k.at(0, at.ring, at.ring_row, at.h), p.k.at(0, row, t, at.h), p.K * size_of(p.k.dtype));",
                          "    const float length = arith::l2_divisor<S>(arith::dot(token->k, token->k, p.K));\n"
                          "    for (int k = 0; k < p.K; ++k) {\n"
                          "      store(p.k.dtype, p.ring_k.at(0, at.ring, at.ring_row, at.h), k, token->k[k] / length);\n"
                          "    }"),),
          highway=(Edit(PREPARE, "  const float *k = tokens->k(t), *q = tokens->q(t);\n  float *decay",
                        "  if (p.records() && !in_ring) {\n"
                        "    StoreRow(p.k.dtype, tokens->k(t), K, p.ring_k.at(0, task.ring, task.replay.ring_row(t), task.h));\n"
                        "  }\n"
                        "  const float *k = tokens->k(t), *q = tokens->q(t);\n  float *decay"),)),
    Fault("the raw gate folded with another layer's A_log", "C4 C5",
          reference=(Edit(REFERENCE, "arith::exp_A<S>(p.A_log_of(at.layer)[at.hv])", "arith::exp_A<S>(p.A_log_of(0)[at.hv])"),),
          highway=(Edit(PREPARE, "p.A_log_of(task.layer)[task.hv]", "p.A_log_of(0)[task.hv]"),)),
    Fault("g recorded where the ring keeps a", "C3",
          reference=(Edit(REFERENCE, "p.raw_gate ? a : reinterpret_cast<const std::byte*>(g)",
                          "reinterpret_cast<const std::byte*>(g)"),),
          highway=(Edit(PREPARE, "std::memcpy(gate, p.a.at(0, row, at, task.hv), gates * size_of(p.a.dtype));",
                        "std::memcpy(gate, g, gates * size_of(p.a.dtype));"),)),
    Fault("one more accepted than the window holds", "C12",
          shared=(Edit(JUDGE, "accepted > p.longest || accepted > window)", "accepted > p.longest || accepted > window + 1)"),)),
    Fault("a free slot passes for a window of nothing", "C12",
          shared=(Edit(JUDGE, "if (!acquired) return RowStatus::slot_not_acquired;", ""),)),
    Fault("a released slot passes for a live one", "C13",
          shared=(Edit(JUDGE, "p.generations && (!acquired ||", "p.generations && (false ||"),)),
    Fault("a window that its slot has replaced elsewhere is committed", "C16",
          shared=(Edit(PARAMS, "slot_of_ring.at(layer, ring) == slot && ring_of_slot.at(layer, slot) == ring;",
                       "slot_of_ring.at(layer, ring) == slot;"),)),
    Fault("a window whose ring another slot took is committed", "C12",
          shared=(Edit(PARAMS, "slot_of_ring.at(layer, ring) == slot && ring_of_slot.at(layer, slot) == ring;",
                       "ring_of_slot.at(layer, slot) == ring;"),)),
    Fault("a ring found by the slot", "C3 C6",
          shared=(Edit(PARAMS, "return ring_ids ? ring_ids[row] : slot_ids[row];", "return slot_ids[row];"),)),
    Fault("a swapped head map", "ACC",
          reference=(Edit(REFERENCE, "take(p, {layer, row, ring, t, ring_row, hv / (p.HV / p.H), hv,",
                          "take(p, {layer, row, ring, t, ring_row, hv % p.H, hv,"),),
          highway=(Edit(RECURRENCE, "RunHead(p, {layer, row, slot, p.ring_of(row), hv / (p.HV / p.H), hv, v0, v1, replay}",
                        "RunHead(p, {layer, row, slot, p.ring_of(row), hv % p.H, hv, v0, v1, replay}"),)),
    Fault("a history read from the start of the ring", "C4",
          shared=(Edit(HISTORY, "  r.first = base;\n  r.rows = live;", "  r.first = 0;\n  r.rows = live;"),)),
    Fault("a folded history replayed again", "C16",
          shared=(Edit(HISTORY, "  if (is_folded(p.pending.at(layer, slot))) {\n    r.first = base;", "  if (false) {\n    r.first = base;"),)),
    Fault("no rounding where the commits of a history ended", "C4",
          shared=(Edit(HISTORY, "return (cuts >> ring_row(step) & 1) != 0;", "return false && (cuts >> ring_row(step) & 1) != 0;"),)),
    Fault("lazy is due one row too late", "C1",
          shared=(Edit(HISTORY, "live + tokens + h.max_window > h.ring_rows;", "live + tokens + h.max_window > h.ring_rows + 1;"),)),
    Fault("a history that is due and not stored", "C1",
          reference=(Edit(REFERENCE, "if (t == -1 && replay.to_checkpoint) store_state(", "if (t == -9 && replay.to_checkpoint) store_state("),),
          highway=(Edit(RECURRENCE, "if (block.checkpoint.data && i + 1 == block.history) keep(block.checkpoint);", ""),)),
    Fault("a layer's key heads with the conv weights of their neighbours", "C20",
          shared=(Edit("src/core/layer.h", "return (p.H + head) * p.K;", "return (p.H + (head + 1) % p.H) * p.K;"),)),
    Fault("a layer's norm before the rounding of the mixer's output", "C20",
          shared=(Edit("src/core/lower_layer.cc", "n.x.dtype = args.mixer_out;", "n.x.dtype = DType::f32;"),)),
    Fault("a layer's conv windows of q and k not moved", "C20",
          reference=(Edit(REFERENCE, "    if (p.conv.write_state) advance_conv_window(p.conv, piece);\n  }\n}",
                          "    if (p.conv.write_state && p.K < 0) advance_conv_window(p.conv, piece);\n  }\n}"),),
          highway=(Edit(LAYER, "for (int key = 0; p_.conv.write_state && key < task_.keys; ++key) {",
                        "for (int key = 0; p_.conv.write_state && key < 0; ++key) {"),),
          alone="C20"),
    Fault("a layer that looks at one of its two cursors", "C20",
          shared=(Edit(JUDGE, "return in_range && conv_pending ==", "return false && conv_pending =="),)),
    Fault("an fma of the state update split in two", "Fingerprints",
          shared=(Edit(ARITH, "return O::fma(u, k, O::mul(s, decay));", "return O::add(O::mul(u, k), O::mul(s, decay));"),)),
    Fault("an fma of the canonical sum split in two", "Fingerprints",
          shared=(Edit(ARITH, "return first ? O::mul(a, b) : O::fma(a, b, chain);",
                       "return first ? O::mul(a, b) : O::add(O::mul(a, b), chain);"),)),
    # Of the CUDA kernels.
    Fault("cuda.exact does not wait for a head's inputs", "C9_cuda_exact C1_cuda_exact C8_cuda_exact",
          cuda=(Edit(EXACT, "ptx::wait_copies<1>();  // the inputs of the next head are there",
                     "ptx::wait_copies<3>();  // the inputs of the next head are there"),)),
    Fault("cuda.exact does not wait until a buffer of token vectors has been read", "C9_cuda_exact C4_cuda_exact C8_cuda_exact",
          cuda=(Edit(LINES, "      ptx::barrier_wait(shared.read(buffer(at_head)), parity(at_head) ^ 1);\n", ""),)),
    Fault("cuda.exact never says that token vectors are made", "C9_cuda_exact",
          cuda=(Edit(LINES, "    ptx::barrier_arrive(shared.made(buffer(at_head)));\n", ""),)),
    Fault("cuda.exact reduces the two dots in another order", "C9_cuda_exact",
          cuda=(Edit(TILE, "x[r] = S::add(x[r], __shfl_xor_sync(kAllLanes, y[r], T::kLanes / 2 * T::kSide));",
                     "x[r] = S::add(x[r], __shfl_xor_sync(kAllLanes, y[r], T::kSide));"),)),
    Fault("cuda.exact takes the snapshot before the update", "C4_cuda_exact C9_cuda_exact",
          cuda=(Edit(EXACT, "p.write_state || takes_snapshots() ? -1 : stop;", "p.write_state ? -1 : stop;"),)),
    Fault("cuda.exact records the gates of part 0 of V in no ring", "C3_cuda_exact C9_cuda_exact",
          cuda=(Edit(LINES, "if (records() && blockIdx.y == 0) {", "if (records() && blockIdx.y == 1) {"),)),
    Fault("cuda.fast leaves out a KDA history's decay of the checkpoint", "C10_cuda_fast",
          cuda=(Edit(FAST_HISTORY,
                     "decayed_vectors(*reinterpret_cast<const float2*>(floats(T::kHistoryDecay) + first_k()));",
                     "decayed_vectors({1, 1});"),)),
    Fault("cuda.direct zeroes no outputs of refused rows", "C11_cuda_direct C12_cuda_direct",
          cuda=(Edit("src/cuda/recurrence/direct.cuh", "if (shared.status != RowStatus::bad_window_bounds) {",
                     "if (shared.status == RowStatus::bad_window_bounds) {"),)),
    Fault("cuda.direct convolves with the taps of a window in another order", "C20_cuda_direct",
          cuda=(Edit("src/cuda/layer/direct_layer.cuh", "local.taps[j - 1][channel]", "local.taps[kTaps - j][channel]"),)),
    Fault("cuda.direct does not wait for what a layer's conv has made", "C20_cuda_direct",
          cuda=(Edit("src/cuda/layer/direct_layer.cuh", "    ptx::meet(blockDim.x);\n    if (has_token)", "    if (has_token)"),
                Edit("src/cuda/layer/direct_layer.cuh", "void meet() const { ptx::meet(blockDim.x); }", "void meet() const {}"))),
    Fault("a product with the reciprocal in place of a division", "C9_cuda_exact",
          cuda=(Edit("src/cuda/common/warp.cuh", "x[i] = x[i] == 0 ? x[i] : q;", "x[i] = x[i] == 0 ? x[i] : S::mul(x[i], y);"),)),
    Fault("cuda.general leaves out the last row of V of a part", "C9_cuda_general",
          cuda=(Edit("src/cuda/recurrence/general.cu", "v1 = min(v0 + per_part, p.V);", "v1 = min(v0 + per_part, p.V - 1);"),)),
    Fault("the cursor of a layer's second half stays", "C18_cuda_general",
          cuda=(Edit("src/cuda/elementwise/cursors.cu", "    if (p.conv_pending) {", "    if (p.conv_pending && layer < 0) {"),)),
    Fault("an old input of a conv window comes twice", "C4_cuda_general C9_cuda_general",
          cuda=(Edit("src/cuda/elementwise/conv.cuh", ": from == 0 ? old[0] : from == 1 ? old[1] : old[2]",
                     ": from == 0 ? old[1] : from == 1 ? old[1] : old[2]"),)),
    Fault("the other gate", "C10_cuda_fast",
          cuda=(Edit("src/cuda/common/gate.cuh", "return p.safe_gate ?", "return !p.safe_gate ?"),)),
]


def variants(fault):
    """(label, edits, tests that must notice) of each way to plant the fault."""
    if fault.shared:
        return [("shared code", fault.shared, fault.noticed_by)]
    if fault.cuda:
        return [("CUDA", fault.cuda, fault.noticed_by)]
    return [("both bodies", fault.reference + fault.highway, fault.noticed_by),
            ("Highway alone", fault.highway, fault.alone),
            ("reference alone", fault.reference, fault.alone)]


def spoil(tree, edits):
    """Applies the edits; returns the original texts for restoring."""
    originals = {}
    for edit in edits:
        path = tree / edit.file
        text = path.read_text() if path.exists() else ""
        originals.setdefault(path, text)
        count = text.count(edit.anchor)
        if count != 1:
            restore(originals)
            raise LookupError(f"{edit.file}: anchor occurs {count} times, not once: {edit.anchor.strip()[:90]}")
        path.write_text(text.replace(edit.anchor, edit.replacement))
    return originals


def restore(originals):
    for path, text in originals.items():
        if path.exists():
            path.write_text(text)


def copy_tree(to):
    for name in ("CMakeLists.txt", "cmake", "include", "src", "tests/CMakeLists.txt", "tests/support", "tests/contract", "tests/emulation"):
        source, target = ROOT / name, to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy2(source, target)
    # One vector instruction set is enough here, and three times as fast to build.
    targets = to / "src/cpu/targets.h"
    text = targets.read_text()
    if "#define HWY_BASELINE_TARGETS HWY_SSSE3" in text and "avx2" in pathlib.Path("/proc/cpuinfo").read_text():
        text = text.replace("#define HWY_BASELINE_TARGETS HWY_SSSE3", "#define HWY_BASELINE_TARGETS HWY_AVX2")
        targets.write_text(text.replace("(HWY_AVX3_DL |", "(HWY_AVX3 | HWY_AVX3_DL |"))


def run(command, **kwargs):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **kwargs)


def configure(tree, build, device="cpu"):
    cuda = "emulated" if device == "cuda" else "off"
    return run(["cmake", "-G", "Ninja", "-S", tree, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
                "-DRINGFOLD_APPS=OFF", f"-DRINGFOLD_CUDA={cuda}", "-DRINGFOLD_CAPI=off"])


def compile_tests(build, jobs):
    return run(["cmake", "--build", build, "--target", "contract_test", "-j", str(jobs)])


def red_tests(build, wanted, device="cpu"):
    """Names of the tests among `wanted` that fail. On CUDA these are lines with implementations: C9_cuda_exact."""
    filters = [f"{w}.*" if w == "Fingerprints" else f"*/{w}_*" if device == "cpu" else f"*/{w}" for w in wanted.split()]
    # One multiprocessor: blocks have many heads, one after the other.
    env = dict(os.environ, RINGFOLD_CHECK_LEVEL="quick", RINGFOLD_EMULATED_SMS="1")
    result = run([build / "bin/contract_test", "--gtest_brief=1", "--gtest_filter=" + ":".join(filters)], env=env)
    red = set(re.findall(r"^\[  FAILED  \] (?:All/Contract\.Holds/)?([\w.]+)", result.stdout, re.MULTILINE))
    if result.returncode != 0 and not red:
        red = {f"exit code {result.returncode}"}  # a crash is noticed too
    return sorted(red), result.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="faults of the CUDA kernels alone, or all but those")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose name contains TEXT")
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    parser.add_argument("--anchors", action="store_true", help="check that every anchor is there, and stop")
    parser.add_argument("--keep", metavar="DIR", help="use DIR for the scratch copy, and leave it there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    args = parser.parse_args()
    chosen = [(f, *v) for f in FAULTS if args.only in f.name and args.device in (None, f.device) for v in variants(f)]
    if args.list:
        for fault, label, _, noticed_by in chosen:
            print(f"{fault.name} ({label}): {noticed_by}")
        return 0
    if not chosen:
        print(f"mutate: no fault is called like {args.only!r}", file=sys.stderr)
        return 2

    scratch = pathlib.Path(args.keep or tempfile.mkdtemp(prefix="ringfold-mutate-"))
    tree = scratch / "tree"
    try:
        if tree.exists():
            shutil.rmtree(tree)
        copy_tree(tree)
        for fault, label, edits, _ in chosen:  # all anchors first: cheap, and an error at once
            restore(spoil(tree, edits))
        if args.anchors:
            return 0
        survivors = 0
        for device in ("cpu", "cuda"):
            of_device = [c for c in chosen if c[0].device == device]
            if of_device:
                survivors += survivors_of(of_device, tree, scratch / f"build-{device}", device, args.jobs)
        print(f"{len(chosen) - survivors} of {len(chosen)} faults noticed")
        return 1 if survivors else 0
    except (LookupError, RuntimeError) as error:
        print(f"mutate: {error}", file=sys.stderr)
        return 2
    finally:
        if not args.keep:
            shutil.rmtree(scratch, ignore_errors=True)


def survivors_of(chosen, tree, build, device, jobs):
    """Plants the faults one by one; the number of those that no test notices."""
    for step in (lambda: configure(tree, build, device), lambda: compile_tests(build, jobs)):
        result = step()
        if result.returncode != 0:
            raise RuntimeError(f"the unspoilt tree does not build:\n{result.stdout[-4000:]}")
    red, output = red_tests(build, " ".join(sorted({w for c in chosen for w in c[3].split()})), device)
    if red:
        raise RuntimeError(f"red without any fault: {', '.join(red)}\n{output[-4000:]}")
    survivors = 0
    for i, (fault, label, edits, noticed_by) in enumerate(chosen, 1):
        start = time.monotonic()
        originals = spoil(tree, edits)
        result = compile_tests(build, jobs)
        if result.returncode != 0:
            raise RuntimeError(f"does not build with: {fault.name}\n{result.stdout[-4000:]}")
        red, _ = red_tests(build, noticed_by, device)
        restore(originals)
        survivors += not red
        verdict = f"noticed by {', '.join(red[:4])}{' ..' if len(red) > 4 else ''}" if red else "NOT NOTICED"
        print(f"[{i}/{len(chosen)}] {fault.name} ({label}): {verdict}  {time.monotonic() - start:.0f} s", flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(main())
