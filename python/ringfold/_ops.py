"""The compute calls on arrays that the caller owns. include/ringfold/*.h describes the same calls in C++.

Names and shapes: B rows (requests), T tokens of a window, H key heads, HV value heads (a multiple of H), K and V head
dims (1 .. 256). Windows have 1 to 32 tokens. "float" is float32, bfloat16 or float16.

Dense calls have arrays ``[B, T, ..]``. Ragged calls give ``cu_seqlens`` and have ``[tokens, ..]`` instead, where row r
has the tokens ``cu_seqlens[r] .. cu_seqlens[r + 1] - 1``.

Arrays come from any library with DLPack and are used where they are, never copied. The innermost stride of q, k, v,
x, z, states, rings and outputs is 1; all other strides are free. All arrays of a call are on one device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Optional, Sequence, Tuple, Union

from . import _ringfold
from ._arrays import Array, Ints, Stream, dtype_name, empty, ints, shape_of, stream_handle
from ._errors import InvalidArgumentError

Numerics = Literal["exact", "fast"]
Rounding = Literal["per_commit", "per_token"]
Policy = Literal["on_commit", "on_next_verify", "lazy"]
NormGate = Literal["silu", "sigmoid"]
#: A layer's projections before the short conv: packed, or views of q, k and v.
Projections = Union[Array, Tuple[Array, Array, Array]]


@dataclass(frozen=True)
class Mixer:
    """Parameters of one gated delta-rule layer (docs/math.md has the formulas)."""

    #: float32 [HV], read
    A_log: Array
    #: float32 [HV] (GDN) or [HV, K] (KDA), read; None: zeros
    dt_bias: Optional[Array] = None
    #: "gdn" (Qwen3-Next, Qwen3.5) or "kda" (Kimi)
    kind: Literal["gdn", "kda"] = "gdn"
    softplus_beta: float = 1.0
    #: softplus(x) = x above this value of softplus_beta * x; at most 80
    softplus_threshold: float = 20.0
    #: KDA's bounded gate: g = lower_bound * sigmoid(exp(A_log) * x); below 0. None: the softplus gate
    lower_bound: Optional[float] = None
    #: of q; None: K ** -0.5
    scale: Optional[float] = None
    #: q and k are divided by sqrt(sum of squares + 1e-6)
    qk_l2norm: bool = True


class Ring(NamedTuple):
    """Raw inputs of the last window of every slot, from which ``fold`` replays."""

    k: Array  #: dtype of q, k, v; [layers?, slots, rows, H, K]
    v: Array  #: dtype of q, k, v; [layers?, slots, rows, HV, V]
    #: float32 [layers?, slots, rows, HV] (GDN) or [layers?, slots, rows, HV, K] (KDA): the log decay; None with ``a``
    g: Optional[Array]
    beta: Array  #: float32 [layers?, slots, rows, HV]
    #: float32 [layers?, slots, rows, HV, V]: what rows added to the state, for fold policy lazy and fast numerics
    u: Optional[Array] = None
    #: KDA, in place of g: the raw gate input in its own dtype, [layers?, slots, rows, HV, K]; ``fold`` needs the mixer
    a: Optional[Array] = None


class History(NamedTuple):
    """Cursors of accepted rows that lie in the ring and not yet in the checkpoint; a Pool has them (docs/ring.md)."""

    base: Array  #: int32 [layers?, slots]: ring row where the history begins
    live: Array  #: int32 [layers?, slots]: its length
    cuts: Array  #: int32 [layers?, slots]: bit i: a commit ended with ring row i
    policy: Policy = "on_next_verify"
    max_window: int = 0  #: largest window, 1 .. rows - 1


class RingOwners(NamedTuple):
    """Rings keyed by request row (``ring_ids``): which window lies where; a Pool has them (docs/ring.md)."""

    slot_of_ring: Array  #: int32 [layers?, rings]: whose window was recorded there last
    ring_of_slot: Array  #: int32 [layers?, slots]: where the slot's last window was recorded


def window_arguments(q, k, v, a, b, slot_ids, cu_seqlens, max_window, mixer, out, row_status, numerics, impl, stream,
                     ring_ids=None):
    """What verify and decode share, as the C++ side takes it."""
    if out is None:
        out = empty("v", v, shape_of("v", v))
    return {"q": q, "k": k, "v": v, "a": a, "b": b, "slot_ids": ints(slot_ids, v), "cu_seqlens": ints(cu_seqlens, v),
            "max_window": max_window, "mixer": mixer, "out": out, "row_status": row_status, "numerics": numerics,
            "impl": impl, "stream": stream_handle(stream, v), "ring_ids": ints(ring_ids, v)}


def verify(q: Array, k: Array, v: Array, a: Array, b: Array, slot_ids: Ints, *, mixer: Mixer, state: Array,
           ring: Optional[Ring] = None, pending: Optional[Array] = None, out: Optional[Array] = None,
           snapshots: Optional[Array] = None, cu_seqlens: Optional[Ints] = None, max_window: int = 0,
           history: Optional[History] = None, row_status: Optional[Array] = None, numerics: Numerics = "exact",
           state_rounding: Rounding = "per_commit", impl: Optional[str] = None, stream: Stream = None,
           ring_ids: Optional[Ints] = None, owners: Optional[RingOwners] = None) -> Array:
    """The outputs of every row's window from its checkpoint; the raw inputs go to the ring. Returns ``out``.

    No byte of ``state`` changes (but where a history is folded). A window that was recorded before and not committed
    is replaced whole.

    Args:
        q, k: float [B, T, H, K] or [tokens, H, K], after the short conv, before l2norm.
        v: [B, T, HV, V] or [tokens, HV, V]; q, k and v have one dtype.
        a: raw projection of the gate, float [B, T, HV] or [tokens, HV]; KDA [B, T, HV, K] or [tokens, HV, K].
        b: raw projection, a logit, float [B, T, HV] or [tokens, HV].
        slot_ids: int32 [B]; a negative id is a null row.
        mixer: the layer's parameters.
        state: float [slots, HV, V, K], read (with a history: written where it is due).
        ring: written, rows 0 .. T-1 of each row's ring. None: nothing can be committed.
        pending: int32 [slots], written with a ring: the window's length for each row done.
        out: like v, written; the dtype of v, or float32. None: made like v. Null and refused rows get zeros.
        snapshots: dtype of state, [B, T, HV, V, K] or [tokens, HV, V, K], written: the state after each token.
        cu_seqlens: int32 [B + 1], ascending: the call is ragged.
        max_window: ragged calls: no row is longer. 0: not known. A bound lets a GPU reserve less.
        history: fold policies other than on_commit.
        row_status: int32 [B], written: ``RowStatus``. Without it a refused row fails the call on the CPU (and nothing
            is written), and is passed over on CUDA.
        numerics: "exact", or "fast" (CUDA).
        impl: forces an implementation by name (``implementations()``).
        stream: of calls on CUDA arrays. None: the current stream of torch or cupy, else the default stream.
        ring_ids: int32 [B]: rings keyed by request row, so that ring has [rings, ..] in place of [slots, ..]. No ring
            twice in a call. None: a slot's ring is its own.
        owners: with pending and ring_ids; written likewise.

    Raises:
        InvalidArgumentError, UnsupportedError, NotFoundError, InternalError.
    """
    arguments = window_arguments(q, k, v, a, b, slot_ids, cu_seqlens, max_window, mixer, out, row_status, numerics,
                                 impl, stream, ring_ids)
    arguments.update(state=state, ring=ring, pending=pending, history=history, snapshots=snapshots, owners=owners,
                     state_rounding=state_rounding)
    _ringfold.verify(arguments)
    return arguments["out"]


def decode(q: Array, k: Array, v: Array, a: Array, b: Array, slot_ids: Ints, *, mixer: Mixer, state: Array,
           pending: Optional[Array] = None, out: Optional[Array] = None, cu_seqlens: Optional[Ints] = None,
           max_window: int = 0, ring: Optional[Ring] = None, history: Optional[History] = None,
           row_status: Optional[Array] = None, numerics: Numerics = "exact", state_rounding: Rounding = "per_commit",
           impl: Optional[str] = None, stream: Stream = None) -> Array:
    """Outputs of tokens that are certain, and the state updated at once. Returns ``out``.

    What verify and a commit of all tokens give, bit for bit. Arguments as in ``verify``, but:

    Args:
        state: float [slots, HV, V, K], read and written.
        pending: int32 [slots], written: a window that waited in a row's slot is dropped (``NO_WINDOW``).
        ring: with a history: where it lies; only read.
    """
    arguments = window_arguments(q, k, v, a, b, slot_ids, cu_seqlens, max_window, mixer, out, row_status, numerics,
                                 impl, stream)
    arguments.update(state=state, ring=ring, pending=pending, history=history, state_rounding=state_rounding)
    _ringfold.decode(arguments)
    return arguments["out"]


def fold(slot_ids: Ints, num_accepted: Ints, *, state: Array, ring: Ring, layers: Optional[Sequence[int]] = None,
         pending: Optional[Array] = None, history: Optional[History] = None, track_slots: Optional[Ints] = None,
         track_steps: Optional[Ints] = None, row_status: Optional[Array] = None, qk_l2norm: bool = True,
         mixer: Optional[Mixer] = None, state_rounding: Rounding = "per_commit", impl: Optional[str] = None,
         stream: Stream = None, ring_ids: Optional[Ints] = None, owners: Optional[RingOwners] = None) -> None:
    """Replays accepted ring rows into the checkpoint: the state after ``num_accepted`` tokens, bit for bit.

    A row that is refused is refused for all layers, and nothing of it changes.

    Args:
        slot_ids: int32 [B]; a negative id is a null row.
        num_accepted: int32 [B], 0 .. rows of the window; 0 leaves the state as it is and consumes the window.
        state: float [slots, HV, V, K] or [layers, slots, HV, V, K], read and written.
        ring: what verify wrote, with a leading ``layers`` where state has it; only read.
        layers: which layers, none twice. None: all.
        pending: int32 [slots] or [layers, slots], written: rows done become ``NO_WINDOW``.
        track_slots: int32 [B]: slots that get a snapshot; negative: none.
        track_steps: int32 [B], with track_slots: ring row after which the snapshot is taken, below num_accepted.
        row_status, impl, stream: as in ``verify``.
        qk_l2norm: as in the verify that wrote the ring.
        mixer: with ``ring.a``: the mixer of that verify; A_log [layers?, HV] and dt_bias [layers?, HV, K] have a
            leading ``layers`` where state has it. Its scale and qk_l2norm are not read.
        ring_ids: int32 [B]: the rings of the verify that wrote the windows. owners: with pending and ring_ids; read.
    """
    _ringfold.fold({"slot_ids": ints(slot_ids, state), "num_accepted": ints(num_accepted, state), "state": state,
                    "ring": ring, "layers": layers, "pending": pending, "history": history,
                    "track_slots": ints(track_slots, state), "track_steps": ints(track_steps, state),
                    "row_status": row_status, "qk_l2norm": qk_l2norm, "mixer": mixer,
                    "state_rounding": state_rounding, "impl": impl, "stream": stream_handle(stream, state),
                    "ring_ids": ints(ring_ids, state), "owners": owners})


def conv_arguments(x, weight, slot_ids, bias, silu, out, cu_seqlens, row_status, impl, stream, ring_ids=None):
    """What conv_verify and conv_decode share, as the C++ side takes it."""
    if out is None:
        out = empty("x", x, shape_of("x", x))
    return {"x": x, "weight": weight, "bias": bias, "silu": silu, "out": out, "slot_ids": ints(slot_ids, x),
            "cu_seqlens": ints(cu_seqlens, x), "row_status": row_status, "impl": impl,
            "stream": stream_handle(stream, x), "ring_ids": ints(ring_ids, x)}


def conv_verify(x: Array, weight: Array, slot_ids: Ints, *, conv_state: Array, conv_ring: Optional[Array] = None,
                bias: Optional[Array] = None, silu: bool = True, pending: Optional[Array] = None,
                out: Optional[Array] = None, cu_seqlens: Optional[Ints] = None, row_status: Optional[Array] = None,
                impl: Optional[str] = None, stream: Stream = None, ring_ids: Optional[Ints] = None,
                owners: Optional[RingOwners] = None) -> Array:
    """The causal short convolution of a window; ``conv_state`` stays as it was. Returns ``out``.

    Args:
        x: float [B, T, C] or [tokens, C], raw projections.
        weight: float [C, W], W = 2 .. 4.
        slot_ids: int32 [B]; a negative id is a null row.
        conv_state: [slots, C, W-1] in the dtype of x, oldest input first; the two inner strides are free; read.
        conv_ring: [slots, rows, C] in the dtype of x, written: the raw inputs. None: nothing can be committed.
        bias: float [C].
        silu: whether the SiLU follows.
        pending: int32 [slots], written with a ring; the conv's own.
        out: like x, float, written. None: made like x.
        cu_seqlens, row_status, impl, stream, ring_ids: as in ``verify``. owners: likewise; the conv's own.
    """
    arguments = conv_arguments(x, weight, slot_ids, bias, silu, out, cu_seqlens, row_status, impl, stream, ring_ids)
    arguments.update(conv_state=conv_state, conv_ring=conv_ring, pending=pending, owners=owners)
    _ringfold.conv_verify(arguments)
    return arguments["out"]


def conv_decode(x: Array, weight: Array, slot_ids: Ints, *, conv_state: Array, bias: Optional[Array] = None,
                silu: bool = True, pending: Optional[Array] = None, out: Optional[Array] = None,
                cu_seqlens: Optional[Ints] = None, row_status: Optional[Array] = None, impl: Optional[str] = None,
                stream: Stream = None) -> Array:
    """The convolution of tokens that are certain: ``conv_state`` moves on over all of them. Else as ``conv_verify``."""
    arguments = conv_arguments(x, weight, slot_ids, bias, silu, out, cu_seqlens, row_status, impl, stream)
    arguments.update(conv_state=conv_state, pending=pending)
    _ringfold.conv_decode(arguments)
    return arguments["out"]


def conv_commit(slot_ids: Ints, num_accepted: Ints, *, conv_state: Array, conv_ring: Array,
                track_slots: Optional[Ints] = None, track_steps: Optional[Ints] = None,
                row_status: Optional[Array] = None, impl: Optional[str] = None, stream: Stream = None,
                ring_ids: Optional[Ints] = None) -> None:
    """The new conv window: the last W-1 inputs of the old one and the accepted rows.

    Args:
        slot_ids, num_accepted, track_slots, track_steps, row_status, impl, stream, ring_ids: as in ``fold``.
        conv_state: [slots, C, W-1] or [layers, slots, C, W-1], read and written.
        conv_ring: [slots, rows, C] or [layers, slots, rows, C], read.
    """
    _ringfold.conv_commit({"slot_ids": ints(slot_ids, conv_state), "num_accepted": ints(num_accepted, conv_state),
                           "conv_state": conv_state, "conv_ring": conv_ring,
                           "track_slots": ints(track_slots, conv_state), "track_steps": ints(track_steps, conv_state),
                           "row_status": row_status, "impl": impl, "stream": stream_handle(stream, conv_state),
                           "ring_ids": ints(ring_ids, conv_state)})


def gated_norm(x: Array, z: Array, weight: Array, *, out: Optional[Array] = None,
               gate: NormGate = "silu", eps: float = 1e-6, impl: Optional[str] = None,
               stream: Stream = None) -> Array:
    """Gated RMSNorm: ``x / sqrt(mean(x^2) + eps) * weight * gate(z)`` per head. Returns ``out``.

    Args:
        x, z: float [tokens, HV, V].
        weight: float [V].
        out: float [tokens, HV, V], written; may be x. None: made like x.
        gate: "silu" (Qwen) or "sigmoid" (Kimi).
        eps: added to the mean, 0 or above.
    """
    if out is None:
        out = empty("x", x, shape_of("x", x))
    _ringfold.gated_norm({"x": x, "z": z, "weight": weight, "out": out, "gate": gate, "eps": eps, "impl": impl,
                          "stream": stream_handle(stream, x)})
    return out


def layer_arguments(qkv, a, b, slot_ids, cu_seqlens, max_window, mixer, conv_weight, conv_bias, conv_silu, z,
                    norm_weight, norm_gate, norm_eps, mixer_out, out, row_status, numerics, impl, stream,
                    ring_ids=None):
    """What verify_layer and decode_layer share, as the C++ side takes it."""
    if isinstance(qkv, (tuple, list)):
        if len(qkv) != 3:
            raise InvalidArgumentError(f"qkv: expected an array, or the three arrays q, k and v, found {len(qkv)}")
        arguments, like = dict(zip("qkv", qkv)), ("v", qkv[2])
    else:
        arguments, like = {"qkv": qkv}, ("qkv", qkv)
    if out is None:
        out = empty(*like, shape_of("z", z))
    arguments.update(a=a, b=b, slot_ids=ints(slot_ids, like[1]), cu_seqlens=ints(cu_seqlens, like[1]),
                     max_window=max_window, mixer=mixer, conv_weight=conv_weight, conv_bias=conv_bias,
                     conv_silu=conv_silu, z=z, norm_weight=norm_weight, norm_gate=norm_gate, norm_eps=norm_eps,
                     mixer_out=dtype_name(mixer_out), out=out, row_status=row_status, numerics=numerics, impl=impl,
                     stream=stream_handle(stream, like[1]), ring_ids=ints(ring_ids, like[1]))
    return arguments


def verify_layer(qkv: Projections, a: Array, b: Array, slot_ids: Ints, *, mixer: Mixer, conv_weight: Array, z: Array,
                 norm_weight: Array, state: Array, conv_state: Array, ring: Optional[Ring] = None,
                 conv_ring: Optional[Array] = None, pending: Optional[Array] = None,
                 conv_pending: Optional[Array] = None, history: Optional[History] = None,
                 conv_bias: Optional[Array] = None, conv_silu: bool = True, norm_gate: NormGate = "silu",
                 norm_eps: float = 1e-6, mixer_out: Any = "f32", out: Optional[Array] = None,
                 cu_seqlens: Optional[Ints] = None, max_window: int = 0, row_status: Optional[Array] = None,
                 numerics: Numerics = "exact", state_rounding: Rounding = "per_commit", impl: Optional[str] = None,
                 stream: Stream = None, ring_ids: Optional[Ints] = None, owners: Optional[RingOwners] = None,
                 conv_owners: Optional[RingOwners] = None) -> Array:
    """A whole layer between its projections, of a window: short conv, mixer and gated norm in one call. Returns ``out``.

    Bit for bit what ``conv_verify`` (in the dtype of its input), ``verify`` and ``gated_norm`` give, in outputs, rings
    and cursors; a row that one of them would refuse is refused for all. The commit is that of the calls one by one.

    Args:
        qkv: float [B, T, C] or [tokens, C], the packed projections before the conv, C = 2*H*K + HV*V: the channels of
            q, those of k, those of v. Or a tuple of views ``(q, k, v)``, shaped as in ``verify``.
        a, b, slot_ids, ring_ids, mixer, cu_seqlens, max_window, row_status, numerics, impl, stream: as in ``verify``.
        conv_weight: float [C, W], W = 2 .. 4. conv_bias: float [C]. conv_silu: whether the SiLU follows.
        z: float [B, T, HV, V] or [tokens, HV, V], the norm's gate before its activation.
        norm_weight: float [V]. norm_gate: "silu" or "sigmoid". norm_eps: added to the mean, 0 or above.
        state, ring, pending, owners, history, state_rounding: as in ``verify``.
        conv_state: [slots, C, W-1] in the dtype of the projections, oldest input first; read.
        conv_ring: [slots, rows, C] likewise, written: the projections. With ``ring``, or none.
        conv_pending: int32 [slots], written; the conv's own. With ``pending``, or none. conv_owners: likewise.
        mixer_out: what the mixer's output is rounded to before the norm: "f32" (not at all) or the projections' dtype.
        out: shaped like z, float, written; overlaps no other array. None: made in the dtype of the projections.

    Raises:
        InvalidArgumentError, UnsupportedError (also where nothing on CUDA serves it), NotFoundError, InternalError.
    """
    arguments = layer_arguments(qkv, a, b, slot_ids, cu_seqlens, max_window, mixer, conv_weight, conv_bias, conv_silu, z,
                                norm_weight, norm_gate, norm_eps, mixer_out, out, row_status, numerics, impl, stream,
                                ring_ids)
    arguments.update(state=state, conv_state=conv_state, ring=ring, conv_ring=conv_ring, pending=pending,
                     conv_pending=conv_pending, history=history, state_rounding=state_rounding, owners=owners,
                     conv_owners=conv_owners)
    _ringfold.verify_layer(arguments)
    return arguments["out"]


def decode_layer(qkv: Projections, a: Array, b: Array, slot_ids: Ints, *, mixer: Mixer, conv_weight: Array, z: Array,
                 norm_weight: Array, state: Array, conv_state: Array, pending: Optional[Array] = None,
                 conv_pending: Optional[Array] = None, ring: Optional[Ring] = None,
                 history: Optional[History] = None, conv_bias: Optional[Array] = None, conv_silu: bool = True,
                 norm_gate: NormGate = "silu", norm_eps: float = 1e-6, mixer_out: Any = "f32",
                 out: Optional[Array] = None, cu_seqlens: Optional[Ints] = None, max_window: int = 0,
                 row_status: Optional[Array] = None, numerics: Numerics = "exact",
                 state_rounding: Rounding = "per_commit", impl: Optional[str] = None, stream: Stream = None) -> Array:
    """A whole layer of tokens that are certain: state and conv window are updated at once. Returns ``out``.

    Bit for bit what ``conv_decode``, ``decode`` and ``gated_norm`` give. Arguments as in ``verify_layer``, but:

    Args:
        state: float [slots, HV, V, K], read and written.
        conv_state: [slots, C, W-1], read and written.
        pending, conv_pending: written: a window that waited in a row's slot is dropped.
        ring: with a history: where it lies; only read.
    """
    arguments = layer_arguments(qkv, a, b, slot_ids, cu_seqlens, max_window, mixer, conv_weight, conv_bias, conv_silu, z,
                                norm_weight, norm_gate, norm_eps, mixer_out, out, row_status, numerics, impl, stream)
    arguments.update(state=state, conv_state=conv_state, ring=ring, pending=pending, conv_pending=conv_pending,
                     history=history, state_rounding=state_rounding)
    _ringfold.decode_layer(arguments)
    return arguments["out"]
