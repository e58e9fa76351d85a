"""Every argument that is wrong is refused by its name, and nothing is written then."""

import numpy as np
import pytest
from support import Shape, make_pool, make_ring, make_state, make_window, same

import ringfold

SHAPE = Shape()


def arguments():
    """A good call of verify."""
    window = make_window(SHAPE)
    return {**window.arrays, "slot_ids": np.array([0, 1, 2], np.int32), "mixer": window.mixer,
            "state": make_state(SHAPE, 4), "ring": make_ring(SHAPE, 4, 4),
            "pending": np.full(4, ringfold.NO_WINDOW, np.int32), "out": np.full((3, 4, 4, 24), 7, np.float32),
            "row_status": np.full(3, 77, np.int32)}


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def mixer(**changes):
    good = make_window(SHAPE).mixer
    return ringfold.Mixer(**{"A_log": good.A_log, "dt_bias": good.dt_bias, **changes})


GOOD = arguments()
BAD = {
    "q": [GOOD["q"][..., :-1], GOOD["q"].astype(np.float64), GOOD["q"].astype(np.float16), "text", [1.0], object(),
          np.float32(1), GOOD["q"][..., ::2]],
    "k": [GOOD["k"][:, :3], None],
    "v": [GOOD["v"][0], 3],
    "a": [GOOD["a"][..., None], GOOD["a"].astype(np.int32)],
    "b": [GOOD["b"][:2], GOOD["b"].astype(np.uint8)],
    "slot_ids": [np.array([0, 1, 2], np.int64), np.zeros((3, 1), np.int32), [0, 1], None],
    "cu_seqlens": [np.array([0, 4], np.int32)],
    "max_window": [-1, 33, "many", 1.5],
    "mixer": [None, 3, GOOD["q"]],
    "state": [GOOD["state"][0], GOOD["state"].astype(np.int32), None, np.zeros((1, 2, 3, 4, 5, 6, 7), np.float32)],
    "ring": [GOOD["ring"]._replace(k=GOOD["ring"].k[:3]), GOOD["ring"]._replace(g=GOOD["ring"].g.astype(np.float16)),
             GOOD["ring"]._replace(v=read_only(GOOD["ring"].v)), 3],
    "pending": [np.zeros(3, np.int32), np.zeros(4, np.int64), read_only(np.zeros(4, np.int32))],
    "out": [GOOD["out"][:, :, :, :-1], GOOD["out"].astype(np.float16), read_only(GOOD["out"])],
    "snapshots": [np.zeros((3, 4, 4, 24, 31), np.float32), read_only(np.zeros((3, 4, 4, 24, 32), np.float32))],
    "row_status": [np.zeros(4, np.int32), read_only(np.zeros(3, np.int32))],
    "numerics": ["exactly", 3],
    "state_rounding": ["sometimes"],
    "impl": [3],
    "stream": ["now", object()],
}
# K is taken from q, B from slot_ids, the rank from cu_seqlens: an array that contradicts it may be the one named.
BLAMED = {"q": "k", "slot_ids": "v", "cu_seqlens": "v"}
BAD_MIXERS = {
    "A_log": [np.zeros(3, np.float32), np.zeros(4, np.float16), None],
    "dt_bias": [np.zeros((4, 2), np.float32)],
    "kind": ["mamba", 3],
    "softplus_beta": [0.0, float("nan"), "x"],
    "softplus_threshold": [81.0],
    "lower_bound": [-5.0],
    "scale": [float("inf"), "x"],
    "qk_l2norm": ["yes"],
}


@pytest.mark.parametrize("name", BAD)
def test_verify_names_the_argument(name):
    for value in BAD[name]:
        call = {**arguments(), name: value}
        with pytest.raises(ringfold.InvalidArgumentError) as caught:
            ringfold.verify(**call)
        message = str(caught.value)
        assert message.split(":")[0].split(".")[0] in (name, BLAMED.get(name)), message
        assert "expected" in message and "found" in message
        assert isinstance(caught.value, ValueError) and caught.value.code == ringfold.Code.invalid_argument
        untouched = arguments()
        for other in ("state", "pending", "out", "row_status"):
            if other != name:
                assert same(call[other], untouched[other]), (name, other)
        if name != "ring":
            assert not any(part.any() for part in call["ring"][:4])


@pytest.mark.parametrize("name", BAD_MIXERS)
def test_mixer_fields(name):
    for value in BAD_MIXERS[name]:
        with pytest.raises(ringfold.InvalidArgumentError, match=rf"^mixer\.{name}: expected .*found"):
            ringfold.verify(**{**arguments(), "mixer": mixer(**{name: value})})


def test_the_good_call_is_good():
    call = arguments()
    assert ringfold.verify(**call) is call["out"]
    assert call["row_status"].tolist() == [0, 0, 0] and call["pending"].tolist() == [4, 4, 4, -1]


def test_read_only_inputs_are_read():
    call = arguments()
    for name in ("q", "k", "v", "a", "b", "slot_ids", "state"):
        call[name] = read_only(call[name])
    expected = ringfold.verify(**arguments())
    assert same(ringfold.verify(**call), expected)


@pytest.mark.parametrize("name", ["state", "pending", "row_status"])
def test_fold_and_decode_refuse_read_only(name):
    window = make_window(SHAPE)
    good = {"state": make_state(SHAPE, 4), "pending": np.full(4, 4, np.int32), "row_status": np.zeros(3, np.int32)}
    bad = {**good, name: read_only(good[name])}
    with pytest.raises(ringfold.InvalidArgumentError, match=f"^{name}: expected an array that may be written"):
        ringfold.fold([0, 1, 2], [1, 1, 1], ring=make_ring(SHAPE, 4, 4), **bad)
    with pytest.raises(ringfold.InvalidArgumentError, match=f"^{name}: expected an array that may be written"):
        ringfold.decode(**window.arrays, slot_ids=[0, 1, 2], mixer=window.mixer, **bad)


def test_fold_arguments():
    good = {"state": make_state(SHAPE, 4), "ring": make_ring(SHAPE, 4, 4)}
    for name, value in {"layers": [1], "track_slots": np.zeros(2, np.int32), "num_accepted": [1, 1],
                        "state_rounding": "never"}.items():
        call = {"slot_ids": [0, 1, 2], "num_accepted": [1, 1, 1], **good, name: value}
        with pytest.raises(ringfold.InvalidArgumentError, match=name):
            ringfold.fold(**call)
    for layers in (3, ["x"], []):
        with pytest.raises(ringfold.InvalidArgumentError, match="^layers: expected"):
            ringfold.fold([0, 1, 2], [1, 1, 1], **good, layers=layers)


def test_conv_and_norm_arguments():
    x, weight, state = np.zeros((1, 2, 4), np.float32), np.zeros((4, 4), np.float32), np.zeros((2, 4, 3), np.float32)
    ringfold.conv_verify(x, weight, [0], conv_state=state)
    for name, value in {"x": x[0], "weight": weight[:, :1], "bias": np.zeros(3, np.float32),
                        "conv_state": state[..., :2], "conv_ring": np.zeros((2, 1, 4), np.float32), "out": read_only(x),
                        "slot_ids": [0, 1], "silu": "no", "impl": 1}.items():
        call = {"x": x, "weight": weight, "slot_ids": [0], "conv_state": state, name: value}
        with pytest.raises(ringfold.InvalidArgumentError):
            ringfold.conv_verify(**call)
    with pytest.raises(ringfold.InvalidArgumentError, match="^conv_state: expected an array that may be written"):
        ringfold.conv_decode(x, weight, [0], conv_state=read_only(state))
    z = np.zeros((1, 2, 4), np.float32)
    for name, value in {"x": z[0], "z": z[..., :3], "weight": np.zeros(3, np.float32), "out": read_only(z),
                        "gate": "relu", "eps": -1.0}.items():
        call = {"x": z, "z": z, "weight": np.zeros(4, np.float32), name: value}
        with pytest.raises(ringfold.InvalidArgumentError, match=f"^{name}: expected .*found"):
            ringfold.gated_norm(**call)


def test_codes_and_their_exceptions():
    with pytest.raises(ringfold.NotFoundError, match="^impl: expected one of .*reference, found warp9") as caught:
        ringfold.verify(**{**arguments(), "impl": "warp9"})
    assert isinstance(caught.value, ValueError) and caught.value.code == ringfold.Code.not_found
    call = arguments()
    ring = call["ring"]
    u = np.zeros((*ring.v.shape[:-1], ring.v.shape[-1]), np.float32)
    cursors = [np.zeros(ring.k.shape[0], np.int32) for _ in range(3)]
    history = ringfold.History(*cursors, policy="lazy", max_window=ring.k.shape[1] - 1)
    short = {name: call[name][:, :1] for name in ("q", "k", "v", "a", "b", "out")}
    with pytest.raises(ringfold.UnsupportedError, match="keeps no u in the ring") as caught:
        ringfold.verify(**{**call, **short, "ring": ring._replace(u=u), "history": history, "numerics": "fast"})
    assert isinstance(caught.value, NotImplementedError) and caught.value.code == ringfold.Code.unsupported
    pool = make_pool(SHAPE, slots=1)
    with pytest.raises(ringfold.OutOfMemoryError, match="^slots: expected 2 free slots, found 1 of 1") as caught:
        pool.acquire(2)
    assert isinstance(caught.value, MemoryError) and caught.value.code == ringfold.Code.out_of_memory
    with pytest.raises(ringfold.OutOfMemoryError):
        make_pool(SHAPE, slots=2 ** 31 - 1, layers=2 ** 16)
    assert issubclass(ringfold.InternalError, RuntimeError) and ringfold.InternalError.code == ringfold.Code.internal
    for kind in (ringfold.NotFoundError, ringfold.UnsupportedError, ringfold.OutOfMemoryError, ringfold.InternalError,
                 ringfold.InvalidArgumentError):
        assert issubclass(kind, ringfold.Error)


def test_row_statuses():
    call = {**arguments(), "slot_ids": np.array([-1, 9, 2], np.int32)}
    out = ringfold.verify(**call)
    assert call["row_status"].tolist() == [ringfold.RowStatus.null_row, ringfold.RowStatus.slot_out_of_range,
                                           ringfold.RowStatus.done]
    assert not out[:2].any() and out[2].any()
    call = {**arguments(), "slot_ids": [1, 1, 2]}
    ringfold.verify(**call)
    assert [ringfold.RowStatus(x).name for x in call["row_status"]] == ["duplicate_slot", "duplicate_slot", "done"]
    call = {**arguments(), "slot_ids": [0, 9, 2], "row_status": None}
    with pytest.raises(ringfold.InvalidArgumentError, match="slot_out_of_range"):
        ringfold.verify(**call)
    assert (call["out"] == 7).all()


def test_enumerations_are_those_of_the_library():
    from ringfold import _ringfold

    assert [_ringfold.row_status_name(status) for status in ringfold.RowStatus] == [s.name for s in ringfold.RowStatus]
    assert _ringfold.row_status_name(len(ringfold.RowStatus)) == "unknown"
    assert isinstance(ringfold.RowStatus.done, int)
