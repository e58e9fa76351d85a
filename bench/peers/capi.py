"""libringfold.so.1 through ctypes: the C ABI of include/ringfold/c_api.h, whose structs are read from that header.

Tensors may be of torch or NumPy. Nothing is copied; every call says so with an exception if the library refuses it.
"""

import ctypes
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEADER = os.path.join(ROOT, "include", "ringfold", "c_api.h")
PLACES = ("build-gpu/src", "build/src")  # where a build leaves the shared library
NUMBERS = {"size_t": ctypes.c_size_t, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64,
           "uint64_t": ctypes.c_uint64, "float": ctypes.c_float, "double": ctypes.c_double}
DTYPES = {"float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "int32": (0, 32)}  # DLPack's code and bits
CPU, CUDA = 1, 2  # DLPack's devices


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Slot(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("generation", ctypes.c_int32)]


class RingfoldError(RuntimeError):
    """What the library said about a call."""


def structs_of(header):
    """{name: ctypes.Structure} of the structs with a struct_size in the text of c_api.h. Pointers are void pointers."""
    header = re.sub(r"/\*.*?\*/", " ", header, flags=re.DOTALL)
    found = {}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", header, re.DOTALL):
        fields = []
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            kind, names = re.fullmatch(r"(?:const )?(\w+)\b(.*)", declaration, re.DOTALL).groups()
            for field in names.split(","):
                pointer = "*" in field
                fields.append((field.replace("*", "").strip(), ctypes.c_void_p if pointer else NUMBERS[kind]))
        if fields[0][0] == "struct_size":
            found[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return found


def constants_of(header):
    return {name: int(value) for name, value in re.findall(r"\b(RINGFOLD_\w+) = (\d+)", header)}


with open(HEADER, encoding="utf-8") as _file:
    _text = _file.read()
STRUCTS, CONSTANTS = structs_of(_text), constants_of(_text)


def constant(name):
    return CONSTANTS[f"RINGFOLD_{name.upper()}"]


def dl_tensor(array):
    """A DLTensor that borrows `array`, which the result keeps alive; None stays None."""
    if array is None:
        return None
    torch_like = hasattr(array, "data_ptr")
    strides = array.stride() if torch_like else [s // array.itemsize for s in array.strides]
    dtype = str(array.dtype).replace("torch.", "")
    code, bits = DTYPES[dtype]
    on_cuda = torch_like and array.is_cuda
    count = len(array.shape)
    t = DLTensor(array.data_ptr() if torch_like else array.ctypes.data, CUDA if on_cuda else CPU,
                 array.device.index or 0 if on_cuda else 0, count, code, bits, 1)
    t.shape, t.strides = (ctypes.c_int64 * count)(*array.shape), (ctypes.c_int64 * count)(*strides)
    t.kept = array
    return t


def make(name, **values):
    """A struct of the header, by its name without "ringfold_". Arrays become tensors, structs pointers."""
    struct = STRUCTS[f"ringfold_{name}"]()
    struct.struct_size = ctypes.sizeof(struct)
    struct.kept = []
    known = dict(struct._fields_)
    for field, value in values.items():
        if field not in known:
            raise KeyError(f"ringfold_{name} has no {field}")
        if known[field] is ctypes.c_void_p and value is not None and not isinstance(value, (int, ctypes.c_void_p)):
            if isinstance(value, bytes):
                value = ctypes.create_string_buffer(value)
            elif hasattr(value, "dtype"):
                value = dl_tensor(value)
            struct.kept.append(value)
            value = ctypes.cast(ctypes.pointer(value), ctypes.c_void_p)
        setattr(struct, field, value)
    return struct


def find_library(given=None):
    """The path of libringfold.so.1: the one given, or one of a build folder of this tree; None if there is none."""
    places = [given] if given else [os.path.join(ROOT, place) for place in PLACES]
    for place in places:
        for path in (place, os.path.join(place, "libringfold.so.1")):
            if os.path.isfile(path):
                return path
    return None


class Library:
    def __init__(self, path):
        self.path = path
        self.lib = ctypes.CDLL(path)
        for name in ("ringfold_last_error", "ringfold_version", "ringfold_status_name"):
            getattr(self.lib, name).restype = ctypes.c_char_p
        self.version = self.lib.ringfold_version().decode()

    def check(self, status):
        if status != 0:
            name = self.lib.ringfold_status_name(status).decode()
            raise RingfoldError(f"{name}: {self.lib.ringfold_last_error().decode()}")

    def call(self, name, args):
        """A compute call: verify, decode, fold."""
        self.check(getattr(self.lib, f"ringfold_{name}")(ctypes.byref(args)))

    def implementations(self, device):
        names, index = [], 0
        name = ctypes.c_char_p()
        while True:
            self.check(self.lib.ringfold_implementation(device, ctypes.c_size_t(index), ctypes.byref(name)))
            if name.value is None:
                return names
            names.append(name.value.decode())
            index += 1

    def pool(self, **config):
        return Pool(self, make("pool_config", **config))


class Pool:
    """A ringfold_pool; its tensors as (pointer, shape, device type)."""

    def __init__(self, library, config):
        self.library, self.handle = library, ctypes.c_void_p()
        library.check(library.lib.ringfold_pool_create(ctypes.byref(config), ctypes.byref(self.handle)))

    def __del__(self):
        if self.handle:
            self.library.lib.ringfold_pool_destroy(self.handle)

    def acquire(self, count):
        slots = (Slot * count)()
        self.library.check(self.library.lib.ringfold_pool_acquire(self.handle, slots, ctypes.c_size_t(count)))
        self.slots = slots
        return [slot.id for slot in slots]

    def settle(self):
        """Histories of all acquired slots go into their states."""
        self.library.check(self.library.lib.ringfold_pool_settle(self.handle, self.slots,
                                                                 ctypes.c_size_t(len(self.slots))))

    def set_stream(self, stream):
        self.library.check(self.library.lib.ringfold_pool_set_stream(self.handle, ctypes.c_void_p(stream)))

    def tensor(self, which, layer=-1):
        """(address, shape), or None where the pool has no such tensor. `which`: "state", "ring_k", .."""
        tensor = ctypes.POINTER(DLTensor)()
        self.library.check(self.library.lib.ringfold_pool_tensor(
            self.handle, constant(f"pool_{which}"), ctypes.c_int64(layer), ctypes.byref(tensor)))
        if not tensor:
            return None
        t = tensor.contents
        return t.data + t.byte_offset, tuple(t.shape[i] for i in range(t.ndim))

    def commit(self, args):
        self.library.check(self.library.lib.ringfold_commit(self.handle, ctypes.byref(args)))
