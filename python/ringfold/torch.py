"""Operators for torch.compile: verify, decode, fold, commit and whole layers as ``torch.ops.ringfold.*``, with their mutations
declared and with fake implementations. Also usable as they are, eagerly or in a CUDA graph.

They compute what the functions of the same name in ``ringfold`` compute, in the current stream, and have no gradient.
Outside of torch.compile ``ringfold.verify``, ``pool.verify`` and ``pool.commit`` take tensors too, and are shorter::

    layers = [ringfold.torch.bind(pool, i) for i in range(pool.config.layers)]    # once, outside of what is compiled
    whole = ringfold.torch.bind(pool)
    out = ringfold.torch.verify(q, k, v, a, b, slot_ids, mixer=mixer, **layers[0])
    ringfold.torch.commit(whole, num_accepted, slot_ids)
"""

import itertools
import weakref
from typing import Any, NamedTuple, Optional, Sequence, Union

import torch
from torch import Tensor

from . import _ops
from ._arrays import dtype_name
from ._errors import InvalidArgumentError
from ._ops import History, Mixer, Ring, RingOwners
from ._pool import Pool

# The operators' arguments have no defaults: torch leaves trailing defaults out, and then looks in vain for those that
# are written.

# Pools by number, since an operator's arguments are tensors and plain values.
_pools: "weakref.WeakValueDictionary[int, Pool]" = weakref.WeakValueDictionary()
_numbers: "weakref.WeakKeyDictionary[Pool, int]" = weakref.WeakKeyDictionary()
_next_number = itertools.count(1)


class PoolTensors(NamedTuple):
    """A pool as ``commit`` takes it: all that it writes and all that it reads. Keep the pool as well: this does not."""

    number: int
    written: list[Tensor]
    read: list[Tensor]


def bind(pool: Pool, layer: Optional[int] = None, *, whole: bool = False) -> Union[dict, PoolTensors]:
    """With a layer: keyword arguments for ``verify`` and ``decode``; with ``whole`` those for ``verify_layer`` and
    ``decode_layer``. Without a layer: what ``commit`` takes.

    The pool has ``views="torch"`` (the default on CUDA). Call it outside of what is compiled.
    """
    if pool._views != "torch":
        raise InvalidArgumentError(f"pool: expected one made with views='torch', found views={pool._views!r}")
    if layer is not None:
        return pool.bind_layer(layer) if whole else pool.bind(layer)
    if pool not in _numbers:
        _numbers[pool] = next(_next_number)
        _pools[_numbers[pool]] = pool
    return PoolTensors(_numbers[pool], *_buffers(pool))


def _buffers(pool: Pool) -> tuple[list[Tensor], list[Tensor]]:
    written = [pool.state(), pool.pending(), *(pool.history() or ())[:3]]
    read = [view for view in pool.ring() if view is not None]
    if pool.config.conv_channels > 0:
        written += [pool.conv_state(), pool.conv_pending()]
        read.append(pool.conv_ring())
    for owners in (pool.owners(), pool.conv_owners()):
        read += owners or ()
    return written, read


def _ring(k: Optional[Tensor], v: Optional[Tensor], g: Optional[Tensor], beta: Optional[Tensor],
          u: Optional[Tensor], a: Optional[Tensor]) -> Optional[Ring]:
    return None if k is None else Ring(k, v, g, beta, u, a)


def _history(base: Optional[Tensor], live: Optional[Tensor], cuts: Optional[Tensor], policy: str,
             max_window: int) -> Optional[History]:
    return None if base is None else History(base, live, cuts, policy, max_window)


def _owners(slot_of_ring: Optional[Tensor], ring_of_slot: Optional[Tensor]) -> Optional[RingOwners]:
    return None if slot_of_ring is None else RingOwners(slot_of_ring, ring_of_slot)


def _projections(tensors: Sequence[Tensor]) -> _ops.Projections:
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _layer_out(projections: Sequence[Tensor], z: Tensor, float_out: bool) -> Tensor:
    return torch.empty(z.shape, dtype=torch.float32 if float_out else projections[0].dtype, device=z.device)


def _flat_ring(ring: Optional[Ring]) -> Sequence[Optional[Tensor]]:
    return (None,) * 6 if ring is None else ring


def _flat_history(history: Optional[History]) -> tuple:
    if history is None:
        return None, None, None, "on_commit", 0
    return history.base, history.live, history.cuts, history.policy, history.max_window


def _flat_owners(owners: Optional[RingOwners]) -> Sequence[Optional[Tensor]]:
    return (None, None) if owners is None else owners


@torch.library.custom_op(
    "ringfold::verify",
    mutates_args=("state", "ring_k", "ring_v", "ring_g", "ring_beta", "ring_u", "ring_a", "pending", "snapshots",
                  "row_status", "slot_of_ring", "ring_of_slot"))
def _verify(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, slot_ids: Tensor, cu_seqlens: Optional[Tensor],
            max_window: int, A_log: Tensor, dt_bias: Optional[Tensor], kind: str, softplus_beta: float,
            softplus_threshold: float, lower_bound: Optional[float], scale: Optional[float], qk_l2norm: bool,
            state: Tensor, ring_k: Optional[Tensor], ring_v: Optional[Tensor], ring_g: Optional[Tensor],
            ring_beta: Optional[Tensor], ring_u: Optional[Tensor], ring_a: Optional[Tensor],
            pending: Optional[Tensor], base: Optional[Tensor], live: Optional[Tensor], cuts: Optional[Tensor],
            policy: str, history_window: int,
            snapshots: Optional[Tensor], row_status: Optional[Tensor], float_out: bool, numerics: str,
            state_rounding: str, impl: Optional[str], ring_ids: Optional[Tensor], slot_of_ring: Optional[Tensor],
            ring_of_slot: Optional[Tensor]) -> Tensor:
    out = torch.empty(v.shape, dtype=torch.float32 if float_out else v.dtype, device=v.device)
    mixer = Mixer(A_log, dt_bias, kind, softplus_beta, softplus_threshold, lower_bound, scale, qk_l2norm)
    return _ops.verify(q, k, v, a, b, slot_ids, mixer=mixer, state=state,
                       ring=_ring(ring_k, ring_v, ring_g, ring_beta, ring_u, ring_a),
                       pending=pending, out=out, snapshots=snapshots, cu_seqlens=cu_seqlens, max_window=max_window,
                       history=_history(base, live, cuts, policy, history_window), row_status=row_status,
                       numerics=numerics, state_rounding=state_rounding, impl=impl, ring_ids=ring_ids,
                       owners=_owners(slot_of_ring, ring_of_slot))


@_verify.register_fake
def _(q, k, v, a, b, slot_ids, cu_seqlens, max_window, A_log, dt_bias, kind, softplus_beta, softplus_threshold,
      lower_bound, scale, qk_l2norm, state, ring_k, ring_v, ring_g, ring_beta, ring_u, ring_a, pending, base, live,
      cuts, policy, history_window, snapshots, row_status, float_out, numerics, state_rounding, impl, ring_ids,
      slot_of_ring, ring_of_slot):
    return torch.empty(v.shape, dtype=torch.float32 if float_out else v.dtype, device=v.device)


@torch.library.custom_op("ringfold::decode",
                         mutates_args=("state", "pending", "base", "live", "cuts", "row_status"))
def _decode(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, slot_ids: Tensor, cu_seqlens: Optional[Tensor],
            max_window: int, A_log: Tensor, dt_bias: Optional[Tensor], kind: str, softplus_beta: float,
            softplus_threshold: float, lower_bound: Optional[float], scale: Optional[float], qk_l2norm: bool,
            state: Tensor, ring_k: Optional[Tensor], ring_v: Optional[Tensor], ring_g: Optional[Tensor],
            ring_beta: Optional[Tensor], ring_u: Optional[Tensor], ring_a: Optional[Tensor],
            pending: Optional[Tensor], base: Optional[Tensor], live: Optional[Tensor], cuts: Optional[Tensor],
            policy: str, history_window: int,
            row_status: Optional[Tensor], float_out: bool, numerics: str, state_rounding: str,
            impl: Optional[str]) -> Tensor:
    out = torch.empty(v.shape, dtype=torch.float32 if float_out else v.dtype, device=v.device)
    mixer = Mixer(A_log, dt_bias, kind, softplus_beta, softplus_threshold, lower_bound, scale, qk_l2norm)
    return _ops.decode(q, k, v, a, b, slot_ids, mixer=mixer, state=state,
                       ring=_ring(ring_k, ring_v, ring_g, ring_beta, ring_u, ring_a),
                       pending=pending, out=out, cu_seqlens=cu_seqlens, max_window=max_window,
                       history=_history(base, live, cuts, policy, history_window), row_status=row_status,
                       numerics=numerics, state_rounding=state_rounding, impl=impl)


@_decode.register_fake
def _(q, k, v, a, b, slot_ids, cu_seqlens, max_window, A_log, dt_bias, kind, softplus_beta, softplus_threshold,
      lower_bound, scale, qk_l2norm, state, ring_k, ring_v, ring_g, ring_beta, ring_u, ring_a, pending, base, live,
      cuts, policy, history_window, row_status, float_out, numerics, state_rounding, impl):
    return torch.empty(v.shape, dtype=torch.float32 if float_out else v.dtype, device=v.device)


@torch.library.custom_op(
    "ringfold::verify_layer",
    mutates_args=("state", "ring_k", "ring_v", "ring_g", "ring_beta", "ring_u", "ring_a", "pending", "conv_ring",
                  "conv_pending", "row_status", "slot_of_ring", "ring_of_slot", "conv_slot_of_ring",
                  "conv_ring_of_slot"))
def _verify_layer(projections: Sequence[Tensor], a: Tensor, b: Tensor, slot_ids: Tensor, cu_seqlens: Optional[Tensor],
                  max_window: int, A_log: Tensor, dt_bias: Optional[Tensor], kind: str, softplus_beta: float,
                  softplus_threshold: float, lower_bound: Optional[float], scale: Optional[float], qk_l2norm: bool,
                  conv_weight: Tensor, conv_bias: Optional[Tensor], conv_silu: bool, z: Tensor, norm_weight: Tensor,
                  norm_gate: str, norm_eps: float, mixer_out: str, state: Tensor, ring_k: Optional[Tensor],
                  ring_v: Optional[Tensor], ring_g: Optional[Tensor], ring_beta: Optional[Tensor],
                  ring_u: Optional[Tensor], ring_a: Optional[Tensor], pending: Optional[Tensor], conv_state: Tensor,
                  conv_ring: Optional[Tensor], conv_pending: Optional[Tensor], base: Optional[Tensor],
                  live: Optional[Tensor], cuts: Optional[Tensor], policy: str, history_window: int,
                  row_status: Optional[Tensor], float_out: bool, numerics: str, state_rounding: str,
                  impl: Optional[str], ring_ids: Optional[Tensor], slot_of_ring: Optional[Tensor],
                  ring_of_slot: Optional[Tensor], conv_slot_of_ring: Optional[Tensor],
                  conv_ring_of_slot: Optional[Tensor]) -> Tensor:
    mixer = Mixer(A_log, dt_bias, kind, softplus_beta, softplus_threshold, lower_bound, scale, qk_l2norm)
    return _ops.verify_layer(_projections(projections), a, b, slot_ids, mixer=mixer, conv_weight=conv_weight,
                             conv_bias=conv_bias, conv_silu=conv_silu, z=z, norm_weight=norm_weight,
                             norm_gate=norm_gate, norm_eps=norm_eps, mixer_out=mixer_out, state=state,
                             ring=_ring(ring_k, ring_v, ring_g, ring_beta, ring_u, ring_a), pending=pending,
                             conv_state=conv_state, conv_ring=conv_ring, conv_pending=conv_pending,
                             history=_history(base, live, cuts, policy, history_window),
                             out=_layer_out(projections, z, float_out), cu_seqlens=cu_seqlens, max_window=max_window,
                             row_status=row_status, numerics=numerics, state_rounding=state_rounding, impl=impl,
                             ring_ids=ring_ids, owners=_owners(slot_of_ring, ring_of_slot),
                             conv_owners=_owners(conv_slot_of_ring, conv_ring_of_slot))


@_verify_layer.register_fake
def _(projections, a, b, slot_ids, cu_seqlens, max_window, A_log, dt_bias, kind, softplus_beta, softplus_threshold,
      lower_bound, scale, qk_l2norm, conv_weight, conv_bias, conv_silu, z, norm_weight, norm_gate, norm_eps, mixer_out,
      state, ring_k, ring_v, ring_g, ring_beta, ring_u, ring_a, pending, conv_state, conv_ring, conv_pending, base,
      live, cuts, policy, history_window, row_status, float_out, numerics, state_rounding, impl, ring_ids,
      slot_of_ring, ring_of_slot, conv_slot_of_ring, conv_ring_of_slot):
    return _layer_out(projections, z, float_out)


@torch.library.custom_op(
    "ringfold::decode_layer",
    mutates_args=("state", "pending", "conv_state", "conv_pending", "base", "live", "cuts", "row_status"))
def _decode_layer(projections: Sequence[Tensor], a: Tensor, b: Tensor, slot_ids: Tensor, cu_seqlens: Optional[Tensor],
                  max_window: int, A_log: Tensor, dt_bias: Optional[Tensor], kind: str, softplus_beta: float,
                  softplus_threshold: float, lower_bound: Optional[float], scale: Optional[float], qk_l2norm: bool,
                  conv_weight: Tensor, conv_bias: Optional[Tensor], conv_silu: bool, z: Tensor, norm_weight: Tensor,
                  norm_gate: str, norm_eps: float, mixer_out: str, state: Tensor, ring_k: Optional[Tensor],
                  ring_v: Optional[Tensor], ring_g: Optional[Tensor], ring_beta: Optional[Tensor],
                  ring_u: Optional[Tensor], ring_a: Optional[Tensor], pending: Optional[Tensor], conv_state: Tensor,
                  conv_pending: Optional[Tensor], base: Optional[Tensor], live: Optional[Tensor],
                  cuts: Optional[Tensor], policy: str, history_window: int, row_status: Optional[Tensor],
                  float_out: bool, numerics: str, state_rounding: str, impl: Optional[str]) -> Tensor:
    mixer = Mixer(A_log, dt_bias, kind, softplus_beta, softplus_threshold, lower_bound, scale, qk_l2norm)
    return _ops.decode_layer(_projections(projections), a, b, slot_ids, mixer=mixer, conv_weight=conv_weight,
                             conv_bias=conv_bias, conv_silu=conv_silu, z=z, norm_weight=norm_weight,
                             norm_gate=norm_gate, norm_eps=norm_eps, mixer_out=mixer_out, state=state,
                             ring=_ring(ring_k, ring_v, ring_g, ring_beta, ring_u, ring_a), pending=pending,
                             conv_state=conv_state, conv_pending=conv_pending,
                             history=_history(base, live, cuts, policy, history_window),
                             out=_layer_out(projections, z, float_out), cu_seqlens=cu_seqlens, max_window=max_window,
                             row_status=row_status, numerics=numerics, state_rounding=state_rounding, impl=impl)


@_decode_layer.register_fake
def _(projections, a, b, slot_ids, cu_seqlens, max_window, A_log, dt_bias, kind, softplus_beta, softplus_threshold,
      lower_bound, scale, qk_l2norm, conv_weight, conv_bias, conv_silu, z, norm_weight, norm_gate, norm_eps, mixer_out,
      state, ring_k, ring_v, ring_g, ring_beta, ring_u, ring_a, pending, conv_state, conv_pending, base, live, cuts,
      policy, history_window, row_status, float_out, numerics, state_rounding, impl):
    return _layer_out(projections, z, float_out)


@torch.library.custom_op("ringfold::fold", mutates_args=("state", "pending", "base", "live", "cuts", "row_status"))
def _fold(slot_ids: Tensor, num_accepted: Tensor, state: Tensor, ring_k: Tensor, ring_v: Tensor,
          ring_g: Optional[Tensor], ring_beta: Tensor, ring_u: Optional[Tensor], ring_a: Optional[Tensor],
          layers: Optional[Sequence[int]], pending: Optional[Tensor], base: Optional[Tensor], live: Optional[Tensor],
          cuts: Optional[Tensor], policy: str, history_window: int, track_slots: Optional[Tensor],
          track_steps: Optional[Tensor], row_status: Optional[Tensor], qk_l2norm: bool, A_log: Optional[Tensor],
          dt_bias: Optional[Tensor], kind: str, softplus_beta: float, softplus_threshold: float,
          lower_bound: Optional[float], state_rounding: str, impl: Optional[str], ring_ids: Optional[Tensor],
          slot_of_ring: Optional[Tensor], ring_of_slot: Optional[Tensor]) -> None:
    mixer = None if A_log is None else Mixer(A_log, dt_bias, kind, softplus_beta, softplus_threshold, lower_bound)
    _ops.fold(slot_ids, num_accepted, state=state, ring=Ring(ring_k, ring_v, ring_g, ring_beta, ring_u, ring_a),
              layers=layers, pending=pending, history=_history(base, live, cuts, policy, history_window),
              track_slots=track_slots, track_steps=track_steps, row_status=row_status, qk_l2norm=qk_l2norm,
              mixer=mixer, state_rounding=state_rounding, impl=impl, ring_ids=ring_ids,
              owners=_owners(slot_of_ring, ring_of_slot))


@_fold.register_fake
def _(slot_ids, num_accepted, state, ring_k, ring_v, ring_g, ring_beta, ring_u, ring_a, layers, pending, base, live,
      cuts, policy, history_window, track_slots, track_steps, row_status, qk_l2norm, A_log, dt_bias, kind,
      softplus_beta, softplus_threshold, lower_bound, state_rounding, impl, ring_ids, slot_of_ring,
      ring_of_slot):
    return None


@torch.library.custom_op("ringfold::commit", mutates_args=("written", "row_status"))
def _commit(pool: int, written: Sequence[Tensor], read: Sequence[Tensor], slot_ids: Tensor, num_accepted: Tensor,
            generations: Optional[Tensor], track_slots: Optional[Tensor], track_steps: Optional[Tensor],
            row_status: Optional[Tensor], impl: Optional[str], ring_ids: Optional[Tensor]) -> None:
    owner = _pools.get(pool)
    if owner is None:
        raise InvalidArgumentError("pool: expected one that is still there, found one that is gone")
    # commit works on the pool's memory, whatever it is told. A compiler that hands over copies would lose the result.
    theirs = [tensor.data_ptr() for tensors in (written, read) for tensor in tensors]
    if theirs != [tensor.data_ptr() for tensors in _buffers(owner) for tensor in tensors]:
        raise InvalidArgumentError("pool: expected its own tensors, found copies (made by a compiler backend that does "
                                   "not update in place; call pool.commit outside of what is compiled)")
    owner.commit(num_accepted, slot_ids, generations=generations, track_slots=track_slots, track_steps=track_steps,
                 row_status=row_status, impl=impl, ring_ids=ring_ids)


@_commit.register_fake
def _(pool, written, read, slot_ids, num_accepted, generations, track_slots, track_steps, row_status, impl, ring_ids):
    return None


def verify(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, slot_ids: Tensor, *, mixer: Mixer, state: Tensor,
           ring: Optional[Ring] = None, pending: Optional[Tensor] = None, history: Optional[History] = None,
           snapshots: Optional[Tensor] = None, cu_seqlens: Optional[Tensor] = None, max_window: int = 0,
           row_status: Optional[Tensor] = None, float_out: bool = False, numerics: str = "exact",
           state_rounding: str = "per_commit", impl: Optional[str] = None, ring_ids: Optional[Tensor] = None,
           owners: Optional[RingOwners] = None) -> Tensor:
    """``ringfold.verify`` as an operator. Returns new outputs, in the dtype of v or (``float_out``) in float32."""
    return torch.ops.ringfold.verify(
        q, k, v, a, b, slot_ids, cu_seqlens, max_window, mixer.A_log, mixer.dt_bias, mixer.kind, mixer.softplus_beta,
        mixer.softplus_threshold, mixer.lower_bound, mixer.scale, mixer.qk_l2norm, state, *_flat_ring(ring), pending,
        *_flat_history(history), snapshots, row_status, float_out, numerics, state_rounding, impl, ring_ids,
        *_flat_owners(owners))


def decode(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, slot_ids: Tensor, *, mixer: Mixer, state: Tensor,
           pending: Optional[Tensor] = None, ring: Optional[Ring] = None, history: Optional[History] = None,
           cu_seqlens: Optional[Tensor] = None, max_window: int = 0, row_status: Optional[Tensor] = None,
           float_out: bool = False, numerics: str = "exact", state_rounding: str = "per_commit",
           impl: Optional[str] = None, owners: Optional[RingOwners] = None) -> Tensor:
    """``ringfold.decode`` as an operator. Returns new outputs, in the dtype of v or (``float_out``) in float32.

    ``owners`` is ignored, so that both operators take what ``bind(pool, layer)`` gives.
    """
    return torch.ops.ringfold.decode(
        q, k, v, a, b, slot_ids, cu_seqlens, max_window, mixer.A_log, mixer.dt_bias, mixer.kind, mixer.softplus_beta,
        mixer.softplus_threshold, mixer.lower_bound, mixer.scale, mixer.qk_l2norm, state,
        *_flat_ring(None if history is None else ring), pending, *_flat_history(history), row_status, float_out,
        numerics, state_rounding, impl)


def verify_layer(qkv: Union[Tensor, Sequence[Tensor]], a: Tensor, b: Tensor, slot_ids: Tensor, *, mixer: Mixer,
                 conv_weight: Tensor, z: Tensor, norm_weight: Tensor, state: Tensor, conv_state: Tensor,
                 ring: Optional[Ring] = None, conv_ring: Optional[Tensor] = None, pending: Optional[Tensor] = None,
                 conv_pending: Optional[Tensor] = None, history: Optional[History] = None,
                 conv_bias: Optional[Tensor] = None, conv_silu: bool = True, norm_gate: str = "silu",
                 norm_eps: float = 1e-6, mixer_out: Any = "f32", cu_seqlens: Optional[Tensor] = None,
                 max_window: int = 0, row_status: Optional[Tensor] = None, float_out: bool = False,
                 numerics: str = "exact", state_rounding: str = "per_commit", impl: Optional[str] = None,
                 ring_ids: Optional[Tensor] = None, owners: Optional[RingOwners] = None,
                 conv_owners: Optional[RingOwners] = None) -> Tensor:
    """``ringfold.verify_layer`` as an operator. Returns new outputs, in the dtype of qkv or (``float_out``) float32."""
    return torch.ops.ringfold.verify_layer(
        [qkv] if isinstance(qkv, Tensor) else list(qkv), a, b, slot_ids, cu_seqlens, max_window, mixer.A_log,
        mixer.dt_bias, mixer.kind, mixer.softplus_beta, mixer.softplus_threshold, mixer.lower_bound, mixer.scale,
        mixer.qk_l2norm, conv_weight, conv_bias, conv_silu, z, norm_weight, norm_gate, norm_eps, dtype_name(mixer_out),
        state, *_flat_ring(ring), pending, conv_state, conv_ring, conv_pending, *_flat_history(history), row_status,
        float_out, numerics, state_rounding, impl, ring_ids, *_flat_owners(owners), *_flat_owners(conv_owners))


def decode_layer(qkv: Union[Tensor, Sequence[Tensor]], a: Tensor, b: Tensor, slot_ids: Tensor, *, mixer: Mixer,
                 conv_weight: Tensor, z: Tensor, norm_weight: Tensor, state: Tensor, conv_state: Tensor,
                 pending: Optional[Tensor] = None, conv_pending: Optional[Tensor] = None, ring: Optional[Ring] = None,
                 conv_ring: Optional[Tensor] = None, history: Optional[History] = None,
                 conv_bias: Optional[Tensor] = None, conv_silu: bool = True, norm_gate: str = "silu",
                 norm_eps: float = 1e-6, mixer_out: Any = "f32", cu_seqlens: Optional[Tensor] = None,
                 max_window: int = 0, row_status: Optional[Tensor] = None, float_out: bool = False,
                 numerics: str = "exact", state_rounding: str = "per_commit", impl: Optional[str] = None,
                 owners: Optional[RingOwners] = None, conv_owners: Optional[RingOwners] = None) -> Tensor:
    """``ringfold.decode_layer`` as an operator. Returns new outputs, in the dtype of qkv or (``float_out``) float32.

    ``conv_ring``, ``owners`` and ``conv_owners`` are ignored, so that both operators take what
    ``bind(pool, layer, whole=True)`` gives.
    """
    return torch.ops.ringfold.decode_layer(
        [qkv] if isinstance(qkv, Tensor) else list(qkv), a, b, slot_ids, cu_seqlens, max_window, mixer.A_log,
        mixer.dt_bias, mixer.kind, mixer.softplus_beta, mixer.softplus_threshold, mixer.lower_bound, mixer.scale,
        mixer.qk_l2norm, conv_weight, conv_bias, conv_silu, z, norm_weight, norm_gate, norm_eps, dtype_name(mixer_out),
        state, *_flat_ring(None if history is None else ring), pending, conv_state, conv_pending,
        *_flat_history(history), row_status, float_out, numerics, state_rounding, impl)


def fold(slot_ids: Tensor, num_accepted: Tensor, *, state: Tensor, ring: Ring, layers: Optional[Sequence[int]] = None,
         pending: Optional[Tensor] = None, history: Optional[History] = None, track_slots: Optional[Tensor] = None,
         track_steps: Optional[Tensor] = None, row_status: Optional[Tensor] = None, qk_l2norm: bool = True,
         mixer: Optional[Mixer] = None, state_rounding: str = "per_commit", impl: Optional[str] = None,
         ring_ids: Optional[Tensor] = None, owners: Optional[RingOwners] = None) -> None:
    """``ringfold.fold`` as an operator."""
    gate = (None, None, "gdn", 1.0, 20.0, None) if mixer is None else (
        mixer.A_log, mixer.dt_bias, mixer.kind, mixer.softplus_beta, mixer.softplus_threshold, mixer.lower_bound)
    torch.ops.ringfold.fold(slot_ids, num_accepted, state, *_flat_ring(ring), layers, pending, *_flat_history(history),
                            track_slots, track_steps, row_status, qk_l2norm, *gate, state_rounding, impl, ring_ids,
                            *_flat_owners(owners))


def commit(pool: PoolTensors, num_accepted: Tensor, slot_ids: Tensor, *, generations: Optional[Tensor] = None,
           track_slots: Optional[Tensor] = None, track_steps: Optional[Tensor] = None,
           row_status: Optional[Tensor] = None, impl: Optional[str] = None,
           ring_ids: Optional[Tensor] = None) -> None:
    """``Pool.commit`` as an operator; ``pool`` is what ``bind(pool)`` returned."""
    torch.ops.ringfold.commit(pool.number, pool.written, pool.read, slot_ids, num_accepted, generations, track_slots,
                              track_steps, row_status, impl, ring_ids)
