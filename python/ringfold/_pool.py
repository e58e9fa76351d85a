"""The slot pool: states, rings, conv windows and cursors of all recurrent layers of one model."""

from __future__ import annotations

import sys
from typing import Any, Literal, NamedTuple, Optional, Sequence, Union

import numpy as np

from . import _ringfold
from ._arrays import Array, Ints, Stream, dtype_name, ints, numpy_bf16, stream_handle
from ._errors import InvalidArgumentError
from ._ops import (History, Mixer, NormGate, Numerics, Policy, Projections, Ring, RingOwners, Rounding, conv_arguments,
                   layer_arguments, window_arguments)


class Slot(NamedTuple):
    """Handle of an acquired slot. The generation changes with every acquire, so an old handle is recognised."""

    id: int
    generation: int


class PoolBytes(NamedTuple):
    """Exact byte counts of a pool's buffers."""

    state: int  #: checkpoints of all layers and slots
    ring: int  #: k, v, g or a, beta, u rows (and with a the gates' parameters)
    conv: int  #: conv windows and recorded conv inputs
    cursors: int  #: pending lengths, histories, generations, the list of free slots
    scratch: int  #: one slot's worth and three int32 per slot, for cyclic copies

    @property
    def total(self) -> int:
        return sum(self)


class PoolConfig(NamedTuple):
    """What a pool was made for. All layers of a pool have one shape."""

    slots: int
    H: int
    HV: int
    K: int
    V: int
    ring_rows: int
    layers: int
    kind: str
    state_dtype: str
    act_dtype: str
    max_window: int
    conv_channels: int
    conv_width: int
    qk_l2norm: bool
    state_rounding: str
    fold_policy: str
    ring_u: bool
    ring_a: Optional[str]
    device: str
    rings: int = 0


#: One row's slot: a Slot, or None for a null row. Or int32 slot ids, as an array or a sequence.
Slots = Union[Sequence[Optional[Slot]], Ints]


def _config(config: dict) -> dict:
    ring_a = config["ring_a"]
    return {**config, "state_dtype": dtype_name(config["state_dtype"]), "act_dtype": dtype_name(config["act_dtype"]),
            "ring_a": None if ring_a is None else dtype_name(ring_a)}


def pool_bytes(*, slots: int, H: int, HV: int, K: int, V: int, ring_rows: int, layers: int = 1, kind: str = "gdn",
               state_dtype: Any = "f32", act_dtype: Any = "f32", max_window: int = 0, conv_channels: int = 0,
               conv_width: int = 4, qk_l2norm: bool = True, state_rounding: Rounding = "per_commit",
               fold_policy: Policy = "on_commit", ring_u: bool = False, ring_a: Any = None,
               device: str = "cpu", rings: int = 0) -> PoolBytes:
    """The bytes that a ``Pool`` with these arguments allocates; asks no device."""
    return PoolBytes(**_ringfold.pool_bytes(_config(locals())))


class Pool:
    """Owns the memory of all slots; allocates when it is made, and only then.

    Args:
        slots: how many requests (and snapshots) there is room for. Slot 0 is an ordinary slot.
        H, HV, K, V: key heads, value heads, head dims.
        ring_rows: 1 .. 32. With fold policy on_commit the largest window (drafts + 1), with others more than that.
        layers: recurrent layers of the model.
        kind: "gdn" or "kda".
        state_dtype, act_dtype: "f32", "bf16", "f16" or the dtype of an array library. act_dtype is that of q, k, v, of
            the ring's k and v, and of conv inputs.
        max_window: largest window. 0: ring_rows with on_commit, half of them with other policies.
        conv_channels: C of the short conv; 0: the layers have none. conv_width: W, 2 .. 4.
        state_rounding: when a 16-bit state is rounded: "per_commit" or "per_token".
        fold_policy: "on_commit", "on_next_verify" or "lazy" (docs/ring.md).
        ring_u: with "lazy": the ring keeps u, which verify with numerics "fast" reads a history by.
        ring_a: KDA: the ring keeps the raw gate input in this dtype, that of ``a``, in place of g: half the size where
            it has 16 bits. ``set_mixers`` comes before the first commit, settle or materialise then.
        rings: with on_commit: so many rings, which calls name by ``ring_ids`` (the row of a request, for example), in
            place of one for each slot: slots that only hold a cached prefix need none. 0: a ring for each slot.
        device: "cpu" or "cuda": the device that is current now, which has to be current in every later call too.
        views: what ``state()``, ``ring()`` and so on return: "numpy" (the CPU's default), "torch" (CUDA's default) or
            "dlpack", an object with ``__dlpack__`` for other libraries. None of them copies, and each keeps the memory
            alive, also beyond the pool.

    The pool is not thread-safe, and calls release the GIL: calls on one pool have to be ordered by the caller. On CUDA
    calls run in the current stream of torch, or of the library that their arrays are from, unless ``set_stream`` names
    another.
    """

    def __init__(self, *, slots: int, H: int, HV: int, K: int, V: int, ring_rows: int, layers: int = 1,
                 kind: Literal["gdn", "kda"] = "gdn", state_dtype: Any = "f32", act_dtype: Any = "f32",
                 max_window: int = 0, conv_channels: int = 0, conv_width: int = 4, qk_l2norm: bool = True,
                 state_rounding: Rounding = "per_commit", fold_policy: Policy = "on_commit", ring_u: bool = False,
                 ring_a: Any = None, device: Literal["cpu", "cuda"] = "cpu",
                 views: Optional[Literal["numpy", "torch", "dlpack"]] = None, rings: int = 0):
        if views is None:
            views = "torch" if device == "cuda" else "numpy"
        if views not in ("numpy", "torch", "dlpack") or (views == "numpy" and device == "cuda"):
            expected = "torch or dlpack for a CUDA pool" if device == "cuda" else "numpy, torch or dlpack"
            raise InvalidArgumentError(f"views: expected {expected}, found {views!r}")
        # Views belong to the native pool, not to this object, which can thus hold on to them.
        self._native = _ringfold.Pool(
            _config({name: value for name, value in locals().items() if name in PoolConfig._fields}))
        self._config = PoolConfig(**self._native.config())
        self._views = views
        self._whole: dict[str, Optional[Array]] = {}  # views over all layers, by name
        self._stream: Stream = None
        self._device_id = 0
        if device == "cuda" and "torch" in sys.modules:
            self._device_id = sys.modules["torch"].cuda.current_device()

    # -- what it is

    @property
    def config(self) -> PoolConfig:
        return self._config

    @property
    def memory(self) -> PoolBytes:
        """Bytes of its buffers."""
        return PoolBytes(**self._native.bytes())

    @property
    def free_slots(self) -> int:
        return self._native.free_slots()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.config._asdict().items())
        return f"ringfold.Pool({shown})"

    # -- lives of slots

    def set_stream(self, stream: Stream) -> None:
        """The stream of calls on a CUDA pool that give none. None: the current stream of torch at each call."""
        self._stream = stream

    def set_mixers(self, mixers: Sequence[Mixer]) -> None:
        """Copies the gates of all layers, one mixer for each, into a pool with ``ring_a``. From then on ``pool.verify``
        and ``pool.decode`` take A_log, dt_bias, softplus and lower_bound from there, whatever their mixer says."""
        self._use_stream()
        _ringfold.set_mixers(list(mixers), self._native)

    def acquire(self, count: Optional[int] = None) -> Union[Slot, list[Slot]]:
        """A free slot, or ``count`` of them, all or none: everything zero, nothing pending.

        Raises OutOfMemoryError when too few are free.
        """
        self._use_stream()
        handles = [Slot(*handle) for handle in self._native.acquire(1 if count is None else count)]
        return handles[0] if count is None else handles

    def release(self, slots: Union[Slot, Sequence[Slot]]) -> None:
        """Gives slots back, all or none. The handles, and windows pending in them, are void from here on."""
        self._use_stream()
        self._native.release(_handles("slots", slots))

    def reset(self, slots: Union[Slot, Sequence[Slot]]) -> None:
        """As if acquired anew, under the same handles: everything zero, nothing pending."""
        self._use_stream()
        self._native.reset(_handles("slots", slots))

    def copy(self, src: Union[Slot, Sequence[Slot]], dst: Union[Slot, Sequence[Slot]]) -> None:
        """Copies state, conv window, ring, pending window and history from src[i] to dst[i], all at once: chains and
        cycles do what they say. (With ``rings``: state and conv window; nothing is pending in dst then.)"""
        self._use_stream()
        self._native.copy(_handles("src", src), _handles("dst", dst))

    def materialise(self, src: Slot, n: int, dst: Slot) -> None:
        """Writes the logical state of ``src`` after n rows of its pending window to ``dst``; ``src`` stays."""
        self._use_stream()
        self._native.materialise(*_handles("src", src), n, *_handles("dst", dst))

    def settle(self, slots: Union[Slot, Sequence[Slot]]) -> None:
        """Folds the histories of these slots, so that ``state()`` holds their logical states."""
        self._use_stream()
        self._native.settle(_handles("slots", slots))

    def export(self, slot: Slot) -> bytes:
        """A slot as bytes: state, conv window, rows of history and window, cursors. The device does not matter. (With
        ``rings``: state and conv window.)"""
        self._use_stream()
        return self._native.export(*_handles("slot", slot))

    def import_(self, data: Any, slot: Slot) -> None:
        """The opposite of ``export``, into an acquired slot of a pool of equal shape and dtypes.

        ``data``: bytes, or another packed buffer. Everything is checked before the first byte of the pool changes.
        """
        self._use_stream()
        self._native.import_(data, *_handles("slot", slot))

    # -- views: [slots, ..] of a layer, [layers, slots, ..] without one

    def state(self, layer: Optional[int] = None) -> Array:
        """Checkpoints, state_dtype [layers?, slots, HV, V, K]."""
        return self._array("state", layer)

    def ring(self, layer: Optional[int] = None) -> Ring:
        """The ring's k, v, g, beta, u and a, None where it keeps none; shapes in ``Ring``."""
        return Ring(*(self._array(f"ring.{field}", layer) for field in Ring._fields))

    def pending(self, layer: Optional[int] = None) -> Array:
        """int32 [layers?, slots]: length of the pending window, ``NO_WINDOW`` or ``NOT_ACQUIRED`` (docs/ring.md)."""
        return self._array("pending", layer)

    def history(self, layer: Optional[int] = None) -> Optional[History]:
        """Cursors of the history; None with fold policy on_commit."""
        policy = self._config.fold_policy
        if policy == "on_commit":
            return None
        base, live, cuts = (self._array(f"history.{field}", layer) for field in ("base", "live", "cuts"))
        return History(base, live, cuts, policy, self._config.max_window)

    def owners(self, layer: Optional[int] = None) -> Optional[RingOwners]:
        """Which window lies in which ring; None without ``rings``."""
        return self._owners("owners", layer)

    def conv_owners(self, layer: Optional[int] = None) -> Optional[RingOwners]:
        """Those of the short conv; likewise."""
        return self._owners("conv_owners", layer)

    def _owners(self, name: str, layer: Optional[int]) -> Optional[RingOwners]:
        found = [self._array(f"{name}.{field}", layer) for field in RingOwners._fields]
        return None if found[0] is None else RingOwners(*found)

    def conv_state(self, layer: Optional[int] = None) -> Optional[Array]:
        """act_dtype [layers?, slots, C, W-1]; None without a short conv."""
        return self._array("conv_state", layer)

    def conv_ring(self, layer: Optional[int] = None) -> Optional[Array]:
        """act_dtype [layers?, slots, max_window, C]; None without a short conv."""
        return self._array("conv_ring", layer)

    def conv_pending(self, layer: Optional[int] = None) -> Optional[Array]:
        """int32 [layers?, slots]; None without a short conv."""
        return self._array("conv_pending", layer)

    def generations(self) -> Array:
        """int32 [slots]."""
        return self._array("generations", None)

    def bind(self, layer: int) -> dict:
        """What ``ringfold.verify`` and ``ringfold.decode`` take of a layer, as keyword arguments: state, ring, pending,
        history and state_rounding; with ``rings`` owners too, which ``decode`` does not take. ``pool.verify`` is
        shorter and faster; operators that know no pools need this."""
        rings = {} if self._config.rings == 0 else {"owners": self.owners(layer)}
        return {**rings, "state": self.state(layer), "ring": self.ring(layer), "pending": self.pending(layer),
                "history": self.history(layer), "state_rounding": self._config.state_rounding}

    def bind_layer(self, layer: int) -> dict:
        """The same for ``ringfold.verify_layer``: conv_state, conv_ring and conv_pending besides. (``decode_layer``
        takes no conv_ring.)"""
        rings = {} if self._config.rings == 0 else {"conv_owners": self.conv_owners(layer)}
        return {**self.bind(layer), **rings, "conv_state": self.conv_state(layer), "conv_ring": self.conv_ring(layer),
                "conv_pending": self.conv_pending(layer)}

    # -- the compute calls, on this pool's memory

    def verify(self, layer: int, q: Array, k: Array, v: Array, a: Array, b: Array, slots: Slots, *, mixer: Mixer,
               out: Optional[Array] = None, snapshots: Optional[Array] = None, cu_seqlens: Optional[Ints] = None,
               max_window: int = 0, row_status: Optional[Array] = None, numerics: Numerics = "exact",
               impl: Optional[str] = None, stream: Stream = None, ring_ids: Optional[Ints] = None) -> Array:
        """``ringfold.verify`` on the layer's state, ring, cursors and history. Returns ``out``."""
        arguments = window_arguments(q, k, v, a, b, self._ids(slots), cu_seqlens, max_window, mixer, out, row_status,
                                     numerics, impl, self._stream if stream is None else stream, ring_ids)
        arguments["snapshots"] = snapshots
        _ringfold.verify(arguments, self._native, layer)
        return arguments["out"]

    def decode(self, layer: int, q: Array, k: Array, v: Array, a: Array, b: Array, slots: Slots, *, mixer: Mixer,
               out: Optional[Array] = None, cu_seqlens: Optional[Ints] = None, max_window: int = 0,
               row_status: Optional[Array] = None, numerics: Numerics = "exact", impl: Optional[str] = None,
               stream: Stream = None) -> Array:
        """``ringfold.decode`` on the layer's state, ring, cursors and history. Returns ``out``."""
        arguments = window_arguments(q, k, v, a, b, self._ids(slots), cu_seqlens, max_window, mixer, out, row_status,
                                     numerics, impl, self._stream if stream is None else stream)
        _ringfold.decode(arguments, self._native, layer)
        return arguments["out"]

    def verify_layer(self, layer: int, qkv: Projections, a: Array, b: Array, slots: Slots, *, mixer: Mixer,
                     conv_weight: Array, z: Array, norm_weight: Array, conv_bias: Optional[Array] = None,
                     conv_silu: bool = True, norm_gate: NormGate = "silu", norm_eps: float = 1e-6,
                     mixer_out: Any = "f32", out: Optional[Array] = None, cu_seqlens: Optional[Ints] = None,
                     max_window: int = 0, row_status: Optional[Array] = None, numerics: Numerics = "exact",
                     impl: Optional[str] = None, stream: Stream = None, ring_ids: Optional[Ints] = None) -> Array:
        """``ringfold.verify_layer`` on the layer's state, conv window, rings and cursors. Returns ``out``."""
        arguments = layer_arguments(qkv, a, b, self._ids(slots), cu_seqlens, max_window, mixer, conv_weight, conv_bias,
                                    conv_silu, z, norm_weight, norm_gate, norm_eps, mixer_out, out, row_status, numerics,
                                    impl, self._stream if stream is None else stream, ring_ids)
        _ringfold.verify_layer(arguments, self._native, layer)
        return arguments["out"]

    def decode_layer(self, layer: int, qkv: Projections, a: Array, b: Array, slots: Slots, *, mixer: Mixer,
                     conv_weight: Array, z: Array, norm_weight: Array, conv_bias: Optional[Array] = None,
                     conv_silu: bool = True, norm_gate: NormGate = "silu", norm_eps: float = 1e-6,
                     mixer_out: Any = "f32", out: Optional[Array] = None, cu_seqlens: Optional[Ints] = None,
                     max_window: int = 0, row_status: Optional[Array] = None, numerics: Numerics = "exact",
                     impl: Optional[str] = None, stream: Stream = None) -> Array:
        """``ringfold.decode_layer`` on the layer's state, conv window and cursors. Returns ``out``."""
        arguments = layer_arguments(qkv, a, b, self._ids(slots), cu_seqlens, max_window, mixer, conv_weight, conv_bias,
                                    conv_silu, z, norm_weight, norm_gate, norm_eps, mixer_out, out, row_status, numerics,
                                    impl, self._stream if stream is None else stream)
        _ringfold.decode_layer(arguments, self._native, layer)
        return arguments["out"]

    def conv_verify(self, layer: int, x: Array, weight: Array, slots: Slots, *, bias: Optional[Array] = None,
                    silu: bool = True, out: Optional[Array] = None, cu_seqlens: Optional[Ints] = None,
                    row_status: Optional[Array] = None, impl: Optional[str] = None, stream: Stream = None,
                    ring_ids: Optional[Ints] = None) -> Array:
        """``ringfold.conv_verify`` on the layer's conv window and conv ring. Returns ``out``."""
        arguments = conv_arguments(x, weight, self._ids(slots), bias, silu, out, cu_seqlens, row_status, impl,
                                   self._stream if stream is None else stream, ring_ids)
        _ringfold.conv_verify(arguments, self._native, layer)
        return arguments["out"]

    def conv_decode(self, layer: int, x: Array, weight: Array, slots: Slots, *, bias: Optional[Array] = None,
                    silu: bool = True, out: Optional[Array] = None, cu_seqlens: Optional[Ints] = None,
                    row_status: Optional[Array] = None, impl: Optional[str] = None, stream: Stream = None) -> Array:
        """``ringfold.conv_decode`` on the layer's conv window. Returns ``out``."""
        arguments = conv_arguments(x, weight, self._ids(slots), bias, silu, out, cu_seqlens, row_status, impl,
                                   self._stream if stream is None else stream)
        _ringfold.conv_decode(arguments, self._native, layer)
        return arguments["out"]

    def commit(self, num_accepted: Ints, slots: Slots, *, generations: Optional[Ints] = None,
               track_slots: Optional[Slots] = None, track_steps: Optional[Ints] = None,
               row_status: Optional[Array] = None, impl: Optional[str] = None, stream: Stream = None,
               ring_ids: Optional[Ints] = None) -> None:
        """Consumes the pending window of every row, in all layers and conv windows: all of a row, or nothing.

        Args:
            num_accepted: int32 [B], 0 .. length of the pending window, the bonus token included.
            slots: Slot or None (a null row) for each row, or int32 ids [B]. The generations of Slots are compared: a
                handle whose slot has moved on is refused.
            generations: int32 [B], where ``slots`` are ids: the handles' generations.
            track_slots: slots that get a snapshot; None or a negative id: no snapshot of that row.
            track_steps: int32 [B], with track_slots: row of the window after which the snapshot is taken (0: after
                the first token), below num_accepted.
            row_status: int32 [B], written: ``RowStatus``. Without it a refused row fails the call on the CPU.
            ring_ids: int32 [B]: those of the verify; for pools with ``rings``, and only for them.
        """
        # Lists become arrays like the arrays among the arguments, and the call runs in their stream.
        given = [values for values in (num_accepted, slots) if hasattr(values, "__dlpack__")]
        like = given[0] if given else self._like()
        ids = self._ids(slots)
        if generations is None and _are_handles(slots):
            generations = [0 if slot is None else slot.generation for slot in slots]
        arguments = {"slot_ids": ints(ids, like), "generations": ints(generations, like),
                     "num_accepted": ints(num_accepted, like), "track_slots": ints(self._ids(track_slots), like),
                     "track_steps": ints(track_steps, like), "row_status": row_status, "impl": impl,
                     "ring_ids": ints(ring_ids, like),
                     "stream": stream_handle(self._stream if stream is None else stream, like)}
        _ringfold.commit(arguments, self._native)

    # -- within

    def _ids(self, slots: Optional[Slots]) -> Optional[Ints]:
        if isinstance(slots, Slot):
            raise InvalidArgumentError("slots: expected one Slot for each row, in a list, found a Slot")
        if not _are_handles(slots):
            return slots
        if not all(slot is None or isinstance(slot, Slot) for slot in slots):
            raise InvalidArgumentError(f"slots: expected Slots and None, or int32 ids, found both in {slots!r}")
        return [-1 if slot is None else slot.id for slot in slots]

    def _array(self, name: str, layer: Optional[int]) -> Optional[Array]:
        if name not in self._whole:
            self._whole[name] = self._all_layers(name)
        whole = self._whole[name]
        if layer is None or whole is None:
            return whole
        if not 0 <= layer < self._config.layers:
            raise InvalidArgumentError(f"layer: expected 0 .. {self._config.layers - 1}, found {layer}")
        return self._native.view(name, layer, False, self._device_id) if self._views == "dlpack" else whole[layer]

    def _all_layers(self, name: str) -> Optional[Array]:
        as_numpy = self._views == "numpy"
        view = self._native.view(name, -1, as_numpy, self._device_id)
        if view is None or self._views == "dlpack":
            return view
        if not as_numpy:
            import torch

            return torch.from_dlpack(view)
        array = np.asarray(view)
        return array.view(numpy_bf16()) if array.dtype == np.uint16 else array

    def _like(self) -> Array:
        """An array where the pool lies, for making others like it."""
        return np.empty(0) if self._config.device == "cpu" else self._array("pending", None)

    def _use_stream(self) -> None:
        if self._config.device == "cuda":
            self._native.set_stream(stream_handle(self._stream, self._like()))


def _are_handles(slots: Any) -> bool:
    return isinstance(slots, (list, tuple)) and any(slot is None or isinstance(slot, Slot) for slot in slots)


def _handles(name: str, slots: Union[Slot, Sequence[Slot]]) -> list[tuple[int, int]]:
    slots = [slots] if isinstance(slots, Slot) else slots
    if not isinstance(slots, (list, tuple)) or not all(isinstance(slot, Slot) for slot in slots):
        raise InvalidArgumentError(f"{name}: expected a Slot or a list of them, found {slots!r}")
    return [tuple(slot) for slot in slots]
