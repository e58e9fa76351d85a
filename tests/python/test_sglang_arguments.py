"""SGLang's entry points: each argument, layouts, snapshots, and what is refused."""

import inspect
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import ringfold  # noqa: E402
import ringfold.integrations.sglang as adapter  # noqa: E402
from sglang_case import DEVICES, DTYPES, Case, Shape, poisoned_memory, same  # noqa: E402, F401

GATES = ["gdn", "kda", "kda_safe"]
INDICES = [4, 0, 2]


def update(case, **more):
    return adapter.fused_sigmoid_gating_delta_rule_update(**case.verify_arguments(INDICES, **more))


def test_signatures():
    """The order of positional arguments, and the defaults."""
    update_names = ("A_log a dt_bias softplus_beta softplus_threshold q k v b initial_state_source "
                    "initial_state_indices scale use_qk_l2norm_in_kernel cu_seqlens is_kda lower_bound "
                    "disable_state_update intermediate_states_buffer intermediate_state_indices cache_steps "
                    "retrieve_parent_token cache_ring replayssm_rawv replayssm_rawk replayssm_g replayssm_beta")
    fold_names = ("checkpoint_state rawv_cache rawk_cache {} beta_cache ssm_state_indices accept_lens max_cache_len "
                  "num_k_heads mamba_track_indices mamba_steps_to_track use_qk_l2norm_in_kernel null_block_id")

    def parameters(function):
        return inspect.signature(function).parameters

    assert list(parameters(adapter.fused_sigmoid_gating_delta_rule_update))[:26] == update_names.split()
    for name, g, null in (("commit_gdn_replayssm_fold_all_layers", "g_cache", -1),
                          ("commit_kda_replayssm_spec", "gk_cache", 0),
                          ("commit_kda_replayssm_spec_all_layers", "gk_cache", 0)):
        found = parameters(getattr(adapter, name))
        assert list(found) == fold_names.format(g).split()
        assert found["null_block_id"].default == null and found["use_qk_l2norm_in_kernel"].default is True
    found = parameters(adapter.fused_sigmoid_gating_delta_rule_update)
    assert found["disable_state_update"].default is False and found["use_qk_l2norm_in_kernel"].default is False


def test_torch_is_imported_by_calls_alone():
    code = "import sys, ringfold.integrations.sglang; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("device", DEVICES)
def test_parameters_of_the_mixer(device):
    """Each parameter reaches the library, under its own name."""
    case = Case(Shape(gate="kda", act="f32", device=device))
    base = {"softplus_beta": 1.0, "softplus_threshold": 20.0, "lower_bound": None, "scale": None, "qk_l2norm": True}

    def direct(**changes):
        mixer = ringfold.Mixer(case.A_log, case.dt_bias, "kda", **{**base, **changes})
        return ringfold.verify(case.q, case.k, case.v, case.a, case.b, case.ints(INDICES), mixer=mixer,
                               state=case.state)

    plain = update(case)
    assert same(plain, direct())
    for name, value in (("softplus_beta", 2.0), ("softplus_threshold", -1.0), ("lower_bound", -3.0), ("scale", 0.5),
                        ("use_qk_l2norm_in_kernel", False)):
        changed = update(case, **{name: value})
        assert not same(changed, plain) and same(changed, direct(**{name.replace("use_", "").replace(
            "_in_kernel", ""): value})), name
    without = update(case, dt_bias=None)
    assert not same(without, plain) and same(without, update(case, dt_bias=torch.zeros_like(case.dt_bias)))


@pytest.mark.parametrize("device", DEVICES)
def test_the_fold_is_told_whether_keys_are_normalised(device):
    case = Case(Shape(gate="kda", device=device))
    before = case.state.clone()
    update(case, **case.ring_arguments())
    folds = {}
    for l2norm in (True, False):
        case.state.copy_(before)
        adapter.commit_kda_replayssm_spec(**case.fold_arguments([4], [3], use_qk_l2norm_in_kernel=l2norm))
        folds[l2norm] = case.state.clone()
    mixer = ringfold.Mixer(case.A_log, case.dt_bias, "kda", qk_l2norm=False)
    ringfold.decode(*(tensor[:1, :3] for tensor in (case.q, case.k, case.v, case.a, case.b)), case.ints([4]),
                    mixer=mixer, state=before)
    assert same(folds[False], before) and not same(folds[True], before)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gate", GATES)
def test_parameters_as_models_have_them(gate, device):
    """16-bit dt_bias, merged or not, A_log with dimensions of 1, parameters with gradients, int64 indices."""
    case = Case(Shape(gate=gate, device=device))
    short = case.dt_bias.bfloat16()
    expected = update(case, dt_bias=short.float())
    parameter = torch.nn.Parameter(short.flatten())
    assert same(update(case, dt_bias=parameter, A_log=torch.nn.Parameter(case.A_log[None, None, :, None])), expected)
    assert same(update(case, initial_state_indices=case.ints(INDICES, torch.int64)), update(case))
    wide = {"initial_state_indices": case.ints(INDICES + [1, 1], torch.int64)}  # longer than the batch is allowed here
    ragged = case.ragged_arguments(INDICES, [4, 2, 3])
    out = adapter.fused_sigmoid_gating_delta_rule_update(**ragged)
    ragged = {**ragged, **wide, "cu_seqlens": ragged["cu_seqlens"].long()}
    assert same(adapter.fused_sigmoid_gating_delta_rule_update(**ragged), out)
    before = case.state.clone()
    update(case, **case.ring_arguments())
    fold = case.fold_arguments(INDICES, [1, 2, 3])
    fold.update(ssm_state_indices=fold["ssm_state_indices"].long(), accept_lens=fold["accept_lens"].long())
    if gate == "gdn":
        fold.update({name: fold[name][None] for name in ("checkpoint_state", "rawv_cache", "rawk_cache", "g_cache",
                                                         "beta_cache")})
        adapter.commit_gdn_replayssm_fold_all_layers(**fold)
    else:
        adapter.commit_kda_replayssm_spec(**fold, null_block_id=-1)
    assert same(case.state, case.expected_states(before, INDICES, [1, 2, 3]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gate", GATES)
def test_views_of_packed_rows_and_of_padded_pools(gate, device):
    """q, k, v are views of one packed row per token, state and ring have gaps between slots, and nothing is copied."""
    case = Case(Shape(gate=gate, device=device))
    s = case.shape
    expected = update(case, **case.ring_arguments())
    widths = (s.H * s.K, s.H * s.K, s.HV * s.V)
    packed = torch.full((s.B, s.T, sum(widths) + 8), float("nan"), dtype=DTYPES[s.act], device=device)
    views, begin = {}, 0
    for name, width in zip(("q", "k", "v"), widths):
        tensor = getattr(case, name)
        view = packed[..., begin:begin + width].unflatten(-1, tensor.shape[2:])
        view.copy_(tensor)
        views[name], begin = view, begin + width
    gate_row = torch.full((s.B, s.T, 200), float("nan"), device=device).to(DTYPES[s.act])
    flat = case.a.flatten(2)
    gate_row[..., :flat.shape[2]] = flat
    views["a"] = gate_row[..., :flat.shape[2]]

    def gapped(tensor):
        wide = torch.full((tensor.shape[0], 2, *tensor.shape[1:]), 55.0, dtype=tensor.dtype, device=device)
        wide[:, 0] = tensor
        return wide, wide[:, 0]

    whole_state, state = gapped(case.state)
    rings = {name: gapped(tensor) for name, tensor in case.new_ring().items()}
    arguments = {f"replayssm_{name}": view for name, (_, view) in rings.items()}
    out = update(case, **views, initial_state_source=state, cache_ring=True, **arguments)
    assert same(out, expected)
    assert same(state, case.state) and (whole_state[:, 1] == 55).all()
    for name, (whole, view) in rings.items():
        assert same(view, case.ring[name]) and (whole[:, 1] == 55).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("L", [4, 64])
def test_rings_of_any_length(L, device):
    """As long as the window, and longer than any window can be."""
    case = Case(Shape(L=L, gate="kda", device=device))
    before = case.state.clone()
    update(case, **case.ring_arguments())
    adapter.commit_kda_replayssm_spec(**case.fold_arguments(INDICES, [4, 0, 3]))
    assert same(case.state, case.expected_states(before, INDICES, [4, 0, 3]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("act", ["f32", "f16"])
def test_null_rows_have_zeros_and_nothing_else(act, device):
    case = Case(Shape(act=act, device=device))
    before, ring = case.state.clone(), case.new_ring()
    arguments = case.verify_arguments([-1, -5, -2], disable_state_update=False, **case.ring_arguments())
    buffer = torch.full((3, 4, 4, 24, 32), 9.0, device=device)
    for rows in (None, case.ints([0, 1, 2])):
        out = adapter.fused_sigmoid_gating_delta_rule_update(**arguments, intermediate_states_buffer=buffer,
                                                             intermediate_state_indices=rows)
        assert not out.any() and same(case.state, before) and (buffer == 9).all()
        assert all(same(case.ring[name], ring[name]) for name in ring)


class TestSnapshots:
    """The state after each token, where the caller wants it."""

    @staticmethod
    def check(case, buffer, places, lengths, indices=INDICES):
        """``places[i]``: the buffer's row of request i, or None; every other byte is 9."""
        expected = torch.full_like(buffer, 9.0)
        for row, (place, slot) in enumerate(zip(places, indices)):
            for t in range(min(lengths[row], buffer.shape[1])):
                if place is not None and slot >= 0:
                    expected[place, t] = case.decoded(case.state, row, slot, t + 1)[1][slot]
        assert same(buffer, expected)

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("state", ["f32", "bf16"])
    @pytest.mark.parametrize("ragged", [False, True])
    @pytest.mark.parametrize("rows", [None, [0, 1, 2], [6, 1, 3], [5, -1, 0], [-1, 0, -1], [-1, -1, -1]], ids=str)
    @pytest.mark.parametrize("steps", [4, 6, 3])
    def test_rows(self, rows, steps, ragged, state, device):
        """Rows in any order, some left out, buffers with more steps than the window and with fewer."""
        case = Case(Shape(gate="kda_safe", state=state, device=device))
        buffer = torch.full((7, steps, 4, 24, 32), 9.0, dtype=DTYPES[state], device=device)
        lengths = [4, 2, 3] if ragged else [4, 4, 4]
        make = case.ragged_arguments if ragged else lambda indices, _, **more: case.verify_arguments(indices, **more)
        plain = adapter.fused_sigmoid_gating_delta_rule_update(**make(INDICES, lengths))
        out = adapter.fused_sigmoid_gating_delta_rule_update(
            **make(INDICES, lengths, intermediate_states_buffer=buffer, cache_steps=steps,
                   intermediate_state_indices=None if rows is None else case.ints(rows)))
        assert same(out, plain)
        self.check(case, buffer, [None if row < 0 else row for row in rows or [0, 1, 2]], lengths)

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_padding_and_part_of_a_longer_buffer(self, dtype, device):
        case = Case(Shape(device=device))
        whole = torch.full((4, 9, 4, 24, 32), 9.0, device=device)
        indices = [4, -1, 2]
        adapter.fused_sigmoid_gating_delta_rule_update(**case.ragged_arguments(
            indices, [3, 4, 4], intermediate_states_buffer=whole[:, :4],
            intermediate_state_indices=case.ints([3, 1, 0], dtype)))
        self.check(case, whole[:, :4], [3, 1, 0], [3, 4, 4], indices)
        assert (whole[:, 4:] == 9).all()

    @pytest.mark.parametrize("device", DEVICES)
    def test_tokens_of_no_row(self, device):
        """In front of the first row and behind the last one; they leave no states."""
        case = Case(Shape(device=device))
        bounds = [1, 4, 6, 9]
        buffer = torch.full((3, 8, 4, 24, 32), 9.0, device=device)
        arguments = case.ragged_arguments(INDICES, [4, 4, 4], cu_seqlens=case.ints(bounds),
                                          intermediate_states_buffer=buffer)
        out = adapter.fused_sigmoid_gating_delta_rule_update(**arguments)
        assert not out[0, :1].any() and not out[0, 9:].any()
        expected = torch.full_like(buffer, 9.0)
        for row, slot in enumerate(INDICES):
            for end in range(bounds[row], bounds[row + 1]):
                state = case.state.clone()
                q, k, v = (arguments[name][:, bounds[row]:end + 1] for name in "qkv")
                a, b = (arguments[name][None, bounds[row]:end + 1] for name in "ab")
                ringfold.decode(q, k, v, a, b, case.ints([slot]), mixer=case.mixer(), state=state)
                expected[row, end - bounds[row]] = state[slot]
        assert same(buffer, expected)

    @pytest.mark.parametrize("device", DEVICES)
    def test_nan_in_the_buffer_stays_or_goes(self, device):
        """Places that are not written keep their bits, whatever these are."""
        case = Case(Shape(device=device))
        buffer = torch.full((4, 4, 4, 24, 32), float("nan"), device=device)
        update(case, intermediate_states_buffer=buffer, intermediate_state_indices=case.ints([2, -1, 0]))
        assert torch.isfinite(buffer[[0, 2]]).all() and buffer[[1, 3]].isnan().all()

    @pytest.mark.parametrize("device", DEVICES)
    def test_rows_past_the_buffer_are_left_out(self, device):
        case = Case(Shape(device=device))
        whole = torch.full((5, 4, 4, 24, 32), 9.0, device=device)
        update(case, intermediate_states_buffer=whole[:3], intermediate_state_indices=case.ints([1, 3, 100]))
        self.check(case, whole, [1, None, None], [4, 4, 4])

    def test_refused(self):
        case = Case(Shape())
        rows = case.ints([0, 1, 2])
        for buffer, rows, text in (
                (torch.empty(3, 4, 4, 24, 32, dtype=torch.bfloat16), rows, "dtype torch.float32, as .* found"),
                (torch.empty(3, 4, 4, 32, 24), rows, r"\[rows,steps,HV,V,K\] = \[3, 4, 4, 24, 32\], found"),
                (torch.empty(3, 4, 24, 32), None, r"\[rows,steps,HV,V,K\], found"),
                (torch.empty(3, 4, 4, 32, 24), None, r"\[B=3,T=4,HV=4,V=24,K=32\], found")):
            with pytest.raises(ValueError, match=f"^intermediate_states_buffer: expected {text}"):
                update(case, intermediate_states_buffer=buffer, intermediate_state_indices=rows)


def test_refused_by_verify():
    case = Case(Shape(gate="kda"))
    before, ring = case.state.clone(), case.ring_arguments()
    short = {f"replayssm_{name}": tensor[:, :, :3] for name, tensor in case.ring.items()}
    with pytest.raises(NotImplementedError, match="^retrieve_parent_token: expected None .*tree"):
        update(case, retrieve_parent_token=case.ints([[0]]))
    with pytest.raises(NotImplementedError, match="^match_cutedsl_decode: expected False, found True"):
        update(case, match_cutedsl_decode=True)
    for more, text in (
            ({"q": case.q[0]}, r"q: expected \[B,T,H,K\], found \[4, 2, 32\]"),
            ({"cu_seqlens": case.ints([0, 4])}, r"q: expected \[1,tokens,H,K\] with cu_seqlens, found \[3, 4, 2, 32\]"),
            ({"a": case.a[..., :5]}, "a: expected tokens = 12 and 4 x 32 values each, found"),
            ({"a": case.a[:2]}, "a: expected tokens = 12 and 4 x 32 values each, found"),
            ({"b": case.b[..., :3]}, "b: expected tokens = 12 and 4 values each, found"),
            ({"dt_bias": case.dt_bias[:, :3]}, "dt_bias: "),
            ({"A_log": None}, "A_log: "),
            ({"lower_bound": 3.0}, "lower_bound: expected a finite number below 0"),
            ({"softplus_beta": 0.0}, "softplus_beta: expected "),
            ({"initial_state_source": None}, r"initial_state_source: expected \[slots,HV,V,K\], found nothing"),
            ({"initial_state_source": case.state[:, :3]}, "initial_state_source: expected .*, found"),
            ({"initial_state_indices": case.ints([0, 1])}, r"initial_state_indices: expected \[B\] = \[3\], found \[2\]"),
            ({"k": case.k.float()}, "k: expected "),
            ({**ring, "replayssm_rawv": None}, r"replayssm_rawv: expected \[slots,HV,L,V\] = .*, found nothing"),
            ({**ring, "replayssm_g": case.ring["beta"]}, r"replayssm_g: expected \[slots,HV,L,K\] = "),
            ({**ring, "replayssm_rawv": case.ring["rawv"].float()}, "replayssm_rawv: expected dtype bf16, found"),
            ({**ring, "replayssm_beta": case.ring["beta"].half()}, "replayssm_beta: expected dtype"),
            ({**ring, "replayssm_rawk": case.ring["rawk"][None]}, r"replayssm_rawk: expected \[slots,H,L,K\], found"),
            # A window that could not be committed whole is no window.
            ({"cache_ring": True, **short}, "v: expected T <= the ring's 3 rows"),
            ({"initial_state_indices": case.ints([0, 1, 2, 3])}, r"initial_state_indices: .* = \[3\], found \[4\]"),
            ({"initial_state_indices": case.ints([0, 1, 6])}, "verify: row 2 is refused: slot_out_of_range$"),
            ({"initial_state_indices": case.ints([0, 1, 1])}, "verify: row 1 is refused: duplicate_slot$")):
        with pytest.raises(ValueError, match=f"^{text}"):
            update(case, **more)
    with pytest.raises(ValueError, match="lower_bound: expected nothing for a GDN mixer"):
        update(Case(Shape()), lower_bound=-5.0)
    ragged = case.ragged_arguments(INDICES, [4, 3, 2], cache_ring=True, **short)
    with pytest.raises(ValueError, match="^verify: row 0 is refused: window_too_long$"):
        adapter.fused_sigmoid_gating_delta_rule_update(**ragged)
    assert same(case.state, before)
    assert all(same(case.ring[name], empty) for name, empty in case.new_ring().items())


def test_refused_by_the_fold():
    case = Case(Shape(gate="kda"))
    before = case.state.clone()
    update(case, **case.ring_arguments())
    for more, text in (
            ({"max_cache_len": 16}, "max_cache_len: expected 8, as rawk_cache has, found 16"),
            ({"num_k_heads": 4}, "num_k_heads: expected 2, as rawk_cache has, found 4"),
            ({"gk_cache": case.ring["beta"]}, r"gk_cache: expected \[slots,HV,L,K\] = "),
            ({"gk_cache": case.ring["g"].half()}, "gk_cache: expected dtype"),
            ({"rawv_cache": case.ring["rawv"].transpose(1, 2)}, r"rawv_cache: expected \[slots,HV,L,V\] = "),
            ({"checkpoint_state": case.state[None]}, r"checkpoint_state: expected \[slots,HV,V,K\], found"),
            ({"accept_lens": case.ints([1, 1])}, r"accept_lens: expected \[B\] = \[3\], found \[2\]"),
            ({"mamba_track_indices": case.ints([1]), "mamba_steps_to_track": case.ints([0, 0, 0])},
             r"mamba_track_indices: expected \[B\] = \[3\]"),
            ({"accept_lens": case.ints([1, 1, 9])}, "fold: row 2 is refused: accept_out_of_range$"),
            ({"ssm_state_indices": case.ints([1, 2, 6])}, "fold: row 2 is refused: slot_out_of_range$"),
            ({"ssm_state_indices": case.ints([1, 2, 2])}, "fold: row 1 is refused: duplicate_slot$")):
        with pytest.raises(ValueError, match=f"^{text}"):
            adapter.commit_kda_replayssm_spec(**case.fold_arguments([1, 2, 3], [1, 1, 1], **more))
        assert same(case.state, before)


@pytest.mark.skipif("cuda" not in DEVICES, reason="no CUDA implementation, or torch finds no GPU")
def test_a_step_in_a_cuda_graph():
    """verify and fold are captured, and the replay honours new slots and counts; snapshots with rows too."""
    case = Case(Shape(gate="kda", K=64, V=64, device="cuda"))
    indices, accepted, rows = case.ints(INDICES), case.ints([4, 2, 1]), case.ints([0, 2, 1])
    buffer = torch.zeros(4, 4, 4, 64, 64, device="cuda")
    arguments = case.verify_arguments(INDICES, **case.ring_arguments(), intermediate_states_buffer=buffer,
                                      intermediate_state_indices=rows)
    arguments["initial_state_indices"] = indices
    fold = case.fold_arguments(INDICES, [0, 0, 0])
    fold.update(ssm_state_indices=indices, accept_lens=accepted)

    def step():
        out = adapter.fused_sigmoid_gating_delta_rule_update(**arguments)
        adapter.commit_kda_replayssm_spec(**fold)
        return out

    before = case.state.clone()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for slots, counts in (([4, 1, 2], [4, 2, 1]), ([3, -1, 5], [1, 4, 3])):
        case.state.copy_(before)
        indices.copy_(case.ints(slots))
        accepted.copy_(case.ints(counts))
        graph.replay()
        torch.cuda.synchronize()
        assert same(case.state, case.expected_states(before, slots, counts))
        for row, slot in enumerate(slots):
            if slot >= 0:
                outputs, states = case.decoded(before, row, slot, 4)
                assert same(out[row], outputs) and same(buffer[int(rows[row]), 3], states[slot])
