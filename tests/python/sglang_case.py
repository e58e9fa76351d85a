"""Layers as SGLang keeps them, and what ringfold's own decode makes of the same tokens, for test_sglang_*.py."""

import zlib
from dataclasses import dataclass, replace

import pytest
import torch

import ringfold

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
DEVICES = ["cpu"]
if ringfold.implementations("cuda") and torch.cuda.is_available():
    DEVICES.append("cuda")


@pytest.fixture(autouse=True)
def poisoned_memory():
    """torch.empty is full of NaN (on a GPU too, but there it would change what a graph captures)."""
    torch.use_deterministic_algorithms(DEVICES == ["cpu"])
    yield
    torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class Shape:
    B: int = 3
    T: int = 4
    H: int = 2
    HV: int = 4
    K: int = 32
    V: int = 24
    L: int = 8
    slots: int = 6
    gate: str = "gdn"  # gdn, kda, kda_safe
    act: str = "bf16"
    state: str = "f32"
    device: str = "cpu"

    @property
    def is_kda(self):
        return self.gate != "gdn"

    @property
    def lower_bound(self):
        return -5.0 if self.gate == "kda_safe" else None

    def __str__(self):
        return (f"{self.gate}-B{self.B}T{self.T}-{self.H}:{self.HV}-K{self.K}V{self.V}L{self.L}-{self.act}-{self.state}"
                f"-{self.device}")


def bits(tensor):
    """The bytes of a tensor, in the order of its indices."""
    tensor = tensor.detach().contiguous().cpu()
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(whole).numpy().tobytes()


def same(left, right):
    """Equal in shape, dtype and every bit."""
    return left.shape == right.shape and left.dtype == right.dtype and bits(left) == bits(right)


class Case:
    """One layer: parameters, inputs of a window for each of B rows, state pool and ring in SGLang's layouts."""

    def __init__(self, shape, seed=0):
        s = self.shape = shape
        self.random = torch.Generator().manual_seed(seed * 1000003 + zlib.crc32(str(replace(s, device="")).encode()))
        inner = (s.K,) if s.is_kda else ()
        self.A_log, self.dt_bias = self.noise("f32", s.HV), self.noise("f32", s.HV, *inner)
        self.new_inputs()
        self.state = self.noise(s.state, s.slots, s.HV, s.V, s.K)
        self.ring = self.new_ring()

    def noise(self, dtype, *shape):
        return torch.randn(*shape, generator=self.random).to(DTYPES[dtype]).to(self.shape.device)

    def new_inputs(self):
        s = self.shape
        inner = (s.K,) if s.is_kda else ()
        self.q, self.k = (self.noise(s.act, s.B, s.T, s.H, s.K) for _ in range(2))
        self.v = self.noise(s.act, s.B, s.T, s.HV, s.V)
        self.a, self.b = self.noise(s.act, s.B, s.T, s.HV, *inner), self.noise(s.act, s.B, s.T, s.HV)

    def new_ring(self):
        """rawv, rawk, g, beta, filled with values that are none of the inputs."""
        s = self.shape
        act, inner = DTYPES[s.act], (s.K,) if s.is_kda else ()
        new = {"rawv": torch.full((s.slots, s.HV, s.L, s.V), 77.0, dtype=act, device=s.device),
               "rawk": torch.full((s.slots, s.H, s.L, s.K), 78.0, dtype=act, device=s.device),
               "g": torch.full((s.slots, s.HV, s.L, *inner), 79.0, device=s.device),
               "beta": torch.full((s.slots, s.HV, s.L), 80.0, device=s.device)}
        return new

    def ints(self, values, dtype=torch.int32):
        return torch.tensor(values, dtype=dtype, device=self.shape.device)

    def ring_arguments(self):
        return {"cache_ring": True, **{f"replayssm_{name}": tensor for name, tensor in self.ring.items()}}

    def mixer(self):
        s = self.shape
        return ringfold.Mixer(self.A_log, self.dt_bias, "kda" if s.is_kda else "gdn", lower_bound=s.lower_bound)

    def verify_arguments(self, indices, **more):
        """Of fused_sigmoid_gating_delta_rule_update, a dense verify."""
        s = self.shape
        arguments = {"A_log": self.A_log, "a": self.a.flatten(3) if s.is_kda else self.a, "dt_bias": self.dt_bias,
                     "softplus_beta": 1.0, "softplus_threshold": 20.0, "q": self.q, "k": self.k, "v": self.v,
                     "b": self.b, "initial_state_source": self.state, "initial_state_indices": self.ints(indices),
                     "use_qk_l2norm_in_kernel": True, "is_kda": s.is_kda, "lower_bound": s.lower_bound,
                     "disable_state_update": True}
        return {**arguments, **more}

    def ragged_arguments(self, indices, lengths, **more):
        """The same with the first ``lengths[i]`` tokens of row i, in one packed row."""
        rows = [(i, n) for i, n in enumerate(lengths)]

        def packed(tensor):
            return torch.cat([tensor[i, :n] for i, n in rows])

        bounds = torch.tensor([0] + lengths).cumsum(0).to(torch.int32).to(self.shape.device)
        a = packed(self.a)
        return self.verify_arguments(indices, **{
            "q": packed(self.q)[None], "k": packed(self.k)[None], "v": packed(self.v)[None],
            "a": a.flatten(1) if self.shape.is_kda else a, "b": packed(self.b), "cu_seqlens": bounds, **more})

    def fold_arguments(self, indices, accepted, **more):
        """Of the commit functions, one layer."""
        s = self.shape
        return {"checkpoint_state": self.state, "rawv_cache": self.ring["rawv"], "rawk_cache": self.ring["rawk"],
                ("gk_cache" if s.is_kda else "g_cache"): self.ring["g"], "beta_cache": self.ring["beta"],
                "ssm_state_indices": self.ints(indices), "accept_lens": self.ints(accepted), "max_cache_len": s.L,
                "num_k_heads": s.H, **more}

    def decoded(self, state, row, slot, count, each=False):
        """ringfold's own decode of a row's first tokens on a copy of ``state``: outputs and that copy.

        ``each``: one call for each token. Otherwise one call, after which a 16-bit state is rounded, as after a fold.
        """
        state, outputs = state.clone(), []
        cuts = [(t, t + 1) for t in range(count)] if each else [(0, count)] if count else []
        for begin, end in cuts:
            part = [tensor[row:row + 1, begin:end] for tensor in (self.q, self.k, self.v, self.a, self.b)]
            outputs.append(ringfold.decode(*part, self.ints([slot]), mixer=self.mixer(), state=state))
        return (torch.cat(outputs, 1)[0] if outputs else self.v[row, :0]), state

    def expected_states(self, state, indices, accepted):
        """``state`` with every row's accepted tokens decoded in its slot."""
        expected = state.clone()
        for row, (slot, count) in enumerate(zip(indices, accepted)):
            if slot >= 0 and count > 0:
                expected[slot] = self.decoded(state, row, slot, count)[1][slot]
        return expected


def layered(cases, fold):
    """Arguments of an all-layers fold for layers of one shape; their states and rings become views of its tensors."""
    arguments = {}
    for name in ("rawv", "rawk", "g", "beta"):
        stacked = torch.stack([case.ring[name] for case in cases])
        for layer, case in enumerate(cases):
            case.ring[name] = stacked[layer]
        arguments[name] = stacked
    state = torch.stack([case.state for case in cases])
    for layer, case in enumerate(cases):
        case.state = state[layer]
    g = "gk_cache" if cases[0].shape.is_kda else "g_cache"
    return {**fold, "checkpoint_state": state, "rawv_cache": arguments["rawv"], "rawk_cache": arguments["rawk"],
            g: arguments["g"], "beta_cache": arguments["beta"]}
