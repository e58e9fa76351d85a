"""How to report a bug: live tensors become a case file (docs/case-files.md) that runs anywhere.

``write_case`` takes what a program passes to ringfold, as NumPy arrays or torch tensors of any device, and writes a
safetensors file; copy it into your program. Run as it is, this file makes an example:

    python examples/report_bug.py case.safetensors
    ringfold run case.safetensors -o out.safetensors
"""

import json
import math
import struct
import sys

import numpy as np

import ringfold

NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int32": "I32"}


def packed(array):
    """(dtype name, shape, bytes) of an array in memory order. This is a copy: a report is no hot path."""
    if type(array).__module__.partition(".")[0] == "torch":
        array = array.detach().cpu().contiguous()
        name = str(array.dtype).rpartition(".")[2]
        if name == "bfloat16":  # NumPy has no such dtype
            array = array.view(dtype=getattr(sys.modules["torch"], "int16"))
        return NAMES[name], list(array.shape), array.numpy().tobytes()
    array = np.ascontiguousarray(array)
    return NAMES[array.dtype.name], list(array.shape), array.tobytes()


def write_case(path, *, state, mixer, steps, **description):
    """Writes a case file.

    Args:
        state: the pool's states before the first step, [slots, HV, V, K] or [layers, slots, HV, V, K].
        mixer: the ringfold.Mixer of the layer (arrays with a leading ``layers`` where the state has it).
        steps: pairs (operation, arrays), for example ("verify", {"q": .., "k": .., "v": .., "a": .., "b": ..,
            "slot_ids": ..}) and ("commit", {"accept": ..}). Inputs are [tokens, ..]: of a dense window [B, T, ..] the
            first two dimensions become one.
        description: further keys, for example state_rounding="per_token", fold_policy="lazy", ring_rows=8.
    """
    case = {"version": 1, "mixer": mixer.kind, "softplus_beta": mixer.softplus_beta,
            "softplus_threshold": mixer.softplus_threshold, "lower_bound": mixer.lower_bound, "scale": mixer.scale,
            "qk_l2norm": mixer.qk_l2norm, "steps": [{"op": op} for op, _ in steps], **description}
    tensors = {"state": packed(state), "A_log": packed(mixer.A_log)}
    inner = (state.shape[-1],) if mixer.kind == "kda" else ()
    zeros = np.zeros(tuple(mixer.A_log.shape) + inner, np.float32)
    tensors["dt_bias"] = packed(zeros if mixer.dt_bias is None else mixer.dt_bias)
    for i, (op, arrays) in enumerate(steps):
        for name, array in arrays.items():
            tensors[f"{i}.{name}"] = packed(array)
    header, data = {"__metadata__": {"ringfold_case": json.dumps(case)}}, b""
    for name, (dtype, shape, raw) in tensors.items():
        assert math.prod(shape) * (4 if dtype in ("F32", "I32") else 2) == len(raw)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def tokens(array):
    """[B, T, ..] as [B * T, ..]."""
    return array.reshape(-1, *array.shape[2:])


def main():
    random = np.random.default_rng(3)
    H, HV, K, V, T = 1, 2, 16, 8, 3

    def noise(*shape):
        return random.standard_normal(shape, dtype=np.float32)

    pool = ringfold.Pool(slots=2, H=H, HV=HV, K=K, V=V, ring_rows=T)
    mixer = ringfold.Mixer(A_log=noise(HV), dt_bias=noise(HV))
    slot = pool.acquire()
    window = {"q": noise(1, T, H, K), "k": noise(1, T, H, K), "v": noise(1, T, HV, V), "a": noise(1, T, HV),
              "b": noise(1, T, HV)}
    state = pool.state(0).copy()  # before the steps that go wrong

    out = pool.verify(0, **window, slots=[slot], mixer=mixer)
    pool.commit([2], [slot])

    path = sys.argv[1] if len(sys.argv) > 1 else "case.safetensors"
    write_case(path, state=state, mixer=mixer,
               steps=[("verify", {name: tokens(array) for name, array in window.items()}
                       | {"slot_ids": np.array([slot.id], np.int32)}),
                      ("commit", {"accept": np.array([2], np.int32)})])
    print(f"{path}: attach it, with what `ringfold info` prints and what you expected instead of these outputs:")
    print(tokens(out)[:, 0, :4])


if __name__ == "__main__":
    main()
