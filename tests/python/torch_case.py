"""A pool of two layers and inputs as tensors of a device, for test_torch*.py and test_cuda.py."""

import numpy as np
import pytest
from support import make_layer, make_window  # first, for what it sets in the environment
import torch

import ringfold
import ringfold.torch as rt

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
DEVICES = ["cpu"]
if ringfold.implementations("cuda") and torch.cuda.is_available():
    DEVICES.append("cuda")


def tensor(array, device):
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).to(device)
    return torch.from_numpy(array.copy()).to(device)


def bits(value):
    value = value.detach().contiguous().cpu()
    return value.view(torch.int16 if value.element_size() == 2 else torch.int32).numpy().tobytes()


def on_device(mixer, device):
    parameters = {name: tensor(getattr(mixer, name), device) for name in ("A_log", "dt_bias")}
    return ringfold.Mixer(**{**vars(mixer), **parameters})


class Case:
    """Two layers of a pool, and inputs, as tensors of a device."""

    def __init__(self, shape, device, **more):
        self.shape, self.device = shape, device
        self.window = make_window(shape)
        self.arrays = {name: tensor(array, device) for name, array in self.window.arrays.items()}
        self.mixer = on_device(self.window.mixer, device)
        options = {"slots": 8, "ring_rows": shape.T, **more}
        self.pool = ringfold.Pool(layers=2, H=shape.H, HV=shape.HV, K=shape.K, V=shape.V, kind=shape.kind,
                                  act_dtype=DTYPES[shape.act], state_dtype=DTYPES[shape.state], device=device,
                                  views="torch", **options)
        self.slots = self.pool.acquire(shape.B)
        self.ids = torch.tensor([slot.id for slot in self.slots], dtype=torch.int32, device=device)
        self.accept = torch.tensor([2, 0, 4], dtype=torch.int32, device=device)
        self.rings = None  # ring ids, for a pool with ``rings``
        if self.pool.config.rings > 0:
            self.rings = torch.empty(shape.B, dtype=torch.int32, device=device)
            self.use_rings(0)
        self.layers = [rt.bind(self.pool, layer) for layer in range(2)]
        self.whole = rt.bind(self.pool)

    def use_rings(self, step):
        """Other rings for each step, in the same tensor; none where rings are keyed by slot."""
        if self.rings is not None:
            self.rings.copy_(torch.tensor([(3 * row + step + 2) % 4 for row in range(self.shape.B)]))

    def step(self, q, k, v, a, b, ids, accept, rings):
        """Both layers, the second on the outputs of the first; the operators."""
        out = v
        for layer in self.layers:
            out = rt.verify(q, k, out, a, b, ids, mixer=self.mixer, ring_ids=rings, **layer) * 2
        rt.commit(self.whole, accept, ids, ring_ids=rings)
        return out

    def run(self, function):
        return function(*self.arrays.values(), self.ids, self.accept, self.rings)

    def slots_bytes(self):
        return [self.pool.export(slot) for slot in self.slots]

    def memory(self):
        """Every byte of the pool that a call may write."""
        pool = self.pool
        views = [pool.state(), pool.pending(), *pool.ring(), *(pool.history() or ())[:3], *(pool.owners() or ()),
                 pool.conv_state(), pool.conv_ring(), pool.conv_pending(), *(pool.conv_owners() or ())]
        return [bits(view) for view in views if view is not None]


class LayerCase(Case):
    """The same with a short conv, and the inputs of a whole layer."""

    def __init__(self, shape, device, **more):
        channels = 2 * shape.H * shape.K + shape.HV * shape.V
        request = ringfold.explain(op="verify_layer", H=shape.H, HV=shape.HV, K=shape.K, V=shape.V, kind=shape.kind,
                                   window=shape.T, rows=shape.B, state_dtype=shape.state, act_dtype=shape.act,
                                   channels=channels, device=device)
        if request.plan is None:
            pytest.skip(f"on {device}: {request.error}")
        super().__init__(shape, device, conv_channels=channels, **more)
        layer = make_layer(shape)
        self.layer = {name: on_device(value, device) if name == "mixer" else tensor(value, device)
                      for name, value in layer.items()}
        self.bound = [rt.bind(self.pool, i, whole=True) for i in range(2)]

    def whole_step(self, qkv, z, ids, accept, rings):
        """Both layers of a verify, commit, and a decode of the same tokens in the first layer."""
        inputs = {**self.layer, "qkv": qkv, "z": z, "slot_ids": ids}
        outs = [rt.verify_layer(**inputs, **bound, ring_ids=rings) for bound in self.bound]
        rt.commit(self.whole, accept, ids, ring_ids=rings)
        return (*outs, rt.decode_layer(**inputs, **self.bound[0]))

    def run_whole(self, function):
        return function(self.layer["qkv"], self.layer["z"], self.ids, self.accept, self.rings)
