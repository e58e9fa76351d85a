#!/usr/bin/env python3
"""ringfold on the CPU beside ggml's gated delta net operator and torch's eager reference (transformers).

    bench/peers/cpu.py [--ggml DIR] [--library PATH] [--shapes PART,..] [--threads N] [--repeats N]

DIR is a ggml tree that was built in DIR/build; the program that calls it is compiled here. All is fp32. Everybody's
results are compared with ringfold's before anything is timed, and caches are cold: calls go round copies of the state.
"""

import argparse
import ctypes
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import capi
import results
from capi import constant, make
from shapes import LOWER_BOUND, K, V, parse

SHAPES = ("gdn_f32_t1_b1_h16x32", "gdn_f32_t4_b1_h16x32", "gdn_f32_t8_b1_h16x32", "gdn_f32_t1_b16_h16x32",
          "gdn_f32_t4_b16_h16x32", "gdn_f32_t8_b16_h16x32", "kda_f32_t1_b1_h32x32", "kda_f32_t4_b1_h32x32",
          "kda_f32_t1_b16_h32x32", "kda_f32_t4_b16_h32x32")
COLD_BYTES = 256e6  # of states: several last-level caches
LONG = 3.0  # seconds for one row of somebody slow
# |difference| / |ringfold|: two sides, at most 8 tokens, two sums of 128 terms each, 2^-24 a term are 2.4e-4 if all errors
# have one sign, which they have not.
TOLERANCE = 1e-4


class Problem:
    """Random inputs of a shape in NumPy, and what a caller outside of ringfold has to compute first."""

    def __init__(self, shape, numpy, seed=1):
        self.shape, self.np = shape, numpy
        random = numpy.random.default_rng(seed)

        def normal(*size):
            return random.standard_normal(size, dtype=numpy.float32)

        B, T, H, HV = shape.B, shape.T, shape.H, shape.HV
        per_key = (K,) if shape.kind == "kda" else ()
        self.q, self.k, self.v = normal(B, T, H, K), normal(B, T, H, K), normal(B, T, HV, V)
        self.a, self.b = normal(B, T, HV, *per_key), normal(B, T, HV)
        self.A_log, self.dt_bias = normal(HV) * 0.5, normal(HV, *per_key) - 1
        self.state = normal(B, HV, V, K) * 0.1
        self.sets = max(2, int(-(-COLD_BYTES // self.state.nbytes)))
        A, x = numpy.exp(self.A_log), self.a + self.dt_bias
        self.g = (LOWER_BOUND / (1 + numpy.exp(-A[:, None] * x)) if shape.kind == "kda" else
                  -A * numpy.log1p(numpy.exp(x))).astype(numpy.float32)
        self.beta = (1 / (1 + numpy.exp(-self.b))).astype(numpy.float32)
        self.qn, self.kn = (x / numpy.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (self.q, self.k))


class Ringfold:
    def __init__(self, library, p):
        np, s = p.np, p.shape
        self.p, self.library, self.at = p, library, 0
        self.states = np.empty((p.sets * s.B, *p.state.shape[1:]), np.float32)
        self.states.reshape(p.sets, -1)[:] = p.state.reshape(1, -1)
        self.ids = [np.arange(s.B, dtype=np.int32) + i * s.B for i in range(p.sets)]
        self.out = np.empty_like(p.v)
        rows = (p.sets * s.B, s.T)
        per_key = (K,) if s.kind == "kda" else ()
        self.ring = make("ring", k=np.zeros((*rows, s.H, K), np.float32), v=np.zeros((*rows, s.HV, V), np.float32),
                         g=np.zeros((*rows, s.HV, *per_key), np.float32), beta=np.zeros((*rows, s.HV), np.float32))
        self.accepted = np.full(s.B, s.accepted, np.int32)
        self.mixer = make("mixer", kind=constant(s.kind), A_log=p.A_log, dt_bias=p.dt_bias,
                          lower_bound=LOWER_BOUND if s.kind == "kda" else 0.0)

    def window(self, set_):
        p = self.p
        return make("window", q=p.q, k=p.k, v=p.v, a=p.a, b=p.b, slot_ids=self.ids[set_])

    def verify(self, set_, snapshots=None):
        self.library.call("verify", make("verify_args", mixer=self.mixer, window=self.window(set_), state=self.states,
                                         ring=self.ring, out=self.out, snapshots=snapshots))

    def decode(self, set_):
        self.library.call("decode", make("decode_args", mixer=self.mixer, window=self.window(set_), state=self.states,
                                         out=self.out))

    def step_on_commit(self, set_):
        self.verify(set_)
        self.library.call("fold", make("fold_args", state=self.states, ring=self.ring, slot_ids=self.ids[set_],
                                       num_accepted=self.accepted))

    def reference(self):
        """Outputs and the states after each token, [B, T, ..]."""
        s = self.p.shape
        snapshots = self.p.np.empty((s.B, s.T, s.HV, V, K), self.p.np.float32)
        self.verify(0, snapshots)
        return self.out.copy(), snapshots

    def us(self, work, repeats):
        call = {"verify_exact": self.verify}.get(work) or getattr(self, work)
        return timed(lambda i: call(i % self.p.sets), repeats)


def typical(times):
    """The best of the medians of three parts: what others do on the machine comes in bursts."""
    third = max(1, len(times) // 3)
    return min(statistics.median(times[i * third:(i + 1) * third]) for i in range(min(3, len(times))))


def timed(call, repeats):
    """us of so many calls, after two; of fewer, but at least six, where they take long."""
    times, start = [], time.perf_counter()
    while len(times) < repeats + 2 and (len(times) < 8 or time.perf_counter() - start < LONG):
        begin = time.perf_counter()
        call(len(times))
        times.append(1e6 * (time.perf_counter() - begin))
    return typical(times[2:])


def relative(np, x, reference):
    difference = np.linalg.norm((x.astype(np.float64) - reference).ravel())
    return float(difference / np.linalg.norm(reference.astype(np.float64).ravel()))


class Refused(Exception):
    pass


def compare(np, pairs):
    for name, x, reference in pairs:
        error = relative(np, x, reference)
        if not error <= TOLERANCE:
            raise Refused(f"{name}: difference {error:.2e}, tolerance {TOLERANCE:.0e}")


class Ggml:
    """Its operator, called by ggml_gdn.cc: T states, the last one first, which is what llama.cpp keeps per draft."""

    name = "ggml"

    def __init__(self, tree, threads):
        if not tree:
            raise LookupError("no --ggml")
        if not os.path.isfile(os.path.join(tree, "include", "ggml.h")):
            raise LookupError(f"no include/ggml.h in {tree}")
        folders = [os.path.join(tree, "build", "src"), os.path.join(tree, "build", "src", "ggml-cpu")]
        libraries = [folder for folder in folders if os.path.isdir(folder)]
        if not libraries:
            raise LookupError(f"{tree} was not built in {tree}/build")
        self.folder = tempfile.mkdtemp(prefix="ringfold_peers_")
        self.program, self.threads = os.path.join(self.folder, "ggml_gdn"), threads
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ggml_gdn.cc")
        done = subprocess.run(
            [os.environ.get("CXX", "g++"), "-std=c++20", "-O2", f"-I{tree}/include", source, "-o", self.program,
             *(flag for folder in libraries for flag in (f"-L{folder}", f"-Wl,-rpath,{os.path.abspath(folder)}")),
             "-lggml", "-lggml-cpu", "-lggml-base"], capture_output=True, text=True)
        if done.returncode != 0:
            raise LookupError(f"ggml_gdn.cc does not compile against it: {done.stderr.strip()[:300]}")
        self.version = "unknown"
        if os.path.exists(os.path.join(tree, "CMakeLists.txt")):
            with open(os.path.join(tree, "CMakeLists.txt"), encoding="utf-8") as file:
                numbers = dict(line.strip("set()\n ").split()[:2] for line in file if "set(GGML_VERSION_M" in line or
                               "set(GGML_VERSION_P" in line)
            self.version = ".".join(numbers.get(f"GGML_VERSION_{part}", "?") for part in ("MAJOR", "MINOR", "PATCH"))

    def works(self, shape):
        return ["decode"] if shape.T == 1 else ["verify_states", "step_states"]

    def run(self, p, planes, repeats):
        """(us, outputs, states with the last first)"""
        np, s = p.np, p.shape
        group = s.HV // s.H
        # ggml gives value head i the key head i mod H, ringfold i / group.
        order = np.array([h * group + j for j in range(group) for h in range(s.H)])
        source, target = (os.path.join(self.folder, name) for name in ("in", "out"))
        with open(source, "wb") as file:
            for array in (p.qn, p.kn, p.v[:, :, order], p.g[:, :, order], p.beta[:, :, order], p.state[:, order]):
                file.write(np.ascontiguousarray(array, np.float32).tobytes())
        done = subprocess.run([self.program, s.kind, *map(str, (s.H, s.HV, s.T, s.B, planes, self.threads, p.sets,
                                                                repeats)), source, target],
                              capture_output=True, text=True, check=True)
        back = np.argsort(order)
        data = np.fromfile(target, np.float32)
        count = p.v.size
        states = data[count:].reshape(planes, s.B, s.HV, V, K)[:, :, back]
        times = [float(line) for line in done.stdout.split()]
        return typical(times), data[:count].reshape(p.v.shape)[:, :, back], states

    def us(self, work, p, reference, repeats):
        outputs, states = reference
        planes = 1 if work == "decode" else p.shape.T
        us, out, left = self.run(p, planes, repeats)
        compare(p.np, [("outputs", out, outputs),
                       ("states", left, states[:, ::-1].swapaxes(0, 1) if planes > 1 else states[:, -1:].swapaxes(0, 1))])
        note = "the operator alone: q, k normalised and gates formed beforehand, new states to other memory"
        return us, note + ("; taking the accepted state is not counted" if work == "step_states" else "")


class Torch:
    """transformers' torch_recurrent_gated_delta_rule, what a model runs where no kernels are installed. GDN."""

    name = "torch"

    def __init__(self, threads):
        try:
            import torch
            import transformers
            from transformers.models.qwen3_next import modeling_qwen3_next as model
        except Exception as error:
            raise LookupError(f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]) from None
        torch.set_num_threads(threads)
        self.torch, self.rule = torch, model.torch_recurrent_gated_delta_rule
        self.version = f"{torch.__version__} (transformers {transformers.__version__})"

    def works(self, shape):
        return ["decode"] if shape.kind == "gdn" else []

    def us(self, work, p, reference, repeats):
        torch, group = self.torch, p.shape.HV // p.shape.H
        q, k, v, g, beta = (torch.from_numpy(x) for x in (p.q, p.k, p.v, p.g, p.beta))
        q, k = q.repeat_interleave(group, 2), k.repeat_interleave(group, 2)
        states = [torch.from_numpy(p.state).transpose(-1, -2).contiguous() for _ in range(p.sets)]

        def call(i):
            with torch.no_grad():
                return self.rule(q, k, v, g=g, beta=beta, initial_state=states[i % p.sets], output_final_state=True,
                                 use_qk_l2norm_in_kernel=True)

        out, state = call(0)
        outputs, expected = reference
        compare(p.np, [("outputs", out.numpy(), outputs),
                       ("states", state.transpose(-1, -2).numpy(), expected[:, -1])])
        return timed(call, repeats), "eager; gates formed and key heads repeated beforehand"


BESIDE = {"decode": ("decode",), "verify_states": ("verify_exact",), "step_states": ("step_on_commit",)}


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ggml", help="a ggml tree, built in its folder build")
    parser.add_argument("--library", help="libringfold.so.1, or its folder; default: that of build-gpu or build")
    parser.add_argument("--shapes", help="comma-separated shapes, or parts of the usual ones")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--out")
    options = parser.parse_args(argv)
    if options.threads < 1 or options.repeats < 1:
        parser.error("expected positive numbers")
    chosen = []
    for part in (options.shapes or "").split(","):
        inside = [name for name in SHAPES if part in name]
        try:
            chosen += map(parse, inside or [part])
        except ValueError as error:
            parser.error(str(error))
    options.chosen = list(dict.fromkeys(chosen))
    return options


def cpu_name():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else "unknown CPU"


def main(argv=None):
    options = arguments(argv)
    try:
        import numpy
    except ImportError:
        print("peers: NumPy is not installed", file=sys.stderr)
        return 2
    path = capi.find_library(options.library)
    if path is None:
        print("peers: no libringfold.so.1; give --library", file=sys.stderr)
        return 2
    library = capi.Library(path)
    library.check(library.lib.ringfold_set_num_threads(ctypes.c_int32(options.threads)))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=results.ROOT).stdout.strip()
    ev = results.evidence
    head = {"device": f"{cpu_name()}, {options.threads} threads", "ringfold": library.version,
            "commit": commit or os.environ.get("RINGFOLD_COMMIT", "unknown"),
            "tree_hash": ev.tree_hash(ev.hash_files(results.ROOT)), "command": "bench/peers/cpu.py",
            "load": round(os.getloadavg()[0], 1)}
    out = results.Results(options.out, head)
    peers = []
    for name, make_peer in (("ggml", lambda: Ggml(options.ggml, options.threads)),
                            ("torch", lambda: Torch(options.threads))):
        try:
            peers.append(make_peer())
        except LookupError as reason:
            out.add("missing", {"peer": name, "reason": str(reason)})
            print(f"peers: missing: {name}: {reason}")
    for shape in options.chosen:
        p = Problem(shape, numpy)
        own = Ringfold(library, p)
        reference = own.reference()
        works = [work for peer in peers for work in peer.works(shape)]
        # First, since threads of a peer may go on spinning for a while.
        mine = {name: own.us(name, options.repeats) for work in works for name in BESIDE[work]}
        for peer in peers:
            for work in peer.works(shape):
                try:
                    us, note = peer.us(work, p, reference, options.repeats)
                except Refused as error:
                    out.add("refused", {"peer": peer.name, "work": work, "shape": str(shape), "error": str(error)})
                    print(f"peers: refused: {peer.name} {work} {shape}: {error}")
                    continue
                for name in BESIDE[work]:
                    entry = results.row(peer.name, peer.version, f"{work}:{name}", shape, us, mine[name],
                                        f"{note}; ringfold: exact, fp32")
                    out.add("rows", entry)
                    print(f"peers: {shape} {peer.name} {work}: {us:.0f} us, ringfold {name} {mine[name]:.0f} us, ratio "
                          f"{entry['ratio']:.2f}", flush=True)
    out.save()
    print(f"peers: {len(out.data['rows'])} rows: {out.path}")
    for peer in peers:
        if hasattr(peer, "folder"):
            shutil.rmtree(peer.folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
