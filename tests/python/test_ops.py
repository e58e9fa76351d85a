"""The calls: every one against plain decoding or the plain reference, bit by bit."""

import numpy as np
import pytest
from support import DTYPES, GATES, Shape, make_pool, make_ring, make_state, make_window, noise, same, strided

import ringfold

PRECISIONS = [("f32", "f32"), ("bf16", "f32"), ("bf16", "bf16"), ("f16", "f16"), ("f32", "bf16")]
SHAPES = [Shape(gate=gate, act=act, state=state) for gate in GATES for act, state in PRECISIONS]
SHAPES.append(Shape(B=1, T=1, H=1, HV=1, K=1, V=1))
SHAPES.append(Shape(H=1, HV=3, K=40, V=16, gate="kda", act="bf16"))


def decoded(window, state, ids, count, **more):
    """Outputs and states after `count` tokens, one at a time."""
    state, outs = state.copy(), []
    for t in range(count):
        outs.append(ringfold.decode(**window.tokens(t, t + 1), slot_ids=ids, mixer=window.mixer, state=state,
                                    state_rounding="per_token", **more))
    return np.concatenate(outs, axis=1) if outs else None, state


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_verify_and_fold_are_decode(shape):
    window, slots = make_window(shape), 5
    ids = np.array([4, 0, 2][:shape.B], np.int32)
    state, ring = make_state(shape, slots), make_ring(shape, slots, shape.T)
    before = state.copy()
    pending = np.full(slots, ringfold.NO_WINDOW, np.int32)
    out = ringfold.verify(**window.arrays, slot_ids=ids, mixer=window.mixer, state=state, ring=ring, pending=pending,
                          state_rounding="per_token")
    assert same(state, before)
    assert out.dtype == DTYPES[shape.act]
    expected, _ = decoded(window, before, ids, shape.T)
    assert same(out, expected)
    for r, slot in enumerate(ids):
        assert pending[slot] == shape.T
        assert same(ring.k[slot, :shape.T], window.arrays["k"][r])
        assert same(ring.v[slot, :shape.T], window.arrays["v"][r])
    for count in range(shape.T + 1):
        folded = before.copy()
        ringfold.fold(ids, [count] * shape.B, state=folded, ring=ring, state_rounding="per_token")
        assert same(folded, decoded(window, before, ids, count)[1]), count
    assert not same(folded, before)  # the comparison above would see a fold that does nothing


@pytest.mark.parametrize("shape", [Shape(gate=gate, act=act) for gate in GATES for act in ("f32", "bf16")], ids=str)
@pytest.mark.parametrize("impl", ringfold.implementations())
def test_every_implementation_has_the_bits_of_the_reference(shape, impl):
    window, state = make_window(shape), make_state(shape, 4)
    results = []
    for name in (impl, "reference"):
        own, ring = state.copy(), make_ring(shape, 4, shape.T)
        snapshots = np.empty((shape.B, shape.T, shape.HV, shape.V, shape.K), state.dtype)
        out = np.empty(window.arrays["v"].shape, np.float32)
        returned = ringfold.verify(**window.arrays, slot_ids=[0, 1, 3], mixer=window.mixer, state=own, ring=ring,
                                   out=out, snapshots=snapshots, impl=name)
        assert returned is out
        ringfold.fold([0, 1, 3], [1, 4, 2], state=own, ring=ring, impl=name)
        results.append((out, snapshots, own, *ring[:4]))
    for left, right in zip(*results):
        assert same(left, right)
    assert same(results[0][1][1, 3], results[0][2][1])  # a snapshot is the state after that many tokens


@pytest.mark.parametrize("shape", [Shape(gate="gdn"), Shape(gate="kda", act="bf16"), Shape(gate="kda_safe", act="f16")],
                         ids=str)
def test_strided_views_are_taken_as_they_are(shape):
    window = make_window(shape)
    wide = np.full((shape.B, 3), 99, np.int32)
    wide[:, 1] = [2, 0, 1]
    out_wide = np.full((shape.B, shape.T, shape.HV, shape.V + 8), 5, DTYPES[shape.act])
    states = np.full((3, shape.HV, shape.V, shape.K + 8), np.nan, np.float32)
    states[..., :shape.K] = make_state(shape, 3)
    results = []
    for inputs, ids, state, out in ((strided(window), wide[:, 1], states[..., :shape.K], out_wide[..., :shape.V]),
                                    (window, wide[:, 1].copy(), states[..., :shape.K].copy(), None)):
        assert not (out is not None and out.flags.c_contiguous)
        results.append(ringfold.verify(**inputs.arrays, slot_ids=ids, mixer=window.mixer, state=state, out=out))
        ringfold.decode(**inputs.arrays, slot_ids=ids, mixer=window.mixer, state=state)
        results.append(state)
    assert np.ascontiguousarray(results[0]).tobytes() == results[2].tobytes()
    assert np.ascontiguousarray(results[1]).tobytes() == results[3].tobytes()
    assert (out_wide[..., shape.V:] == 5).all() and np.isnan(states[..., shape.K:]).all()


@pytest.mark.parametrize("gate", GATES)
def test_ragged_rows_have_the_bits_of_dense_ones(gate):
    shape = Shape(gate=gate)
    window, lengths = make_window(shape), [2, 0, 4]
    state, ring = make_state(shape, 3), make_ring(shape, 3, 4)
    packed = {name: np.concatenate([array[r, :n] for r, n in enumerate(lengths)])
              for name, array in window.arrays.items()}
    bounds = np.cumsum([0] + lengths).astype(np.int32)
    pending = np.full(3, ringfold.NO_WINDOW, np.int32)
    out = ringfold.verify(**packed, slot_ids=[0, 1, 2], mixer=window.mixer, state=state, ring=ring, pending=pending,
                          cu_seqlens=bounds, max_window=4)
    dense = ringfold.verify(**window.arrays, slot_ids=[0, 1, 2], mixer=window.mixer, state=state)
    assert pending.tolist() == lengths
    for r, n in enumerate(lengths):
        assert same(out[bounds[r]:bounds[r + 1]], dense[r, :n])
    folded = state.copy()
    ringfold.fold([0, 1, 2], lengths, state=folded, ring=ring, pending=pending)
    assert pending.tolist() == [ringfold.NO_WINDOW] * 3
    assert same(folded[1], state[1])
    for r in (0, 2):
        _, expected = decoded(window, state, [0, 1, 2], lengths[r])
        assert same(folded[r], expected[r])


def test_mixer_parameters_reach_the_library():
    """Each parameter changes the result, and the default is what the header says."""
    shape = Shape(gate="kda")
    window, state = make_window(shape), make_state(shape, 3)
    base = {"A_log": window.mixer.A_log, "dt_bias": window.mixer.dt_bias, "kind": "kda"}

    def out(**changes):
        return ringfold.verify(**window.arrays, slot_ids=[0, 1, 2], mixer=ringfold.Mixer(**{**base, **changes}),
                               state=state)

    plain = out()
    for changes in ({"softplus_beta": 2.0}, {"softplus_threshold": -1.0}, {"lower_bound": -3.0}, {"scale": 0.5},
                    {"qk_l2norm": False}, {"dt_bias": None}, {"A_log": window.mixer.A_log + 1}):
        assert not same(out(**changes), plain), changes
    defaults = {"softplus_beta": 1.0, "softplus_threshold": 20.0, "scale": 32 ** -0.5, "qk_l2norm": True}
    assert same(out(**defaults), plain)
    assert same(out(dt_bias=None), out(dt_bias=np.zeros_like(base["dt_bias"])))


def test_layers_and_tracking_of_fold():
    shape, layers = Shape(), 3
    window = make_window(shape)
    state = np.stack([make_state(shape, 5, seed=layer) for layer in range(layers)])
    rings = [make_ring(shape, 5, 4) for _ in range(layers)]
    ids = [0, 1, 2]
    for layer in range(layers):
        ringfold.verify(**window.arrays, slot_ids=ids, mixer=window.mixer, state=state[layer], ring=rings[layer])
    ring = ringfold.Ring(*(np.stack(parts) for parts in zip(*(ring[:4] for ring in rings))))
    folded = state.copy()
    status = np.full(3, 77, np.int32)
    ringfold.fold(ids, [4, 2, 0], state=folded, ring=ring, layers=[2, 0], track_slots=[3, 4, -1],
                  track_steps=[1, 0, -1], row_status=status)
    assert status.tolist() == [0, 0, 0]
    assert same(folded[1], state[1])
    for layer in (0, 2):
        for r, (count, target, step) in enumerate([(4, 3, 1), (2, 4, 0), (0, None, None)]):
            assert same(folded[layer, r], decoded(window, state[layer], ids, count)[1][r])
            if target is not None:
                assert same(folded[layer, target], decoded(window, state[layer], ids, step + 1)[1][r])


@pytest.mark.parametrize("gate", ["kda", "kda_safe"])
def test_a_ring_with_the_raw_gate(gate):
    shape = Shape(gate=gate, act="bf16")
    window, ids = make_window(shape), [0, 1, 2]
    state, plain = make_state(shape, 5), make_ring(shape, 5, 4)
    raw = plain._replace(k=plain.k.copy(), v=plain.v.copy(), beta=plain.beta.copy(), g=None,
                         a=np.zeros(plain.g.shape, DTYPES["bf16"]))
    outs = [ringfold.verify(**window.arrays, slot_ids=ids, mixer=window.mixer, state=state, ring=ring)
            for ring in (plain, raw)]
    assert same(*outs) and same(raw.beta, plain.beta)
    assert same(raw.a[ids], window.arrays["a"])
    folded = [state.copy(), state.copy()]
    ringfold.fold(ids, [4, 1, 2], state=folded[0], ring=plain)
    ringfold.fold(ids, [4, 1, 2], state=folded[1], ring=raw, mixer=window.mixer)
    assert same(*folded) and not same(folded[0], state)
    with pytest.raises(ringfold.InvalidArgumentError, match="^mixer.kind: expected kda"):
        ringfold.fold(ids, [4, 1, 2], state=folded[1], ring=raw)
    with pytest.raises(ringfold.InvalidArgumentError, match="^ring.g: expected nothing beside ring.a"):
        ringfold.fold(ids, [4, 1, 2], state=folded[1], ring=raw._replace(g=plain.g), mixer=window.mixer)


def test_rings_by_request_row():
    """The functions on arrays of one's own: fewer rings than slots, with the bits of a ring for each slot."""
    shape = Shape(B=2)
    window, ids, rings, accepted = make_window(shape), [3, 0], [0, 1], [4, 2]
    by_slot, by_row = ((make_state(shape, 5), make_ring(shape, n, 4)) for n in (5, 2))
    for (state, ring), more in ((by_slot, {}), (by_row, {"ring_ids": rings})):
        ringfold.verify(**window.arrays, slot_ids=ids, mixer=window.mixer, state=state, ring=ring, **more)
        ringfold.fold(ids, accepted, state=state, ring=ring, **more)
    assert same(by_slot[0], by_row[0]) and not same(by_row[0], make_state(shape, 5))
    assert all(same(left[ids], right[rings]) for left, right in zip(by_slot[1][:4], by_row[1][:4]))

    random, C = np.random.default_rng(6), 24
    x, weight, start = noise(random, "f32", 2, 4, C), noise(random, "f32", C, 4), noise(random, "f32", 5, C, 3)
    by_slot, by_row = ((start.copy(), np.zeros((n, 4, C), np.float32)) for n in (5, 2))
    for (state, ring), more in ((by_slot, {}), (by_row, {"ring_ids": rings})):
        ringfold.conv_verify(x, weight, ids, conv_state=state, conv_ring=ring, **more)
        ringfold.conv_commit(ids, accepted, conv_state=state, conv_ring=ring, **more)
    assert same(by_slot[0], by_row[0]) and not same(by_row[0], start)
    assert same(by_slot[1][ids], by_row[1][rings])


@pytest.mark.parametrize("act", ["f32", "bf16", "f16"])
def test_conv(act):
    random, B, T, C, W, slots = np.random.default_rng(5), 2, 4, 24, 4, 3
    x, weight, bias = noise(random, act, B, T, C), noise(random, "f32", C, W), noise(random, "bf16", C)
    state = noise(random, act, slots, C, W - 1)
    ring, pending = np.zeros((slots, T, C), DTYPES[act]), np.full(slots, ringfold.NO_WINDOW, np.int32)
    ids, before = np.array([2, 0], np.int32), state.copy()
    outs = [ringfold.conv_verify(x, weight, ids, conv_state=state, conv_ring=ring, bias=bias, pending=pending,
                                 impl=impl) for impl in (None, "reference")]
    assert same(state, before) and same(outs[0], outs[1]) and outs[0].dtype == DTYPES[act]
    assert pending.tolist() == [T, ringfold.NO_WINDOW, T]
    assert same(ring[ids], x)
    for count in range(T + 1):
        committed, decoded_state = before.copy(), before.copy()
        ringfold.conv_commit(ids, [count] * B, conv_state=committed, conv_ring=ring)
        for t in range(count):
            out = ringfold.conv_decode(x[:, t:t + 1], weight, ids, conv_state=decoded_state, bias=bias)
            assert same(out[:, 0], outs[0][:, t])
        assert same(committed, decoded_state), count
    # The formula, in double. Bound: a chain of W products and the SiLU in fp32, then one rounding to `act`.
    past = np.concatenate([np.moveaxis(before[ids], 1, 2), x], axis=1).astype(np.float64)
    y = bias.astype(np.float64) + sum(past[:, j:j + T] * weight[:, j].astype(np.float64) for j in range(W))
    y *= 1 / (1 + np.exp(-y))
    unit = {"f32": 2.0 ** -24, "bf16": 2.0 ** -9, "f16": 2.0 ** -12}[act]
    size = np.abs(past).max() * np.abs(weight).max() * W + 1
    assert np.abs(outs[0].astype(np.float64) - y).max() <= (8 * 2.0 ** -24 + unit) * size
    linear = ringfold.conv_verify(x, weight, ids, conv_state=state, silu=False)
    assert not same(linear, outs[0])


@pytest.mark.parametrize("gate", ["silu", "sigmoid"])
@pytest.mark.parametrize("act", ["f32", "bf16"])
def test_gated_norm(act, gate):
    random = np.random.default_rng(6)
    x, z, weight = noise(random, act, 5, 3, 40), noise(random, act, 5, 3, 40), noise(random, "f32", 40)
    out = ringfold.gated_norm(x, z, weight, gate=gate, eps=1e-3)
    assert same(out, ringfold.gated_norm(x, z, weight, gate=gate, eps=1e-3, impl="reference"))
    x64, z64 = x.astype(np.float64), z.astype(np.float64)
    y = x64 / np.sqrt((x64 ** 2).mean(-1, keepdims=True) + 1e-3) * weight
    y *= (z64 if gate == "silu" else 1) / (1 + np.exp(-z64))
    # Bound: a sum of 40 squares and some ten operations in fp32, then one rounding to `act`.
    unit = {"f32": 2.0 ** -24, "bf16": 2.0 ** -9}[act]
    assert np.abs(out.astype(np.float64) - y).max() <= (50 * 2.0 ** -24 + unit) * np.abs(y).max()
    assert ringfold.gated_norm(x, z, weight, gate=gate, eps=1e-3, out=x) is x
    assert same(x, out)


def test_histories_of_free_functions():
    """A pool's cursors by hand: verify and decode with a history give what the pool's own calls give."""
    shape = Shape(act="bf16")
    window = make_window(shape)
    pools = [make_pool(shape, ring_rows=10, max_window=4, fold_policy="lazy") for _ in range(2)]
    slots = [pool.acquire(3) for pool in pools]
    for step in range(4):
        inputs = make_window(shape, seed=step).arrays
        left = pools[0].verify(0, **inputs, slots=slots[0], mixer=window.mixer)
        right = ringfold.verify(**inputs, slot_ids=[slot.id for slot in slots[1]], mixer=window.mixer,
                                **pools[1].bind(0))
        assert same(left, right)
        for pool, handles in zip(pools, slots):
            pool.commit([1, 3, 4], handles)
    left = pools[0].decode(0, **window.arrays, slots=slots[0], mixer=window.mixer)
    right = ringfold.decode(**window.arrays, slot_ids=[slot.id for slot in slots[1]], mixer=window.mixer,
                            **pools[1].bind(0))
    assert same(left, right)
    assert [pools[0].export(slot) for slot in slots[0]] == [pools[1].export(slot) for slot in slots[1]]


def test_numbers_of_threads_do_not_change_bits():
    shape = Shape(B=3, HV=8, V=64)
    window, state = make_window(shape), make_state(shape, 3)
    threads = ringfold.num_threads()
    try:
        results = []
        for count in (1, 3):
            ringfold.set_num_threads(count)
            assert ringfold.num_threads() == count
            results.append(ringfold.verify(**window.arrays, slot_ids=[0, 1, 2], mixer=window.mixer, state=state))
        assert same(*results)
    finally:
        ringfold.set_num_threads(threads)
