"""GDN through SGLang's entry points: the anchors of a verify that writes a ring, as bits."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import ringfold.integrations.sglang as adapter  # noqa: E402
from sglang_case import DEVICES, Case, Shape, layered, poisoned_memory, same  # noqa: E402, F401

# Two key heads for four value heads, more slots than rows.
BASE = Shape(H=2, HV=4, K=128, V=128, L=8, slots=11)
ROWS = {1: [4], 8: [9, 0, 3, 7, 1, 10, 5, 2]}


def by_update(case, indices, **more):
    return adapter.fused_sigmoid_gating_delta_rule_update(**case.verify_arguments(indices, **more))


def by_mtp(case, indices, **more):
    arguments = case.verify_arguments(indices, **more)
    del arguments["is_kda"], arguments["lower_bound"]
    return adapter.gated_delta_rule_mtp(**arguments)


def fold_one(case, indices, accepted, **more):
    arguments = case.fold_arguments(indices, accepted, **more)
    for name in ("checkpoint_state", "rawv_cache", "rawk_cache", "g_cache", "beta_cache"):
        arguments[name] = arguments[name][None]
    adapter.commit_gdn_replayssm_fold_all_layers(**arguments)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("state", ["bf16", "f32"])
@pytest.mark.parametrize("T", range(3, 9))
@pytest.mark.parametrize("B", [1, 8])
@pytest.mark.parametrize("verify", [by_update, by_mtp])
def test_ring_anchors(verify, B, T, state, device):
    case = Case(replace(BASE, B=B, T=T, state=state, device=device))
    indices, before = ROWS[B], case.state.clone()
    plain = verify(case, indices)
    ringed = verify(case, indices, **case.ring_arguments())
    # The ring changes no bit of the outputs, and neither call changes the states.
    assert same(ringed, plain) and same(case.state, before)
    ring, empty = case.ring, case.new_ring()
    for row, slot in enumerate(indices):
        outputs, _ = case.decoded(before, row, slot, T)
        assert same(ringed[row], outputs)
        # v and k as they came.
        assert same(ring["rawv"][slot, :, :T], case.v[row].transpose(0, 1))
        assert same(ring["rawk"][slot, :, :T], case.k[row].transpose(0, 1))
        # g and beta by their formulas in double. Bound: some six operations in fp32, each within 2 units of 2^-24.
        a, b = case.a[row].double(), case.b[row].double()
        softplus = torch.nn.functional.softplus(a + case.dt_bias.double())
        g, beta = -case.A_log.double().exp() * softplus, torch.sigmoid(b)
        for name, exact in (("g", g), ("beta", beta)):
            found = ring[name][slot, :, :T].double().transpose(0, 1)
            assert ((found - exact).abs() <= 12 * 2.0 ** -24 * (exact.abs() + 2.0 ** -24)).all(), name
        for name in ring:
            assert same(ring[name][slot, :, T:], empty[name][slot, :, T:])
    others = [slot for slot in range(case.shape.slots) if slot not in indices]
    for name in ring:
        assert same(ring[name][others], empty[name][others])
    # The ring folded, for some numbers of accepted tokens, is the state that decoding has.
    accepted = [1 + (T - 1 + row) % T for row in range(B)]
    fold_one(case, indices, accepted)
    assert same(case.state, case.expected_states(before, indices, accepted))
    assert same(case.state[others], before[others]) and not same(case.state, before)
    # And the states are those that a call with disable_state_update=False leaves.
    case.state.copy_(before)
    fold_one(case, indices, [T] * B)
    folded = case.state.clone()
    case.state.copy_(before)
    updated = verify(case, indices, disable_state_update=False)
    assert same(updated, plain) and same(case.state, folded)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("T", [1, 2])
def test_windows_below_three_have_rings_too(T, device):
    case = Case(replace(BASE, B=1, T=T, device=device))
    before = case.state.clone()
    by_mtp(case, [4], **case.ring_arguments())
    fold_one(case, [4], [T])
    assert same(case.state, case.expected_states(before, [4], [T]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("verify", [by_update, by_mtp])
def test_recording_and_updating_at_once(verify, device):
    case = Case(replace(BASE, device=device))
    indices, before = [2, 0, 5], case.state.clone()
    recorded = {name: tensor.clone() for name, tensor in case.ring.items()}
    verify(case, indices, **{**case.ring_arguments(),
                             **{f"replayssm_{name}": tensor for name, tensor in recorded.items()}})
    out = verify(case, indices, disable_state_update=False, **case.ring_arguments())
    assert all(same(case.ring[name], recorded[name]) for name in recorded)
    assert same(case.state, case.expected_states(before, indices, [case.shape.T] * 3))
    assert same(out[1], case.decoded(before, 1, 0, case.shape.T)[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("track", [False, True])
def test_all_layers_at_once_are_the_layers_one_by_one(track, device):
    shape = Shape(slots=9, device=device)
    cases = [Case(shape, seed=layer) for layer in range(3)]
    indices, accepted = [0, -1, 5], [2, 3, 0]
    arguments = layered(cases, cases[0].fold_arguments(indices, accepted))
    if track:
        arguments.update(mamba_track_indices=cases[0].ints([7, 6, 8]), mamba_steps_to_track=cases[0].ints([1, 0, 0]))
    before = arguments["checkpoint_state"].clone()
    for case in cases:
        by_update(case, indices, **case.ring_arguments())
    alone = []
    for case in cases:
        state, ring = case.state.clone(), case.ring
        one = {**arguments, "checkpoint_state": state[None], "rawv_cache": ring["rawv"][None],
               "rawk_cache": ring["rawk"][None], "g_cache": ring["g"][None], "beta_cache": ring["beta"][None]}
        adapter.commit_gdn_replayssm_fold_all_layers(**one)
        alone.append(state)
    adapter.commit_gdn_replayssm_fold_all_layers(**arguments)
    assert same(arguments["checkpoint_state"], torch.stack(alone))
    for layer, case in enumerate(cases):
        expected = case.expected_states(before[layer], indices, accepted)
        if track:
            expected[7] = case.decoded(before[layer], 0, 0, 2)[1][0]
        assert same(case.state, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_slot_0_is_an_ordinary_slot_unless_null_block_id_says_otherwise(device):
    case = Case(Shape(device=device))
    before = case.state.clone()
    by_update(case, [0, 1, 2], **case.ring_arguments())
    fold_one(case, [0, 1, 2], [1, 1, 1], null_block_id=1)
    assert same(case.state, case.expected_states(before, [-1, -1, 2], [1, 1, 1]))
    fold_one(case, [0, -1, -7], [1, 1, 1])
    assert same(case.state[:1], case.expected_states(before, [0, -1, -1], [1, 1, 1])[:1])


@pytest.mark.parametrize("device", DEVICES)
def test_mtp_writes_where_it_is_told_to(device):
    case = Case(replace(BASE, device=device))
    plain = by_mtp(case, [2, 0, 5])
    output = torch.empty(case.v.shape, dtype=torch.float32, device=device)
    assert by_mtp(case, [2, 0, 5], output=output) is output
    assert same(output.to(plain.dtype), plain)
    buffer = torch.full((3, 5, 4, 128, 128), 9.0, device=device)
    before = case.state.clone()
    out = by_mtp(case, [2, 0, 5], intermediate_states_buffer=buffer, disable_state_update=False)
    assert same(out, plain) and same(case.state, before)  # with a buffer the state is not written
    for row, slot in enumerate([2, 0, 5]):
        for t in range(4):
            assert same(buffer[row, t], case.decoded(before, row, slot, t + 1)[1][slot])
    assert (buffer[:, 4] == 9).all()


def test_mtp_refuses_what_it_does_not_do():
    case = Case(Shape())
    indices = case.ints([2, 0, 5])
    for name, value in (("output_state_indices", indices.clone()), ("accepted_steps", indices),
                        ("ssm_state_indices", indices), ("disable_output", True), ("recovery_steps", 1)):
        with pytest.raises(NotImplementedError, match=f"^{name}: expected .*, found .*not supported"):
            by_mtp(case, [2, 0, 5], **{name: value})
    assert same(by_mtp(case, [0], initial_state_indices=indices, output_state_indices=indices, accepted_steps=None,
                       recovery_steps=0, disable_output=False), by_mtp(case, [2, 0, 5]))
    with pytest.raises(ValueError, match="^intermediate_states_buffer: expected .*B = 3 and at least 4 steps, found"):
        by_mtp(case, [2, 0, 5], intermediate_states_buffer=torch.empty(4, 4, 4, 24, 32))
