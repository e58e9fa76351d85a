"""Whole layers in one call: the bits of the calls one by one, in outputs, rings, cursors, states and conv windows."""

import numpy as np
import pytest
from support import DTYPES, GATES, Shape, make_layer, make_pool, make_ring, make_state, noise, same, split_heads

import ringfold

PRECISIONS = [("f32", "f32"), ("bf16", "f32"), ("bf16", "bf16"), ("f16", "f16")]
SLOTS, IDS = 5, [4, 0, 2]


class Store:
    """What a layer's slots hold."""

    def __init__(self, shape, rows):
        self.state, self.ring = make_state(shape, SLOTS), make_ring(shape, SLOTS, rows)
        channels = 2 * shape.H * shape.K + shape.HV * shape.V
        self.conv_state = noise(np.random.default_rng(8), shape.act, SLOTS, channels, 3)
        self.conv_ring = np.zeros((SLOTS, rows, channels), DTYPES[shape.act])
        self.pending = np.full(SLOTS, ringfold.NO_WINDOW, np.int32)
        self.conv_pending = self.pending.copy()

    def arrays(self):
        return [self.state, *self.ring[:4], self.conv_state, self.conv_ring, self.pending, self.conv_pending]

    def verify(self):
        return {"state": self.state, "ring": self.ring, "conv_state": self.conv_state, "conv_ring": self.conv_ring,
                "pending": self.pending, "conv_pending": self.conv_pending}

    def decode(self):
        return {name: value for name, value in self.verify().items() if name not in ("ring", "conv_ring")}

    def commit(self, accepted):
        ringfold.fold(IDS, accepted, state=self.state, ring=self.ring, pending=self.pending)
        ringfold.conv_commit(IDS, accepted, conv_state=self.conv_state, conv_ring=self.conv_ring)

    def equals(self, other):
        return all(same(left, right) for left, right in zip(self.arrays(), other.arrays()))


def chain(shape, store, layer, decodes, *, mixer_out="f32", norm_gate="silu", norm_eps=1e-6, conv_silu=True, **ragged):
    """The three calls."""
    conv = {"bias": layer["conv_bias"], "silu": conv_silu, "pending": store.conv_pending, **ragged}
    rest = {"mixer": layer["mixer"], "state": store.state, "pending": store.pending, **ragged}
    if decodes:
        x = ringfold.conv_decode(layer["qkv"], layer["conv_weight"], IDS, conv_state=store.conv_state, **conv)
    else:
        x = ringfold.conv_verify(layer["qkv"], layer["conv_weight"], IDS, conv_state=store.conv_state,
                                 conv_ring=store.conv_ring, **conv)
    q, k, v = split_heads(shape, x)
    out = np.empty(v.shape, DTYPES[mixer_out])
    if decodes:
        ringfold.decode(q, k, v, layer["a"], layer["b"], IDS, out=out, **rest)
    else:
        ringfold.verify(q, k, v, layer["a"], layer["b"], IDS, out=out, ring=store.ring, **rest)
    flat = (-1, shape.HV, shape.V)
    normed = np.empty(out.shape, DTYPES[shape.act])
    ringfold.gated_norm(out.reshape(flat), layer["z"].reshape(flat), layer["norm_weight"], gate=norm_gate, eps=norm_eps,
                        out=normed.reshape(flat))
    return normed


@pytest.mark.parametrize("act, state", PRECISIONS)
@pytest.mark.parametrize("gate", GATES)
def test_layers_are_the_calls_one_by_one(gate, act, state):
    shape = Shape(gate=gate, act=act, state=state)
    one, three = Store(shape, 4), Store(shape, 4)
    options = {} if act != "bf16" else {"mixer_out": "bf16", "norm_gate": "sigmoid", "norm_eps": 1e-3,
                                        "conv_silu": False}
    for step, accepted in enumerate([[2, 0, 4], [1, 3, 0]]):
        layer, before = make_layer(shape, step), one.state.copy()
        out = ringfold.verify_layer(**layer, slot_ids=IDS, **one.verify(), **options)
        assert same(out, chain(shape, three, layer, False, **options)) and out.any()
        assert same(one.state, before) and one.equals(three) and one.pending[4] == 4
        for store in (one, three):
            store.commit(accepted)
        layer = make_layer(shape, 10 + step)
        out = ringfold.decode_layer(**layer, slot_ids=IDS, **one.decode(), **options)
        assert same(out, chain(shape, three, layer, True, **options))
        assert one.equals(three) and not same(one.state, before)


def test_projections_as_three_views():
    shape = Shape(act="bf16")
    layer = make_layer(shape)
    packed, views = Store(shape, 4), Store(shape, 4)
    expected = ringfold.verify_layer(**layer, slot_ids=IDS, **packed.verify())
    q, k, v = (np.ascontiguousarray(part) for part in split_heads(shape, layer["qkv"]))
    out = ringfold.verify_layer(**{**layer, "qkv": (q, k, v)}, slot_ids=IDS, **views.verify())
    assert same(out, expected) and views.equals(packed)


def test_ragged_rows_and_outputs_that_are_given():
    shape, lengths = Shape(gate="kda"), [2, 0, 4]
    layer = make_layer(shape)
    rows = {name: np.concatenate([layer[name][r, :n] for r, n in enumerate(lengths)]) for name in ("qkv", "a", "b", "z")}
    ragged = {"cu_seqlens": np.cumsum([0] + lengths).astype(np.int32), "max_window": 4}
    one, three = Store(shape, 4), Store(shape, 4)
    out, status = np.full(rows["z"].shape, 7, np.float32), np.full(3, 77, np.int32)
    assert ringfold.verify_layer(**{**layer, **rows}, slot_ids=IDS, **one.verify(), **ragged, out=out,
                                 row_status=status) is out
    conv = {"cu_seqlens": ragged["cu_seqlens"]}
    x = ringfold.conv_verify(rows["qkv"], layer["conv_weight"], IDS, conv_state=three.conv_state,
                             conv_ring=three.conv_ring, bias=layer["conv_bias"], pending=three.conv_pending, **conv)
    mixed = ringfold.verify(*split_heads(shape, x), rows["a"], rows["b"], IDS, mixer=layer["mixer"], state=three.state,
                            ring=three.ring, pending=three.pending, **ragged)
    assert same(out, ringfold.gated_norm(mixed, rows["z"], layer["norm_weight"]))
    assert one.equals(three) and status.tolist() == [0, 0, 0] and one.pending.tolist() == [0, -1, 4, -1, 2]


@pytest.mark.parametrize("impl", ringfold.implementations())
def test_every_implementation_has_the_bits_of_the_reference(impl):
    shape = Shape(act="f16", state="bf16")
    layer, results = make_layer(shape), []
    for name in (impl, "reference"):
        store = Store(shape, 4)
        results.append((ringfold.verify_layer(**layer, slot_ids=IDS, **store.verify(), impl=name),
                        ringfold.decode_layer(**layer, slot_ids=IDS, **store.decode(), impl=name), *store.arrays()))
    for left, right in zip(*results):
        assert same(left, right)


@pytest.mark.parametrize("policy", ["on_commit", "on_next_verify", "lazy"])
def test_pools(policy):
    """A pool's layers in one call, beside those of a pool in three; and free functions on what bind_layer gives."""
    shape = Shape(act="bf16")
    more = {"layers": 2, "conv_channels": 2 * 2 * 32 + 4 * 24, "fold_policy": policy, "max_window": 4,
            "ring_rows": 4 if policy == "on_commit" else 9}
    one, three, free = (make_pool(shape, **more) for _ in range(3))
    slots = [pool.acquire(3) for pool in (one, three, free)]
    ids = [slot.id for slot in slots[2]]
    flat = (-1, shape.HV, shape.V)
    for step, accepted in enumerate([[1, 3, 4], [0, 4, 2], [4, 4, 1]]):
        for i in range(2):
            layer = make_layer(shape, 2 * step + i)
            out = one.verify_layer(i, **layer, slots=slots[0])
            x = three.conv_verify(i, layer["qkv"], layer["conv_weight"], slots[1], bias=layer["conv_bias"])
            mixed = three.verify(i, *split_heads(shape, x), layer["a"], layer["b"], slots[1], mixer=layer["mixer"],
                                 out=np.empty(layer["z"].shape, np.float32))
            normed = ringfold.gated_norm(mixed.reshape(flat), layer["z"].reshape(flat), layer["norm_weight"],
                                         out=np.empty(out.shape, out.dtype).reshape(flat))
            assert out.tobytes() == normed.tobytes() and out.any()
            assert same(out, ringfold.verify_layer(**layer, slot_ids=ids, **free.bind_layer(i)))
        for pool, handles in zip((one, three, free), slots):
            pool.commit(accepted, handles)
    layer = make_layer(shape, 20)
    bound = free.bind_layer(1)
    del bound["conv_ring"]
    assert same(one.decode_layer(1, **layer, slots=slots[0]), ringfold.decode_layer(**layer, slot_ids=ids, **bound))
    assert [one.export(slot) for slot in slots[0]] == [free.export(slot) for slot in slots[2]]
    assert [one.export(slot) for slot in slots[0]] != [three.export(slot) for slot in slots[1]]
    three.conv_decode(1, layer["qkv"], layer["conv_weight"], slots[1], bias=layer["conv_bias"])
    with pytest.raises(ringfold.InvalidArgumentError, match="^pool: expected one with a short conv"):
        plain = make_pool(shape)
        plain.verify_layer(0, **layer, slots=plain.acquire(3))


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def test_arguments_are_named():
    shape = Shape()
    layer, store = make_layer(shape), Store(shape, 4)
    good = {**layer, "slot_ids": IDS, **store.verify(), "out": np.full(layer["z"].shape, 7, np.float32)}
    before = [array.copy() for array in [*store.arrays(), good["out"]]]
    bad = {"qkv": [layer["qkv"][..., :-1], layer["qkv"].astype(np.float64), None, layer["qkv"][0], "text"],
           "conv_weight": [layer["conv_weight"][:, :1], layer["conv_weight"][1:], None],
           "conv_bias": [layer["conv_bias"][1:]], "conv_silu": ["no"],
           "conv_state": [store.conv_state[..., :2], None, store.conv_state.astype(np.float16)],
           "conv_ring": [store.conv_ring[:, :, :-1], read_only(store.conv_ring), None],
           "conv_pending": [store.conv_pending[1:], read_only(store.conv_pending), None],
           "z": [layer["z"][..., :-1], layer["z"].astype(np.int32), None], "norm_weight": [layer["norm_weight"][1:], None],
           "norm_gate": ["relu", 1], "norm_eps": [-1.0, "x"], "mixer_out": ["f64", "f16"],
           "out": [read_only(good["out"]), good["out"][..., :-1]], "ring": [store.ring._replace(v=read_only(store.ring.v))],
           "state": [store.state[0], None], "mixer": [None], "numerics": ["exactly"], "impl": [3]}
    for name, values in bad.items():
        for value in values:
            with pytest.raises(ringfold.InvalidArgumentError, match=rf"^{name}\b.*: expected .*found"):
                ringfold.verify_layer(**{**good, name: value})
            assert all(same(left, right) for left, right in zip(before, [*store.arrays(), good["out"]])), name
    with pytest.raises(ringfold.InvalidArgumentError, match="^qkv: expected an array, or the three arrays"):
        ringfold.verify_layer(**{**good, "qkv": (layer["qkv"], layer["qkv"])})
    with pytest.raises(ringfold.InvalidArgumentError, match="^conv_state: expected an array that may be written"):
        ringfold.decode_layer(**layer, slot_ids=IDS, **{**store.decode(), "conv_state": read_only(store.conv_state)})
    with pytest.raises(ringfold.NotFoundError, match="^impl: "):
        ringfold.verify_layer(**{**good, "impl": "warp9"})
    assert ringfold.verify_layer(**{**good, "conv_state": read_only(store.conv_state), "state": read_only(store.state)}) \
        is good["out"]
