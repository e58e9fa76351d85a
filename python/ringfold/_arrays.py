"""What has to be known of array libraries: which one an array is from, how to make one like it, and its stream.

No library but NumPy is imported here: one that a caller uses is in sys.modules already.
"""

from __future__ import annotations

import sys
from typing import Any, Optional, Sequence, Union

import numpy as np

from ._errors import InvalidArgumentError

#: Anything with ``__dlpack__`` or the buffer protocol: numpy.ndarray, torch.Tensor, cupy.ndarray, jax.Array, ..
Array = Any
#: int32 values as an array, or as a plain sequence, which is copied into one.
Ints = Union[Array, Sequence[int]]
#: A ``cudaStream_t`` as an integer, a stream of torch or cupy, or None: the library's current one.
Stream = Any

_SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "f32": "f32", "bf16": "bf16", "f16": "f16"}


def dtype_name(dtype: Any) -> str:
    """``"f32"``, ``"bf16"`` or ``"f16"`` for such a name or for a dtype of numpy, ml_dtypes, torch or jax."""
    if isinstance(dtype, str):
        name = dtype
    elif isinstance(dtype, np.dtype):
        name = dtype.name
    else:
        name = getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]
    return _SHORT.get(name, name)


def library_of(array: Array) -> str:
    """"numpy", "torch", "cupy", "jaxlib", .. : the package that the array's type comes from."""
    for kind in type(array).__mro__[:-1]:
        root = kind.__module__.partition(".")[0]
        if root in ("numpy", "torch", "cupy", "jaxlib"):
            return root
    return type(array).__module__.partition(".")[0]


def bf16_bits(value: Any) -> Optional[np.ndarray]:
    """A NumPy array of ml_dtypes.bfloat16 as uint16 on the same memory, or None for anything else.

    NumPy exports bfloat16 neither by DLPack nor as a buffer, so this is how such arrays reach the library.
    """
    if isinstance(value, np.ndarray) and value.dtype.name == "bfloat16" and value.dtype.itemsize == 2:
        return value.view(np.uint16)
    return None


def numpy_bf16() -> np.dtype:
    """The dtype that NumPy arrays of bf16 have here."""
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError("ringfold: a NumPy array of bf16 needs the package ml_dtypes") from error
    return np.dtype(ml_dtypes.bfloat16)


def is_cuda(array: Array) -> bool:
    if library_of(array) == "numpy":
        return False
    device = getattr(array, "__dlpack_device__", None)
    return device is not None and int(device()[0]) in (2, 13)  # kDLCUDA, kDLCUDAManaged


def shape_of(name: str, array: Array) -> tuple[int, ...]:
    """The shape of the argument ``name``, which has to be an array."""
    shape = getattr(array, "shape", None)
    if shape is None:
        raise InvalidArgumentError(f"{name}: expected an array, found {type(array).__name__}")
    return tuple(shape)


def empty(name: str, like: Array, shape: Sequence[int], argument: str = "out") -> Array:
    """An uninitialised, packed array of this shape, otherwise as ``like``, which is the argument ``name``."""
    shape_of(name, like)
    library = library_of(like)
    if library == "torch":
        return sys.modules["torch"].empty(tuple(shape), dtype=like.dtype, device=like.device)
    if library == "cupy":
        return sys.modules["cupy"].empty(tuple(shape), dtype=like.dtype)
    if library in ("numpy", "jaxlib") and not is_cuda(like):  # arrays of JAX cannot be written
        return np.empty(tuple(shape), dtype=like.dtype)
    raise InvalidArgumentError(
        f"{argument}: expected an array to write to, found nothing (none is made where {name} is from {library})")


def ints(values: Optional[Ints], like: Array) -> Optional[Array]:
    """A plain sequence of integers as an int32 array where ``like`` lies; arrays as they are."""
    if not isinstance(values, (list, tuple, range)):
        return values
    if library_of(like) == "torch":
        torch = sys.modules["torch"]
        return torch.tensor(list(values), dtype=torch.int32, device=like.device)
    if library_of(like) == "cupy":
        return sys.modules["cupy"].asarray(list(values), dtype=np.int32)
    return np.asarray(list(values), dtype=np.int32)


def stream_handle(stream: Stream, array: Optional[Array]) -> int:
    """The cudaStream_t for a call on ``array``. 0, the default stream, where nothing else is known."""
    if stream is None:
        library = library_of(array)
        if library == "torch" and array.is_cuda:
            cuda = sys.modules["torch"].cuda
            if array.device.index != cuda.current_device():
                raise InvalidArgumentError(f"device: expected tensors of the current one, "
                                           f"cuda:{cuda.current_device()}, found {array.device}")
            return cuda.current_stream().cuda_stream
        if library == "cupy":
            return sys.modules["cupy"].cuda.get_current_stream().ptr
        return 0
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    if isinstance(stream, int):
        return stream
    raise InvalidArgumentError(f"stream: expected an integer or a stream of torch or cupy, found "
                               f"{type(stream).__name__}")
