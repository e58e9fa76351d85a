"""SGLang's tensors as the views that ringfold takes. No data is copied; indices are never read on the host."""

from __future__ import annotations

from contextlib import contextmanager
from math import prod

from .. import _ops
from .._errors import Error, InvalidArgumentError
from .._ringfold import MAX_WINDOW

#: Names of ringfold's arguments, which the library's complaints begin with, as SGLang's functions call them.
VERIFY_NAMES = {"slot_ids": "initial_state_indices", "state": "initial_state_source", "out": "output",
                "snapshots": "intermediate_states_buffer", "mixer.A_log": "A_log", "mixer.dt_bias": "dt_bias",
                "mixer.softplus_beta": "softplus_beta", "mixer.softplus_threshold": "softplus_threshold",
                "mixer.lower_bound": "lower_bound", "mixer.scale": "scale", "ring.k": "replayssm_rawk",
                "ring.v": "replayssm_rawv", "ring.g": "replayssm_g", "ring.beta": "replayssm_beta"}
FOLD_NAMES = {"slot_ids": "ssm_state_indices", "num_accepted": "accept_lens", "state": "checkpoint_state",
              "track_slots": "mamba_track_indices", "track_steps": "mamba_steps_to_track", "ring.k": "rawk_cache",
              "ring.v": "rawv_cache", "ring.beta": "beta_cache"}


@contextmanager
def named(names):
    """Errors of the library with the caller's name of the argument, and without advice that is not for the caller."""
    try:
        yield
    except Error as error:
        name, _, rest = str(error).partition(": ")
        raise type(error)(f"{names.get(name, name)}: {rest.partition(' (give row_status')[0]}") from None


def expect_shape(name, tensor, what, shape):
    """``shape`` as described by ``what``."""
    found = getattr(tensor, "shape", None)
    if found is None or tuple(found) != tuple(shape):
        described = "nothing" if tensor is None else type(tensor).__name__ if found is None else list(found)
        raise InvalidArgumentError(f"{name}: expected {what} = {list(shape)}, found {described}")


def expect_rank(name, tensor, what, *ranks):
    found = getattr(tensor, "shape", None)
    if found is None or len(found) not in ranks:
        described = "nothing" if tensor is None else type(tensor).__name__ if found is None else list(found)
        raise InvalidArgumentError(f"{name}: expected {what}, found {described}")


def per_token(name, tensor, lead, heads):
    """A gate input as a view ``[*lead, *heads]``. It may have its leading dimensions merged, and the inner ones too.

    A tensor of 4 dimensions has none of the inner ones merged, any other all of them.
    """
    what = f"tokens = {prod(lead)} and {' x '.join(map(str, heads))} values each"

    def refuse():
        raise InvalidArgumentError(f"{name}: expected {what}, found {list(tensor.shape)}")

    expect_rank(name, tensor, what, 2, 3, 4)
    if tensor.dim() < 4:
        if tensor.shape[-1] != prod(heads):
            refuse()
        tensor = tensor.unflatten(-1, heads)
    if tuple(tensor.shape[-len(heads):]) != heads:
        refuse()
    outer = tuple(tensor.shape[:-len(heads)])
    if outer == lead:
        return tensor
    if outer == (1, *lead):
        return tensor[0]
    if outer == (prod(lead),):
        return tensor.unflatten(0, lead)
    return refuse()


def parameter(tensor, shape):
    """A parameter in float32 and in ringfold's shape; None stays. 16-bit ones are widened, which is exact."""
    if tensor is None:
        return None
    tensor = tensor.detach()
    if tensor.numel() == prod(shape):
        tensor = tensor.reshape(shape)
    return tensor.float()


def int32(tensor):
    """Indices of any integer dtype as int32."""
    import torch

    return tensor if tensor.dtype == torch.int32 else tensor.to(torch.int32)


def ring(names, lead, sizes, is_kda, rawk, rawv, g, beta):
    """Rings with the rows behind the heads, as views with the rows in front of them.

    ``names``: of rawk, rawv, g and beta. ``lead``: [slots] or [layers, slots]. ``sizes``: H, HV, K, V; H None: any.
    """
    H, HV, K, V = sizes
    dims = "[slots,{}]" if len(lead) == 1 else "[layers,slots,{}]"
    expect_rank(names[0], rawk, dims.format("H,L,K"), len(lead) + 3)
    rows = rawk.shape[-2]
    expect_shape(names[0], rawk, dims.format("H,L,K"), (*lead, rawk.shape[-3] if H is None else H, rows, K))
    expect_shape(names[1], rawv, dims.format("HV,L,V"), (*lead, HV, rows, V))
    expect_shape(names[2], g, dims.format("HV,L,K" if is_kda else "HV,L"), (*lead, HV, rows, *([K] if is_kda else [])))
    expect_shape(names[3], beta, dims.format("HV,L"), (*lead, HV, rows))
    heads, kept = len(lead), min(rows, MAX_WINDOW)  # no window is longer

    def view(tensor):
        return tensor.transpose(heads, heads + 1).narrow(heads, 0, kept)

    return _ops.Ring(k=view(rawk), v=view(rawv), g=view(g), beta=view(beta))


def scatter_states(buffer, states, rows, steps, live):
    """``buffer[rows[i], steps[i]] = states[i]`` where ``live[i]``, every other byte of the buffer as it was.

    buffer [rows,steps,HV,V,K]; states [tokens,HV,V,K], used up; rows, steps, live [tokens]. No two live tokens share a
    place. All of it happens on the device. A token that is not live adds 0 to a place as an integer, which changes
    nothing, also where a live one writes.
    """
    import torch

    expect_shape("intermediate_states_buffer", buffer, "[rows,steps,HV,V,K]",
                 (*buffer.shape[:2], *states.shape[1:]))
    if buffer.dtype != states.dtype:
        raise InvalidArgumentError(f"intermediate_states_buffer: expected dtype {states.dtype}, as "
                                   f"initial_state_source has, found {buffer.dtype}")
    count, length = buffer.shape[:2]
    pitch, step = buffer.stride(0), buffer.stride(1)
    if count == 0 or length == 0:
        return
    if pitch % step != 0:
        raise InvalidArgumentError(f"intermediate_states_buffer: expected rows whose stride is a multiple of that of "
                                   f"steps, found strides {pitch} and {step}")
    places = buffer.as_strided(((count - 1) * (pitch // step) + length, *buffer.shape[2:]),
                               (step, *buffer.stride()[2:]))
    live = live & (rows >= 0) & (rows < count) & (steps < length)
    places_of = torch.where(live, rows * (pitch // step) + steps, 0)
    whole = torch.int16 if buffer.element_size() == 2 else torch.int32
    places, states = places.view(whole), states.view(whole)
    states -= places.index_select(0, places_of)
    states *= live.to(whole)[:, None, None, None]
    places.index_add_(0, places_of, states)
