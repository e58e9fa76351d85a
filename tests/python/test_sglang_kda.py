"""KDA through SGLang's entry points: every group of parity tests of its ring, as bits where those have tolerances."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import ringfold  # noqa: E402
import ringfold.integrations.sglang as adapter  # noqa: E402
from sglang_case import DEVICES, Case, Shape, layered, poisoned_memory, same  # noqa: E402, F401

GATES = ["kda", "kda_safe"]


def verify(case, indices, **more):
    return adapter.fused_sigmoid_gating_delta_rule_update(**case.verify_arguments(indices, **more))


def fold(case, indices, accepted, **more):
    adapter.commit_kda_replayssm_spec(**case.fold_arguments(indices, accepted, **more))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gate", GATES)
def test_fold(gate, device):
    """For every number of accepted tokens the state that decoding leaves, token by token."""
    case = Case(Shape(B=3, T=6, H=4, HV=4, K=64, V=64, L=16, slots=4, gate=gate, act="f32", device=device))
    before = case.state.clone()
    verify(case, [1, 2, 3], **case.ring_arguments())
    for count in range(7):
        case.state.copy_(before)
        fold(case, [1, 2, 3], [count] * 3)
        expected = before.clone()
        for row, slot in enumerate([1, 2, 3]):
            expected[slot] = case.decoded(before, row, slot, count, each=True)[1][slot]
        assert same(case.state, expected), count
        assert same(case.state, before) == (count == 0)


@pytest.mark.parametrize("gate", GATES)
def test_the_gates_differ(gate):
    """A fold of a ring that was written with the other gate would be noticed."""
    case, other = Case(Shape(gate=gate)), Case(Shape(gate=gate))
    verify(case, [1, 2, 3], **case.ring_arguments())
    verify(other, [1, 2, 3], **{**other.ring_arguments(), "lower_bound": -5.0 if gate == "kda" else None})
    fold(case, [1, 2, 3], [2, 2, 2])
    fold(other, [1, 2, 3], [2, 2, 2])
    assert not same(case.state, other.state)


RING_SHAPES = [(16, 7, 4, 4, 64, 64), (3, 7, 32, 32, 128, 128), (8, 4, 2, 8, 128, 128), (4, 3, 3, 6, 96, 80),
               (1, 1, 4, 4, 64, 64)]  # B, T, H, HV, K, V


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("act", ["f32", "bf16"])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("sizes", RING_SHAPES, ids=str)
def test_ring_in_verify(sizes, gate, act, padded, device):
    """The ring that verify writes, folded, is verify's own state after each token."""
    B, T, H, HV, K, V = sizes
    case = Case(Shape(B, T, H, HV, K, V, max(16, 2 * T), B + 2, gate, act, device=device))
    before, empty = case.state.clone(), case.new_ring()
    indices = [slot + 1 for slot in range(B)]
    if padded:
        indices[B // 2:] = [-1] * (B - B // 2)
    buffer = torch.full((B, T, HV, V, K), 9.0, device=device)
    plain = verify(case, indices)
    out = verify(case, indices, intermediate_states_buffer=buffer,
                 intermediate_state_indices=torch.arange(B, dtype=torch.int32, device=device), **case.ring_arguments())
    assert same(out, plain) and same(case.state, before)
    accepted = [1 + row % T for row in range(B)]
    fold(case, indices, accepted)
    expected = before.clone()
    for row, slot in enumerate(indices):
        if slot < 0:
            assert not out[row].any() and (buffer[row] == 9).all()
            continue
        expected[slot] = buffer[row, accepted[row] - 1]
        assert same(case.ring["rawv"][slot, :, :T], case.v[row].transpose(0, 1))
        assert same(case.ring["rawk"][slot, :, :T], case.k[row].transpose(0, 1))
        for name in case.ring:
            assert same(case.ring[name][slot, :, T:], empty[name][slot, :, T:])
        outputs, states = case.decoded(before, row, slot, T)
        assert same(out[row], outputs) and same(buffer[row, T - 1], states[slot])
    assert same(case.state, expected)
    others = [slot for slot in range(B + 2) if slot not in indices]
    for name in case.ring:
        assert same(case.ring[name][others], empty[name][others])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("gate", GATES)
def test_ragged(gate, partial, device):
    case = Case(Shape(B=5, T=6, slots=8, gate=gate, device=device))
    lengths, indices = [3, 0, 6, 1, 4], [2, 7, 1, 5, 3]
    before, empty = case.state.clone(), case.new_ring()
    out = adapter.fused_sigmoid_gating_delta_rule_update(
        **case.ragged_arguments(indices, lengths, **case.ring_arguments()))
    assert out.shape == (1, sum(lengths), 4, 24) and same(case.state, before)
    accepted = [max(0, n - 1 - row % 2) for row, n in enumerate(lengths)] if partial else lengths
    fold(case, indices, accepted)
    assert same(case.state, case.expected_states(before, indices, accepted))
    begin = 0
    for row, (slot, n) in enumerate(zip(indices, lengths)):
        assert same(out[0, begin:begin + n], case.decoded(before, row, slot, n)[0])
        begin += n
        for name in case.ring:
            assert same(case.ring[name][slot, :, n:], empty[name][slot, :, n:])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("track", [False, True])
@pytest.mark.parametrize("sizes", [(3, 2, 4, 32, 24), (2, 3, 6, 96, 80), (1, 4, 4, 64, 64)], ids=str)
@pytest.mark.parametrize("gate", GATES)
def test_all_layers(gate, sizes, track, device):
    """One call is the layers one by one; with tracked states, rows that accept nothing, and padding."""
    layers, H, HV, K, V = sizes
    shape = Shape(4, 5, H, HV, K, V, 8, 12, gate, device=device)
    cases = [Case(shape, seed=layer) for layer in range(layers)]
    indices, accepted = [3, -1, 1, 2], [4, 5, 0, 1]
    arguments = layered(cases, cases[0].fold_arguments(indices, accepted))
    tracked = {}
    if track:
        # 8: after step 2. 9: a row of padding. 10: a row that accepts nothing. 11: a step that was not accepted.
        tracked = {"mamba_track_indices": cases[0].ints([8, 9, 10, 11]),
                   "mamba_steps_to_track": cases[0].ints([2, 0, 0, 1])}
    before = arguments["checkpoint_state"].clone()
    for case in cases:
        verify(case, indices, **case.ring_arguments())
    alone = []
    for case in cases:
        state = case.state.clone()
        fold(case, indices, accepted, checkpoint_state=state, **tracked)
        alone.append(state)
    adapter.commit_kda_replayssm_spec_all_layers(**arguments, **tracked)
    assert same(arguments["checkpoint_state"], torch.stack(alone))
    for layer, case in enumerate(cases):
        expected = case.expected_states(before[layer], indices, accepted)
        if track:
            expected[8] = case.decoded(before[layer], 0, 3, 3)[1][3]
        assert same(case.state, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_that_the_fold_skips(device):
    """Null slots, negative ones whatever null_block_id says, and counts below 1; a skipped row takes no snapshot."""
    case = Case(Shape(B=5, T=4, slots=7, gate="kda", device=device))
    before = case.state.clone()
    verify(case, [0, 1, 2, 3, 4], **case.ring_arguments())
    fold(case, [0, 1, 2, -1, -3], [4, -1, 0, 4, 4], mamba_track_indices=case.ints([5, 6, 5, 6, 5]),
         mamba_steps_to_track=case.ints([0, 0, 0, 0, 0]))
    assert same(case.state, before)
    fold(case, [0, -1, 2, 3, -2], [1, 1, 1, 1, 1], null_block_id=-5, mamba_track_indices=case.ints([-2, 2, -1, -4, 3]),
         mamba_steps_to_track=case.ints([0, 0, 0, 0, 0]))
    assert same(case.state, case.expected_states(before, [0, -1, 2, 3, -1], [1, 1, 1, 1, 1]))
    fold(case, [0, 1, 2, 3, 4], [1, 1, 1, 1, 2], null_block_id=3)
    assert same(case.state[1], before[1]) and same(case.state[4], case.decoded(before, 4, 4, 2)[1][4])


@pytest.mark.parametrize("device", DEVICES)
def test_tracking_by_its_rules(device):
    """A snapshot goes nowhere for a negative slot or step; one in the row's own slot gives way to the final state."""
    case = Case(Shape(B=4, T=4, slots=9, gate="kda", device=device))
    before, indices, accepted = case.state.clone(), [1, 2, 3, 4], [3, 3, 3, 3]
    verify(case, indices, **case.ring_arguments())
    fold(case, indices, accepted, mamba_track_indices=case.ints([-1, 6, 3, 0]),
         mamba_steps_to_track=case.ints([1, -1, 0, 0]))
    assert same(case.state, case.expected_states(before, indices, accepted))
    # Slot 0 takes a snapshot where it is not null; the last accepted step is one too.
    case.state.copy_(before)
    fold(case, indices, accepted, mamba_track_indices=case.ints([0, -1, -1, 8]),
         mamba_steps_to_track=case.ints([0, 0, 0, 2]), null_block_id=-1)
    expected = case.expected_states(before, indices, accepted)
    expected[0], expected[8] = case.decoded(before, 0, 1, 1)[1][1], expected[4]
    assert same(case.state, expected)
    # One of the two tensors alone says nothing.
    case.state.copy_(before)
    fold(case, indices, accepted, mamba_track_indices=case.ints([0, 8, 8, 8]))
    assert same(case.state, case.expected_states(before, indices, accepted))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gate", GATES)
def test_graph_padding(gate, device):
    """A batch padded for a graph: a row on slot 0, which the fold takes for null, rows without tokens, tokens too many."""
    case = Case(Shape(B=4, T=4, slots=6, gate=gate, device=device))
    before = case.state.clone()
    verify(case, [3, 5, 0, -1], **case.ring_arguments())
    assert same(case.state, before)
    fold(case, [3, 5, 0, -1], [4, 2, 4, 4])
    assert same(case.state, case.expected_states(before, [3, 5, -1, -1], [4, 2, 0, 0]))
    # Ragged: the rows beyond the live ones are empty, and the token tensors are longer than the last bound.
    case.state.copy_(before)
    case.ring = case.new_ring()
    arguments = case.ragged_arguments([3, 5, -1, -1], [2, 3, 4, 4], **case.ring_arguments())
    arguments["cu_seqlens"] = case.ints([0, 2, 5, 5, 5])
    out = adapter.fused_sigmoid_gating_delta_rule_update(**arguments)
    for row, slot, begin, n in ((0, 3, 0, 2), (1, 5, 2, 3)):
        assert same(out[0, begin:begin + n], case.decoded(before, row, slot, n)[0])
    assert out.shape[1] == 13 and not out[0, 5:].any()
    fold(case, [3, 5, -1, -1], [2, 1, 1, 1])
    assert same(case.state, case.expected_states(before, [3, 5, -1, -1], [2, 1, 0, 0]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("state", ["f32", "bf16"])
@pytest.mark.parametrize("gate", ["gdn", *GATES])
def test_chain_of_256_windows(gate, state, device):
    """Windows of drafts one after another, some all rejected but the first token, are plain decoding in every bit."""
    case = Case(Shape(B=2, T=4, gate=gate, state=state, device=device))
    random, indices = torch.Generator().manual_seed(5), [4, 2]
    plain = case.state.clone()
    for step in range(256):
        case.new_inputs()
        outputs = verify(case, indices, **case.ring_arguments())
        accepted = torch.randint(0 if step % 16 == 0 else 1, 5, (2,), generator=random).tolist()
        if gate == "gdn":
            arguments = case.fold_arguments(indices, accepted)
            for name in ("checkpoint_state", "rawv_cache", "rawk_cache", "g_cache", "beta_cache"):
                arguments[name] = arguments[name][None]
            adapter.commit_gdn_replayssm_fold_all_layers(**arguments)
        else:
            fold(case, indices, accepted)
        for row, (slot, count) in enumerate(zip(indices, accepted)):
            # A 16-bit state is rounded once for each commit, so there a window is decoded in one call.
            expected, plain = case.decoded(plain, row, slot, count, each=state == "f32")
            assert same(outputs[row, :count], expected), (step, row)
        assert same(case.state, plain), step
    assert torch.isfinite(plain[indices].float()).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gate", GATES)
def test_decode(gate, device):
    """One token for each row, as an engine decodes: [1,B,H,K] with bounds, a of 2, 3 and 4 dimensions."""
    case = Case(replace(Shape(gate=gate, device=device), T=1))
    indices, before = [5, 0, 2], case.state.clone()
    arguments = case.ragged_arguments(indices, [1, 1, 1], disable_state_update=False)
    wide = arguments["a"]
    for a in (wide, wide[None], wide.reshape(1, 3, 4, 32)):
        case.state.copy_(before)
        out = adapter.fused_sigmoid_gating_delta_rule_update(**{**arguments, "a": a})
        assert same(case.state, case.expected_states(before, indices, [1, 1, 1]))
        for row, slot in enumerate(indices):
            assert same(out[0, row:row + 1], case.decoded(before, row, slot, 1)[0])
    direct = ringfold.decode(case.q, case.k, case.v, case.a, case.b, case.ints(indices), mixer=case.mixer(),
                             state=before.clone())
    assert same(direct[:, 0], out[0])
