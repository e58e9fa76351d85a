"""The operators with rings keyed by request row: the bytes of the plain calls, and of rings keyed by slot."""

import pytest
from support import Shape

import ringfold

torch = pytest.importorskip("torch", reason="torch is not installed")
import ringfold.torch as rt  # noqa: E402
from torch_case import DEVICES, Case, LayerCase, bits  # noqa: E402

RINGS = 4


def ring_bytes(case, places):
    """What verify recorded, in both layers: the rings that are named, in this order."""
    places = places.long()
    return [bits(view[:, places]) for view in (*case.pool.ring(), case.pool.conv_ring()) if view is not None]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gate, more", [("gdn", {}), ("kda", {}), ("kda_safe", {"ring_a": "bf16"})])
def test_operators_are_the_plain_calls(device, gate, more):
    shape = Shape(gate=gate, act="bf16")
    case, plain = (Case(shape, device, rings=RINGS, **more) for _ in range(2))
    by_slot = Case(shape, device, **more)
    if more:
        for each in (case, plain, by_slot):
            each.pool.set_mixers([each.mixer] * 2)
    for step in range(3):
        for each in (case, plain):
            each.use_rings(step)
        out = plain.arrays["v"]
        for layer in range(2):
            out = plain.pool.verify(layer, **{**plain.arrays, "v": out}, slots=plain.ids, mixer=plain.mixer,
                                    ring_ids=plain.rings) * 2
        plain.pool.commit(plain.accept, plain.ids, ring_ids=plain.rings)
        assert bits(case.run(case.step)) == bits(out) == bits(by_slot.run(by_slot.step))
        assert case.memory() == plain.memory()
        assert ring_bytes(case, case.rings) == ring_bytes(by_slot, by_slot.ids)
        assert bits(case.pool.state()) == bits(by_slot.pool.state())
    assert bits(case.pool.owners(1).slot_of_ring[case.rings.long()]) == bits(case.ids)
    # decode knows no rings, and takes what bind gives.
    token = {name: value[:, :1].contiguous() for name, value in case.arrays.items()}
    outs = [rt.decode(**token, slot_ids=each.ids, mixer=each.mixer, **each.layers[1]) for each in (case, by_slot)]
    assert bits(outs[0]) == bits(outs[1])
    assert bits(case.pool.state()) == bits(by_slot.pool.state())


@pytest.mark.parametrize("device", DEVICES)
def test_layers_are_the_plain_calls(device):
    shape = Shape(act="bf16", K=64, V=64)
    case, plain, by_slot = (LayerCase(shape, device, rings=rings) for rings in (RINGS, RINGS, 0))
    for step in range(3):
        for each in (case, plain):
            each.use_rings(step)
        outs = [plain.pool.verify_layer(i, **plain.layer, slots=plain.ids, ring_ids=plain.rings) for i in range(2)]
        plain.pool.commit(plain.accept, plain.ids, ring_ids=plain.rings)
        outs.append(plain.pool.decode_layer(0, **plain.layer, slots=plain.ids))
        for each in (case, by_slot):
            assert [bits(out) for out in each.run_whole(each.whole_step)] == [bits(out) for out in outs]
        assert case.memory() == plain.memory()
        assert ring_bytes(case, case.rings) == ring_bytes(by_slot, by_slot.ids)
        assert bits(case.pool.state()) == bits(by_slot.pool.state())
        assert bits(case.pool.conv_state()) == bits(by_slot.pool.conv_state())
    assert bits(case.pool.conv_owners(0).slot_of_ring[case.rings.long()]) == bits(case.ids)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cursors", [False, True])
def test_fold(device, cursors):
    """With pending and owners (which fold consults), and without both."""
    case, plain = (Case(Shape(), device, rings=RINGS) for _ in range(2))
    status = torch.full((3,), 77, dtype=torch.int32, device=device)
    for each in (case, plain):
        each.use_rings(1)
        rt.verify(**each.arrays, slot_ids=each.ids, mixer=each.mixer, ring_ids=each.rings, **each.layers[0])
    fold = {name: plain.layers[0][name] for name in ("state", "ring", *(("pending", "owners") if cursors else ()))}
    ringfold.fold(plain.ids, plain.accept, **fold, ring_ids=plain.rings)
    fold = {name: case.layers[0][name] for name in fold}
    other = torch.roll(case.rings, 1)
    before = case.memory()
    if cursors:  # a window is not in the ring of another row
        rt.fold(case.ids, case.accept, **fold, ring_ids=other, row_status=status)
        assert status.tolist() == [ringfold.RowStatus.window_not_in_ring] * 3 and case.memory() == before
    rt.fold(case.ids, case.accept, **fold, ring_ids=case.rings, row_status=status)
    assert status.tolist() == [0, 0, 0]
    assert case.memory() == plain.memory() != before


def test_what_is_refused():
    case = Case(Shape(), "cpu", rings=RINGS)
    window = {**case.arrays, "slot_ids": case.ids, "mixer": case.mixer}
    verify = {**window, **case.layers[0]}
    with pytest.raises(ringfold.InvalidArgumentError, match="^ring_ids: expected i32"):
        rt.commit(case.whole, case.accept, case.ids)
    with pytest.raises(ringfold.InvalidArgumentError, match="^owners"):
        rt.verify(**{**verify, "owners": None}, ring_ids=case.rings)
    with pytest.raises(ringfold.InvalidArgumentError, match="^ring_ids: expected dtype .*found int64"):
        rt.verify(**verify, ring_ids=case.rings.long())
    status = torch.full((3,), 77, dtype=torch.int32)
    rt.verify(**verify, ring_ids=torch.tensor([0, RINGS, 1], dtype=torch.int32), row_status=status)
    rt.verify(**{**window, **case.layers[1]}, ring_ids=torch.tensor([0, 2, 1], dtype=torch.int32))
    assert status.tolist() == [0, ringfold.RowStatus.ring_out_of_range, 0]
    rt.commit(case.whole, case.accept, case.ids, ring_ids=torch.tensor([0, 2, 3], dtype=torch.int32), row_status=status)
    assert [ringfold.RowStatus(s).name for s in status.tolist()] == ["done", "no_pending_window", "window_not_in_ring"]
    with pytest.raises(ringfold.InvalidArgumentError, match="row 0 is refused: duplicate_ring"):
        rt.verify(**verify, ring_ids=torch.ones(3, dtype=torch.int32))
    by_slot = Case(Shape(), "cpu")
    with pytest.raises(ringfold.InvalidArgumentError, match="^ring_ids: expected nothing"):
        rt.commit(by_slot.whole, by_slot.accept, by_slot.ids, ring_ids=case.rings)


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device):
    """torch's own checks, of the arguments that rings keyed by request row add."""
    case = LayerCase(Shape(act="bf16"), device, rings=RINGS)
    m, x, b = case.mixer, case.layer, case.bound[0]
    status = torch.zeros(3, dtype=torch.int32, device=device)
    history, exact = (None, None, None, "on_commit", 0), ("exact", "per_commit", None)
    mixer = (m.A_log, m.dt_bias, m.kind, m.softplus_beta, m.softplus_threshold, m.lower_bound, m.scale, m.qk_l2norm)
    torch.library.opcheck(torch.ops.ringfold.verify.default,
                          (*case.arrays.values(), case.ids, None, 0, *mixer, b["state"], *b["ring"], b["pending"],
                           *history, None, status, False, *exact, case.rings, *b["owners"]))
    torch.library.opcheck(torch.ops.ringfold.verify_layer.default,
                          ([x["qkv"]], x["a"], x["b"], case.ids, None, 0, *mixer, x["conv_weight"], x["conv_bias"],
                           True, x["z"], x["norm_weight"], "silu", 1e-6, "f32", b["state"], *b["ring"], b["pending"],
                           b["conv_state"], b["conv_ring"], b["conv_pending"], *history, status, False, *exact,
                           case.rings, *b["owners"], *b["conv_owners"]))
    rt.verify(**case.arrays, slot_ids=case.ids, mixer=m, ring_ids=case.rings, **case.layers[0])
    torch.library.opcheck(torch.ops.ringfold.fold.default,
                          (case.ids, case.accept, b["state"], *b["ring"], None, b["pending"], *history, None, None,
                           status, True, None, None, "gdn", 1.0, 20.0, None, "per_commit", None, case.rings,
                           *b["owners"]))
    torch.library.opcheck(torch.ops.ringfold.commit.default,  # its pool alone, as in test_torch
                          (*case.whole, case.ids, case.accept, None, None, None, status, None, case.rings),
                          test_utils=("test_autograd_registration",))
