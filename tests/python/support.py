"""Inputs of all gates, dtypes and layouts, for the tests of this folder."""

import os
import sys
import threading
import time
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np

import ringfold

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of a GPU's memory
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a pool of processes takes longer than what it compiles

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "cli"))  # casefile
sys.path.insert(0, os.path.join(ROOT, "examples"))

DTYPES = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
GATES = ("gdn", "kda", "kda_safe")


def cli():
    """The program to compare with, or None."""
    return os.environ.get("RINGFOLD_CLI")


@dataclass(frozen=True)
class Shape:
    B: int = 3
    T: int = 4
    H: int = 2
    HV: int = 4
    K: int = 32
    V: int = 24
    gate: str = "gdn"
    act: str = "f32"
    state: str = "f32"

    @property
    def kind(self):
        return self.gate.partition("_")[0]


@dataclass
class Window:
    """Inputs of one window, [B, T, ..], and the layer's parameters."""

    shape: Shape
    mixer: ringfold.Mixer
    arrays: dict = field(default_factory=dict)

    def tokens(self, begin, end):
        """Views of some of the tokens: nothing is copied, so the strides are not packed."""
        return {name: array[:, begin:end] for name, array in self.arrays.items()}


def noise(random, dtype, *shape):
    return random.standard_normal(shape, dtype=np.float32).astype(DTYPES[dtype])


def make_window(shape, seed=1):
    random = np.random.default_rng(seed)
    s = shape
    inner = (s.K,) if s.kind == "kda" else ()
    mixer = ringfold.Mixer(A_log=noise(random, "f32", s.HV), dt_bias=noise(random, "f32", s.HV, *inner), kind=s.kind,
                           lower_bound=-5.0 if s.gate == "kda_safe" else None)
    arrays = {"q": noise(random, s.act, s.B, s.T, s.H, s.K), "k": noise(random, s.act, s.B, s.T, s.H, s.K),
              "v": noise(random, s.act, s.B, s.T, s.HV, s.V), "a": noise(random, s.act, s.B, s.T, s.HV, *inner),
              "b": noise(random, s.act, s.B, s.T, s.HV)}
    return Window(shape, mixer, arrays)


def make_layer(shape, seed=1):
    """Inputs of a whole layer as keyword arguments of verify_layer and decode_layer, but for slots and what they hold."""
    window, random, s = make_window(shape, seed), np.random.default_rng(100 + seed), shape
    channels = 2 * s.H * s.K + s.HV * s.V
    return {"qkv": noise(random, s.act, s.B, s.T, channels), "a": window.arrays["a"], "b": window.arrays["b"],
            "mixer": window.mixer, "conv_weight": noise(random, "f32", channels, 4),
            "conv_bias": noise(random, "bf16", channels), "z": noise(random, s.act, s.B, s.T, s.HV, s.V),
            "norm_weight": noise(random, "f32", s.V)}


def split_heads(shape, packed):
    """Views of q, k and v in packed channels."""
    s, keys = shape, shape.H * shape.K
    lead = packed.shape[:-1]
    return (packed[..., :keys].reshape(*lead, s.H, s.K), packed[..., keys:2 * keys].reshape(*lead, s.H, s.K),
            packed[..., 2 * keys:].reshape(*lead, s.HV, s.V))


def strided(window):
    """The same values as views into one packed row per token, with NaN between them."""
    s = window.shape
    parts = {name: array.reshape(s.B, s.T, -1) for name, array in window.arrays.items()}
    gap = 8
    row = np.full((s.B, s.T, sum(part.shape[2] + gap for part in parts.values())), np.nan, DTYPES[s.act])
    views, at = {}, 0
    for name, part in parts.items():
        cut = row[:, :, at:at + part.shape[2]]
        cut[...] = part
        # The inner dimensions are packed within a row, so this is a view.
        views[name] = np.lib.stride_tricks.as_strided(
            cut, window.arrays[name].shape, cut.strides[:2] + window.arrays[name].strides[2:])
        at += part.shape[2] + gap
    assert all(np.shares_memory(view, row) for view in views.values())
    return replace(window, arrays=views)


def make_ring(shape, slots, rows):
    s = shape
    inner = (s.K,) if s.kind == "kda" else ()
    return ringfold.Ring(np.zeros((slots, rows, s.H, s.K), DTYPES[s.act]),
                         np.zeros((slots, rows, s.HV, s.V), DTYPES[s.act]),
                         np.zeros((slots, rows, s.HV, *inner), np.float32), np.zeros((slots, rows, s.HV), np.float32))


def make_state(shape, slots, seed=7):
    return noise(np.random.default_rng(seed), shape.state, slots, shape.HV, shape.V, shape.K)


def make_pool(shape, **more):
    options = {"slots": 8, "ring_rows": shape.T, "act_dtype": shape.act, "state_dtype": shape.state, "kind": shape.kind,
               **more}
    return ringfold.Pool(H=shape.H, HV=shape.HV, K=shape.K, V=shape.V, **options)


def same(left, right):
    """Equal in every bit."""
    return left.shape == right.shape and left.dtype == right.dtype and left.tobytes() == right.tobytes()


def runs_others(call, tries=200):
    """Whether another Python thread runs while `call` is at work. Threads do not take the GIL from one another
    meanwhile, so the other one runs only where the call itself lets it; it may need some tries until the machine
    gives it the time to."""
    turns, stop = [0], threading.Event()

    def take_turns():
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0.0005)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    thread = threading.Thread(target=take_turns)
    try:
        thread.start()
        for _ in range(tries):
            before = turns[0]
            call()
            if turns[0] > before:
                return True
        return False
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()
