"""SGLang's entry points for verifying and committing draft tokens of GDN and KDA layers, computed by ringfold.

The functions have the names, arguments and meaning of SGLang's; ``enable()`` puts them in place in an installed
SGLang, ``disable()`` undoes it. docs/sglang.md has the table of arguments, differences and limits.

Tensors are torch's, of the CPU or of the current CUDA device; calls run in the current stream and never wait. Rings
and states are used where they are. A negative slot index makes a row null: its outputs are zeros, nothing else happens.
torch is imported when a function is called.
"""

from __future__ import annotations

from .. import _ops
from .._errors import InvalidArgumentError, UnsupportedError
from . import _sglang_layouts as layouts
from ._sglang_patches import KNOWN_VERSIONS, Report, disable, enable

__all__ = ["KNOWN_VERSIONS", "Report", "commit_gdn_replayssm_fold_all_layers", "commit_kda_replayssm_spec",
           "commit_kda_replayssm_spec_all_layers", "disable", "enable", "fused_sigmoid_gating_delta_rule_update",
           "gated_delta_rule_mtp"]

_VERIFY_RING = ("replayssm_rawk", "replayssm_rawv", "replayssm_g", "replayssm_beta")


def fused_sigmoid_gating_delta_rule_update(
        A_log, a, dt_bias, softplus_beta, softplus_threshold, q, k, v, b, initial_state_source, initial_state_indices,
        scale=None, use_qk_l2norm_in_kernel=False, cu_seqlens=None, is_kda=False, lower_bound=None,
        disable_state_update=False, intermediate_states_buffer=None, intermediate_state_indices=None, cache_steps=None,
        retrieve_parent_token=None, cache_ring=False, replayssm_rawv=None, replayssm_rawk=None, replayssm_g=None,
        replayssm_beta=None, match_cutedsl_decode=False):
    """Verify (``disable_state_update``) or decode of one layer; a new tensor of outputs, shaped like v.

    With ``cache_ring`` the raw inputs of the windows go to the ring, from which the ``commit_`` functions replay.

    Args:
        A_log, dt_bias: parameters, [HV]; KDA: dt_bias [HV,K], merged or not. Any float dtype.
        a: float [tokens,HV] or [B,T,HV]; KDA: [tokens,HV*K], [B,T,HV*K] or [B,T,HV,K].
        b: float [tokens,HV] or [B,T,HV], logits.
        q, k: float [B,T,H,K], or [1,tokens,H,K] with cu_seqlens; K packed, other strides free.
        v: [B,T,HV,V] or [1,tokens,HV,V], of q's dtype.
        initial_state_source: float [slots,HV,V,K], K packed; written unless ``disable_state_update``.
        initial_state_indices: [B], slots; may be longer with cu_seqlens. Out of range: the call fails on the CPU, the row is passed over on
            CUDA.
        cu_seqlens: [B+1]; outputs of tokens behind the last row are zeros.
        lower_bound: KDA's bounded gate.
        intermediate_states_buffer: state's dtype [rows,steps,HV,V,K], written: the state after each token. Steps
            beyond its own are left out.
        intermediate_state_indices: [B], row of the buffer; negative: none. None: row i for request i.
        cache_steps: not looked at; the buffer's shape says it.
        retrieve_parent_token: tree drafts, refused.
        replayssm_rawv, _rawk, _g, _beta: ring of the layer, [slots,HV,L,V], [slots,H,L,K], [slots,HV,L] (KDA:
            [slots,HV,L,K]), [slots,HV,L]; written, slots as in the state. rawv, rawk have v's dtype, the others are
            float32. A window longer than L is refused.
        match_cutedsl_decode: the arithmetic of another kernel, refused.

    Raises:
        UnsupportedError (a NotImplementedError): tree drafts, ``match_cutedsl_decode``.
        InvalidArgumentError (a ValueError): a shape, dtype or value contradicts the above.
    """
    if retrieve_parent_token is not None:
        raise UnsupportedError("retrieve_parent_token: expected None (a linear chain of drafts), found a tensor; tree "
                               "drafts are not supported")
    if match_cutedsl_decode:
        raise UnsupportedError("match_cutedsl_decode: expected False, found True; the arithmetic is ringfold's own")
    return _update(
        q, k, v, a, b, initial_state_source, initial_state_indices, is_kda=is_kda, cu_seqlens=cu_seqlens,
        mixer=(A_log, dt_bias, softplus_beta, softplus_threshold, lower_bound, scale, use_qk_l2norm_in_kernel),
        updates=not disable_state_update, buffer=intermediate_states_buffer, buffer_rows=intermediate_state_indices,
        rings=(replayssm_rawk, replayssm_rawv, replayssm_g, replayssm_beta) if cache_ring else None)


def gated_delta_rule_mtp(
        A_log, a, dt_bias, softplus_beta=1.0, softplus_threshold=20.0, q=None, k=None, v=None, b=None,
        initial_state_source=None, initial_state_indices=None, output_state_indices=None,
        intermediate_states_buffer=None, accepted_steps=None, ssm_state_indices=None, disable_state_update=False,
        use_qk_l2norm_in_kernel=True, scale=None, output=None, disable_output=False, recovery_steps=0,
        cache_ring=False, replayssm_rawv=None, replayssm_rawk=None, replayssm_g=None, replayssm_beta=None):
    """Verify or decode of one GDN layer, dense, with FlashInfer's arguments; ``output``, or a new tensor like v.

    Arguments as above, but:

    Args:
        intermediate_states_buffer: [B,steps,HV,V,K], row i for request i, steps >= T. With it the state is not
            written, as if ``disable_state_update`` were given.
        output: like v, written and returned; v's dtype or float32.
        output_state_indices, accepted_steps, ssm_state_indices, disable_output, recovery_steps: another slot to
            write to and recovery by replaying, refused unless they are at their defaults.
    """
    for name, value, default in (("accepted_steps", accepted_steps, None), ("recovery_steps", recovery_steps, 0),
                                 ("ssm_state_indices", ssm_state_indices, None),
                                 ("disable_output", disable_output, False)):
        if value is not default and not (isinstance(value, int) and value == default):
            raise UnsupportedError(f"{name}: expected {default}, found {_brief(value)}; not supported")
    if output_state_indices is not None and output_state_indices is not initial_state_indices:
        raise UnsupportedError("output_state_indices: expected None or initial_state_indices itself, found "
                               f"{_brief(output_state_indices)}; writing to other slots is not supported")
    buffer = intermediate_states_buffer
    if buffer is not None and v is not None and (buffer.shape[0] != v.shape[0] or buffer.shape[1] < v.shape[1]):
        raise InvalidArgumentError(f"intermediate_states_buffer: expected [B,steps,HV,V,K] with B = {v.shape[0]} and at "
                                   f"least {v.shape[1]} steps, found {list(buffer.shape)}")
    return _update(
        q, k, v, a, b, initial_state_source, initial_state_indices,
        mixer=(A_log, dt_bias, softplus_beta, softplus_threshold, None, scale, use_qk_l2norm_in_kernel),
        updates=not disable_state_update and buffer is None, buffer=buffer, out=output,
        rings=(replayssm_rawk, replayssm_rawv, replayssm_g, replayssm_beta) if cache_ring else None)


def commit_gdn_replayssm_fold_all_layers(
        checkpoint_state, rawv_cache, rawk_cache, g_cache, beta_cache, ssm_state_indices, accept_lens, max_cache_len,
        num_k_heads, mamba_track_indices=None, mamba_steps_to_track=None, use_qk_l2norm_in_kernel=True,
        null_block_id=-1) -> None:
    """Replays each row's accepted tokens from the rings into the states, in all GDN layers.

    Args:
        checkpoint_state: float [layers,slots,HV,V,K], K packed, written.
        rawv_cache, rawk_cache, g_cache, beta_cache: rings that the verify wrote, with layers in front; read.
        ssm_state_indices: [B]. A row is skipped where it is <= ``null_block_id`` or negative.
        accept_lens: [B], accepted tokens, bonus token included. A row is skipped where it is <= 0. Beyond the ring's
            rows: the call fails on the CPU, the row is passed over on CUDA.
        max_cache_len, num_k_heads: L and H of the rings.
        mamba_track_indices, mamba_steps_to_track: [B], both or none: the slot that gets the state after this step of
            the row (0: after the first token). No snapshot where the slot is <= ``null_block_id`` or negative, where
            the step is negative or was not accepted, or where the row is skipped.
        use_qk_l2norm_in_kernel: as in the verify.

    Raises:
        InvalidArgumentError (a ValueError): a shape, dtype or value contradicts the above.
    """
    _fold(5, False, checkpoint_state, rawv_cache, rawk_cache, ("g_cache", g_cache), beta_cache, ssm_state_indices,
          accept_lens, max_cache_len, num_k_heads, mamba_track_indices, mamba_steps_to_track, use_qk_l2norm_in_kernel,
          null_block_id)


def commit_kda_replayssm_spec(
        checkpoint_state, rawv_cache, rawk_cache, gk_cache, beta_cache, ssm_state_indices, accept_lens, max_cache_len,
        num_k_heads, mamba_track_indices=None, mamba_steps_to_track=None, use_qk_l2norm_in_kernel=True,
        null_block_id=0) -> None:
    """The same for one KDA layer: no layers in front, gk_cache [slots,HV,L,K], and by default slot 0 is null too."""
    _fold(4, True, checkpoint_state, rawv_cache, rawk_cache, ("gk_cache", gk_cache), beta_cache, ssm_state_indices,
          accept_lens, max_cache_len, num_k_heads, mamba_track_indices, mamba_steps_to_track, use_qk_l2norm_in_kernel,
          null_block_id)


def commit_kda_replayssm_spec_all_layers(
        checkpoint_state, rawv_cache, rawk_cache, gk_cache, beta_cache, ssm_state_indices, accept_lens, max_cache_len,
        num_k_heads, mamba_track_indices=None, mamba_steps_to_track=None, use_qk_l2norm_in_kernel=True,
        null_block_id=0) -> None:
    """The same for all KDA layers: gk_cache [layers,slots,HV,L,K], and by default slot 0 is null too."""
    _fold(5, True, checkpoint_state, rawv_cache, rawk_cache, ("gk_cache", gk_cache), beta_cache, ssm_state_indices,
          accept_lens, max_cache_len, num_k_heads, mamba_track_indices, mamba_steps_to_track, use_qk_l2norm_in_kernel,
          null_block_id)


def _brief(value) -> str:
    return f"a tensor {list(value.shape)}" if hasattr(value, "shape") else repr(value)


def _update(q, k, v, a, b, state, indices, *, mixer, updates, is_kda=False, cu_seqlens=None, buffer=None,
            buffer_rows=None, out=None, rings=None):
    """Verify or (``updates``) decode. ``rings``: rawk, rawv, g and beta to record in, or None."""
    import torch

    ragged = cu_seqlens is not None
    shape = "[1,tokens,{}]" if ragged else "[B,T,{}]"
    for name, tensor, inner in (("q", q, "H,K"), ("k", k, "H,K"), ("v", v, "HV,V")):
        layouts.expect_rank(name, tensor, shape.format(inner), 4)
        if ragged and tensor.shape[0] != 1:
            raise InvalidArgumentError(f"{name}: expected {shape.format(inner)} with cu_seqlens, found "
                                       f"{list(tensor.shape)}")
    layouts.expect_rank("initial_state_source", state, "[slots,HV,V,K]", 4)
    layouts.expect_rank("initial_state_indices", indices, "[B]", 1)
    (H, K), (HV, V) = q.shape[2:], v.shape[2:]
    layouts.expect_shape("initial_state_source", state, "[slots,HV,V,K]", (state.shape[0], HV, V, K))
    heads = (HV, K) if is_kda else (HV,)
    if out is None:  # tokens behind the last row belong to nobody
        out = (torch.zeros if ragged else torch.empty)(v.shape, dtype=v.dtype, device=v.device)
    lead = tuple(v.shape[1:2] if ragged else v.shape[:2])
    rows = cu_seqlens.shape[0] - 1 if ragged else lead[0]
    indices = indices[:rows] if ragged else indices
    layouts.expect_shape("initial_state_indices", indices, "[B]", (rows,))
    window = {"q": q, "k": k, "v": v, "out": out}
    if ragged:
        window = {name: tensor[0] for name, tensor in window.items()}
        window["cu_seqlens"] = layouts.int32(cu_seqlens)
    window["a"] = layouts.per_token("a", a, lead, heads)
    window["b"] = layouts.per_token("b", b, lead, (HV,))
    window["slot_ids"] = layouts.int32(indices)
    A_log, dt_bias, *numbers = mixer
    window["mixer"] = _ops.Mixer(layouts.parameter(A_log, (HV,)), layouts.parameter(dt_bias, heads),
                                 "kda" if is_kda else "gdn", *numbers)
    window["state"] = state
    ring = None
    if rings is not None:
        ring = layouts.ring(_VERIFY_RING, state.shape[:1], (H, HV, K, V), is_kda, *rings)
    with layouts.named(layouts.VERIFY_NAMES):
        if buffer is not None:
            _verify_with_snapshots(window, ring, buffer, buffer_rows)
        elif ring is not None or not updates:
            _ops.verify(**window, ring=ring)
        if updates:
            _ops.decode(**window)
    return out


def _verify_with_snapshots(window, ring, buffer, rows) -> None:
    import torch

    v, state, slots = window["v"], window["state"], window["slot_ids"]
    layouts.expect_rank("intermediate_states_buffer", buffer, "[rows,steps,HV,V,K]", 5)
    bounds = window.get("cu_seqlens")
    if bounds is None and rows is None and buffer.shape[0] >= v.shape[0] and buffer.shape[1] >= v.shape[1]:
        _ops.verify(**window, ring=ring, snapshots=buffer[:v.shape[0], :v.shape[1]])
        return
    # Where a state goes is known to the device alone: they are written one after another, and then moved there.
    states = torch.empty((*v.shape[:-2], *state.shape[1:]), dtype=state.dtype, device=state.device)
    status = torch.empty_like(slots) if slots.is_cuda else None  # on the CPU a refused row is an error
    _ops.verify(**window, ring=ring, snapshots=states, row_status=status)
    states = states.flatten(0, -4)
    count = slots.shape[0]
    if count == 0:
        return
    token = torch.arange(states.shape[0], device=state.device)
    if bounds is None:
        request, step = token // v.shape[1], token % v.shape[1]
        live = torch.ones_like(token, dtype=torch.bool)
    else:
        request = torch.searchsorted(bounds[1:].contiguous(), token, right=True)
        live = (request < count) & (token >= bounds[0])
        request = request.clamp(max=count - 1)
        step = token - bounds[request]
    live = live & (slots[request] >= 0 if status is None else status[request] == 0)
    target = request if rows is None else rows[request].long()
    layouts.scatter_states(buffer, states, target, step, live)


def _fold(rank, is_kda, state, rawv, rawk, named_g, beta, indices, accept, max_cache_len, num_k_heads, track, steps,
          l2norm, null) -> None:
    import torch

    shape = "[slots,HV,V,K]" if rank == 4 else "[layers,slots,HV,V,K]"
    layouts.expect_rank("checkpoint_state", state, shape, rank)
    HV, V, K = state.shape[-3:]
    ring = layouts.ring(("rawk_cache", "rawv_cache", named_g[0], "beta_cache"), state.shape[:-3],
                        (None, HV, K, V), is_kda, rawk, rawv, named_g[1], beta)
    for name, value, found in (("max_cache_len", max_cache_len, rawk.shape[-2]),
                               ("num_k_heads", num_k_heads, rawk.shape[-3])):
        if value != found:
            raise InvalidArgumentError(f"{name}: expected {found}, as rawk_cache has, found {value}")
    layouts.expect_rank("ssm_state_indices", indices, "[B]", 1)
    layouts.expect_shape("accept_lens", accept, "[B]", indices.shape)
    live = (indices > null) & (accept > 0)  # negative ones are null to ringfold, whatever `null` is
    arguments = {"slot_ids": layouts.int32(torch.where(live, indices, -1)),
                 "num_accepted": layouts.int32(torch.where(live, accept, 0))}
    if track is not None and steps is not None:
        layouts.expect_shape("mamba_track_indices", track, "[B]", indices.shape)
        layouts.expect_shape("mamba_steps_to_track", steps, "[B]", indices.shape)
        # Null rows and negative steps take none. In the row's own slot the state after all of its tokens is what stays.
        taken = (track > null) & (steps < accept) & (track != indices)
        arguments["track_slots"] = layouts.int32(torch.where(taken, track, -1))
        arguments["track_steps"] = layouts.int32(torch.where(taken, steps, -1))
    with layouts.named({**layouts.FOLD_NAMES, "ring.g": named_g[0]}):
        _ops.fold(**arguments, state=state, ring=ring, qk_l2norm=l2norm)
