"""Inputs that every peer gets: random, seeded, on the device, and the slots that calls rotate over."""

import math

import torch

from shapes import LAYERS, LOWER_BOUND, K, V

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
COLD_BYTES = 300e6  # of state touched between two uses of a slot
WINDOWS = 4  # different windows of inputs
SLOTS = 257  # the same for every B: some kernels are compiled anew for other strides


class Window:
    """Inputs of one call: packed, and as tensors of their own; the same values. All of B * T tokens."""

    def __init__(self, shape, generator, device, dtype):
        H, HV, tokens = shape.H, shape.HV, shape.B * shape.T
        self.B, self.T = shape.B, shape.T

        def normal(*size):
            return torch.randn(*size, generator=generator, device=device, dtype=torch.float32).to(dtype)

        self.mixed = normal(tokens, 2 * H * K + HV * V)
        q, k, v = self.mixed.split([H * K, H * K, HV * V], dim=1)
        self.q, self.k = q.reshape(tokens, H, K).contiguous(), k.reshape(tokens, H, K).contiguous()
        self.v = v.reshape(tokens, HV, V).contiguous()
        self.a = normal(tokens, HV, K) if shape.kind == "kda" else normal(tokens, HV)
        self.b = normal(tokens, HV)

    def dense(self, name):
        """[B, T, ..]"""
        tensor = getattr(self, name)
        return tensor.view(self.B, self.T, *tensor.shape[1:])


class Problem:
    """A shape's parameters, windows, states of LAYERS x slots, and index tensors of its sets of B slots."""

    def __init__(self, shape, device, layers=LAYERS, slots=None, seed=1, cold_bytes=COLD_BYTES, state=None,
                 dtype=torch.bfloat16):
        self.shape, self.device, self.layers, self.dtype = shape, torch.device(device), layers, dtype
        self.slots = slots or SLOTS  # slot 0 is a null slot for some, so that none uses it
        self.generator = torch.Generator(device=self.device).manual_seed(seed)
        HV = shape.HV
        kda = shape.kind == "kda"
        self.A_log = torch.randn(HV, generator=self.generator, device=device) * 0.5
        self.dt_bias = torch.randn(*((HV, K) if kda else (HV,)), generator=self.generator, device=device) - 1.0
        self.lower_bound = LOWER_BOUND if kda else None
        self.windows = [Window(shape, self.generator, device, dtype) for _ in range(WINDOWS)]
        self.state = self.random_states(layers, self.slots) if state is None else state
        per_set = layers * shape.B * shape.state_bytes
        self.sets = max(1, min((self.slots - 1) // shape.B, math.ceil(cold_bytes / per_set)))
        order = torch.randperm(self.slots - 1, generator=self.generator, device=device).to(torch.int32) + 1
        # Copies, not views: kernels are compiled anew for pointers that are not aligned to 16 bytes.
        self.slot_ids = [order[i * shape.B:(i + 1) * shape.B].clone() for i in range(self.sets)]
        self.bounds = torch.arange(shape.B + 1, device=device, dtype=torch.int32) * shape.T
        self.accepted = torch.full((shape.B,), shape.accepted, device=device, dtype=torch.int32)

    def random_states(self, *lead):
        state = torch.empty(*lead, self.shape.HV, V, K, device=self.device, dtype=DTYPES[self.shape.state])
        return state.normal_(0.0, 0.1, generator=self.generator)

    def empty(self, *size, dtype=None):
        return torch.zeros(*size, device=self.device, dtype=dtype or self.dtype)

    @property
    def rows(self):
        """Rows that are compared before anything is timed: the first and the last ones."""
        B = self.shape.B
        return sorted({*range(min(B, 4)), *range(max(0, B - 4), B)})

    @property
    def calls(self):
        """How many calls of one layer differ in their slots."""
        return self.layers * self.sets

    def place(self, i):
        """(layer, set) of call i: layers change fastest."""
        return i % self.layers, i // self.layers % self.sets

    def window(self, i):
        return self.windows[i % WINDOWS]


def relative(error_of, reference):
    """|x - reference| / |reference|, over everything; NaN stays NaN."""
    reference = reference.double()
    return ((error_of.double() - reference).norm() / reference.norm()).item()
