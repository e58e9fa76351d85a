"""Arrays are used where they are, stay alive while they are used, and are let go afterwards."""

import ctypes
import gc
import sys
import threading
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from support import DTYPES, Shape, make_ring, make_state, make_window, runs_others, same

import ringfold
from ringfold import _ringfold


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i32"])
def test_the_library_sees_the_callers_memory(dtype):
    array = np.zeros((3, 4, 8), np.int32 if dtype == "i32" else DTYPES[dtype])
    for view in (array, array[1:], array[:, ::2], array[..., 3:5], array.transpose(2, 0, 1), array[::-1], array[0, 0]):
        address, name, device, shape, strides = _ringfold.describe(view)
        assert (address, name, device) == (view.__array_interface__["data"][0], dtype, "cpu")
        assert shape == view.shape
        assert strides == tuple(stride // view.itemsize for stride in view.strides)
        assert _ringfold.describe(view, True) == (address, name, device, shape, strides)


class Wrapped:
    """An array of a library that nobody knows: DLPack alone."""

    def __init__(self, array):
        self.array, self.asked = array, 0

    def __dlpack__(self, *, stream=None, max_version=None):
        self.asked += 1
        return self.array.__dlpack__(max_version=max_version)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    @property
    def shape(self):
        return self.array.shape


def test_anything_with_dlpack():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    wrapped = Wrapped(array)
    assert _ringfold.describe(wrapped, True) == _ringfold.describe(array)
    assert wrapped.asked == 1
    array.flags.writeable = False
    assert _ringfold.describe(wrapped) == _ringfold.describe(array)
    with pytest.raises(ringfold.InvalidArgumentError, match="may be written"):
        _ringfold.describe(wrapped, True)


class Tensor(ctypes.Structure):
    """DLManagedTensor of dlpack.h, its DLTensor and deleter spelt out."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class HandMade:
    """A DLPack tensor with fields that NumPy never sets."""

    def __init__(self, **fields):
        self.shape_field = (ctypes.c_int64 * 2)(3, 4)
        self.tensor = Tensor(**{"data": 4096, "device_type": 1, "ndim": 2, "code": 2, "bits": 32, "lanes": 1,
                                "shape": self.shape_field, **fields})

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)

    def __dlpack_device__(self):
        return self.tensor.device_type, 0


def test_fields_of_dlpack():
    assert _ringfold.describe(HandMade()) == (4096, "f32", "cpu", (3, 4), (4, 1))  # no strides: packed
    assert _ringfold.describe(HandMade(byte_offset=8))[0] == 4104
    for device, name in ((2, "cuda"), (3, "cpu"), (13, "cuda")):
        assert _ringfold.describe(HandMade(device_type=device), True)[2] == name
    with pytest.raises(ringfold.InvalidArgumentError, match="^array: expected memory of the CPU or of CUDA, found .* 8"):
        _ringfold.describe(HandMade(device_type=8))
    for fields, found in (({"lanes": 2}, "float32x2"), ({"code": 4, "bits": 32}, "bfloat32"), ({"code": 5}, "complex32")):
        with pytest.raises(ringfold.InvalidArgumentError, match=f"found {found}"):
            _ringfold.describe(HandMade(**fields))


def test_a_call_on_mixed_devices_is_refused():
    window = make_window(Shape())
    call = {**window.arrays, "slot_ids": [0, 1, 2], "mixer": window.mixer, "state": make_state(Shape(), 4)}
    elsewhere = HandMade(device_type=2)
    elsewhere.shape_field[:] = [3, 4]
    bias = (ctypes.c_int64 * 1)(4)
    elsewhere.tensor.ndim, elsewhere.tensor.shape = 1, bias
    mixer = ringfold.Mixer(**{**vars(window.mixer), "dt_bias": elsewhere})
    with pytest.raises(ringfold.InvalidArgumentError, match="^mixer.dt_bias: expected memory of device cpu, as state is"):
        ringfold.verify(**{**call, "mixer": mixer})


def test_a_buffer_is_an_array_too():
    memory = bytearray(16)
    view = memoryview(memory).cast("f")
    address, dtype, _, shape, strides = _ringfold.describe(view, True)
    assert (dtype, shape, strides) == ("f32", (4,), (1,))
    assert address == np.frombuffer(memory, np.float32).__array_interface__["data"][0]
    with pytest.raises(ringfold.InvalidArgumentError, match="may be written"):
        _ringfold.describe(memoryview(bytes(16)).cast("f"), True)


@pytest.mark.parametrize("array, found", [(np.zeros(3), "float64"), (np.zeros(3, np.int64), "int64"),
                                          (np.zeros(3, bool), "bool8"), (np.zeros(3, np.complex64), "complex64"),
                                          (np.zeros(3, np.uint16), "uint16"),
                                          (np.zeros(3, ml_dtypes.float8_e5m2), "ndarray")])
def test_other_dtypes_are_refused(array, found):
    with pytest.raises(ringfold.InvalidArgumentError, match=f"found {found}"):
        _ringfold.describe(array)


def test_dimensions():
    for array in (np.float32(1), np.zeros((), np.float32), np.zeros((1,) * 7, np.float32)):
        with pytest.raises(ringfold.InvalidArgumentError, match="^array: expected 1 to 6 dimensions, found"):
            _ringfold.describe(array)


@pytest.mark.parametrize("act", ["f32", "bf16", "f16"])
def test_outputs_are_like_the_inputs_or_the_callers(act):
    shape = Shape(act=act)
    window, state = make_window(shape), make_state(shape, 4)
    call = {**window.arrays, "slot_ids": [0, 1, 2], "mixer": window.mixer, "state": state}
    out = ringfold.verify(**call)
    assert type(out) is np.ndarray and out.dtype == DTYPES[act] and out.flags.c_contiguous
    own = np.zeros_like(out)
    assert ringfold.verify(**call, out=own) is own and same(own, out)
    wide = np.zeros(out.shape, np.float32)
    assert ringfold.verify(**call, out=wide) is wide and same(wide.astype(DTYPES[act]), out)


def test_outputs_are_not_invented():
    window = make_window(Shape())
    call = {**window.arrays, "slot_ids": [0, 1, 2], "mixer": window.mixer, "state": make_state(Shape(), 4)}
    call["v"] = Wrapped(call["v"])
    with pytest.raises(ringfold.InvalidArgumentError, match="^out: expected an array to write to, found nothing"):
        ringfold.verify(**call)
    out = np.zeros(window.arrays["v"].shape, np.float32)
    assert ringfold.verify(**call, out=out) is out
    call["v"] = window.arrays["v"]
    assert same(out, ringfold.verify(**call))


def test_no_copy_is_made_of_large_arrays():
    shape = Shape(B=2, T=2, H=4, HV=8, K=128, V=128, act="bf16")
    window, ring = make_window(shape), make_ring(shape, 64, 2)
    state = make_state(shape, 64)
    out = np.empty(window.arrays["v"].shape, DTYPES["bf16"])
    call = {**window.arrays, "slot_ids": np.array([0, 63], np.int32), "mixer": window.mixer, "state": state,
            "ring": ring, "out": out}
    ringfold.verify(**call)
    tracemalloc.start()
    try:
        ringfold.verify(**call)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert state.nbytes > 2 ** 24 and peak < 2 ** 16, "numpy reports its allocations to tracemalloc"


def references(objects):
    gc.collect()
    return [sys.getrefcount(item) for item in objects]


def test_nothing_is_held_after_a_call():
    for act in ("f32", "bf16"):
        shape = Shape(act=act)
        window, ring = make_window(shape), make_ring(shape, 4, 4)
        call = {**window.arrays, "slot_ids": np.array([0, 1, 2], np.int32), "mixer": window.mixer,
                "state": make_state(shape, 4), "ring": ring, "row_status": np.zeros(3, np.int32),
                "pending": np.full(4, -1, np.int32), "out": np.zeros(window.arrays["v"].shape, DTYPES[act])}
        objects = [*call.values(), *ring[:4], window.mixer.A_log, window.mixer.dt_bias]
        ringfold.verify(**call)
        before = references(objects)
        for _ in range(10):
            ringfold.verify(**call)
            with pytest.raises(ringfold.Error):
                ringfold.verify(**{**call, "impl": "warp9"})
            with pytest.raises(ringfold.Error):
                ringfold.verify(**{**call, "row_status": np.zeros(9, np.int32)})
        assert references(objects) == before


def test_other_threads_run_during_a_call():
    shape = Shape(B=16, T=8, H=16, HV=32, K=128, V=128)
    window, state = make_window(shape), make_state(shape, 16)
    ids = np.arange(16, dtype=np.int32)
    assert runs_others(lambda: ringfold.verify(**window.arrays, slot_ids=ids, mixer=window.mixer, state=state))
    assert not runs_others(lambda: sorted(range(10 ** 5, 0, -1)))  # the measure itself: the GIL is held here


def test_arrays_may_lose_their_last_name_during_a_call():
    """The call holds what it works on: another thread drops all names meanwhile."""
    shape = Shape(B=16, T=8, H=16, HV=32, K=128, V=128)
    window = make_window(shape)
    call = {**window.arrays, "slot_ids": np.arange(16, dtype=np.int32), "mixer": window.mixer,
            "state": make_state(shape, 16)}
    expected = ringfold.verify(**call)
    results = []

    def run(arguments):
        results.append(ringfold.verify(**arguments))

    mine = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in call.items()}
    thread = threading.Thread(target=run, args=(mine,))
    thread.start()
    mine.clear()
    gc.collect()
    thread.join()
    assert same(results[0], expected)


def test_jax_arrays_are_read_and_never_written():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    window = make_window(Shape())
    state = make_state(Shape(), 4)
    on_cpu = jax.devices("cpu")[0]
    call = {name: jax.device_put(array, on_cpu) for name, array in window.arrays.items()}
    out = ringfold.verify(**call, slot_ids=[0, 1, 2], mixer=window.mixer, state=state)
    assert same(out, ringfold.verify(**window.arrays, slot_ids=[0, 1, 2], mixer=window.mixer, state=state))
    with pytest.raises(ringfold.InvalidArgumentError, match="^out: expected an array that may be written"):
        ringfold.verify(**call, slot_ids=[0, 1, 2], mixer=window.mixer, state=state, out=call["v"])
