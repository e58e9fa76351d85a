"""Safetensors and case files in plain Python: values go in and come out as flat lists of numbers."""

import itertools
import json
import math
import struct

SIZES = {"F32": 4, "BF16": 2, "F16": 2, "I32": 4, "F64": 8, "I64": 8}


def bf16_bits(value):
    """Nearest even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if math.isnan(value):
        return (bits >> 16) | 0x40
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def encode(dtype, values):
    if dtype == "BF16":
        return b"".join(struct.pack("<H", bf16_bits(value)) for value in values)
    code = {"F32": "f", "F16": "e", "I32": "i", "F64": "d", "I64": "q"}[dtype]
    return struct.pack(f"<{len(values)}{code}", *values)


def decode(dtype, data):
    if dtype == "BF16":
        halves = struct.unpack(f"<{len(data) // 2}H", data)
        return [struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves]
    code = {"F32": "f", "F16": "e", "I32": "i"}[dtype]
    return list(struct.unpack(f"<{len(data) // SIZES[dtype]}{code}", data))


class Tensor:
    """A tensor whose values are exactly representable in its dtype (they are rounded when it is made)."""

    def __init__(self, dtype, shape, values=None):
        self.dtype, self.shape = dtype, list(shape)
        count = math.prod(self.shape)
        values = [0] * count if values is None else list(values)
        if len(values) != count:
            raise ValueError(f"{len(values)} values for {shape}")
        self.bytes = encode(dtype, values)
        self.values = decode(dtype, self.bytes) if dtype in ("F32", "BF16", "F16", "I32") else values

    def at(self, *index):
        """One value, or the list of values below a prefix of an index."""
        start, block = 0, len(self.values)
        for i, size in zip(index, self.shape):
            block //= size
            start += i * block
        return self.values[start] if len(index) == len(self.shape) else self.values[start:start + block]


def assemble(tensors, metadata, header_edit=None):
    """The bytes of a file. header_edit(header) may spoil the header before it is written."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape,
                        "data_offsets": [len(data), len(data) + len(tensor.bytes)]}
        data += tensor.bytes
    if header_edit:
        header_edit(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def write_case(path, case, tensors):
    text = case if isinstance(case, str) else json.dumps(case)
    with open(path, "wb") as file:
        file.write(assemble(tensors, {"ringfold_case": text}))


def read(path):
    with open(path, "rb") as file:
        raw = file.read()
    size = struct.unpack("<Q", raw[:8])[0]
    header, data, tensors = json.loads(raw[8:8 + size]), raw[8 + size:], {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = Tensor(entry["dtype"], entry["shape"], decode(entry["dtype"], data[begin:end]))
        tensors[name].bytes = data[begin:end]
    return tensors


def indices(shape):
    return itertools.product(*(range(size) for size in shape))
