"""The examples run, and a case file made from live arrays is one that the program takes."""

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from support import DTYPES, GATES, ROOT, Shape, cli, make_pool, make_window

import casefile
import report_bug
import ringfold


def example(name, *arguments):
    done = subprocess.run([sys.executable, os.path.join(ROOT, "examples", name), *arguments], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_case(path, *options):
    if cli() is None:
        pytest.skip("RINGFOLD_CLI is not set")
    done = subprocess.run([cli(), "run", str(path), "-o", f"{path}.out", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return casefile.read(f"{path}.out")


def test_numpy_step():
    assert "those of plain decoding" in example("numpy_step.py")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_torch_graph(device):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if device == "cuda" and not (ringfold.implementations("cuda") and torch.cuda.is_available()):
        pytest.skip("no CUDA device, or no kernels in this build")
    assert {"cpu": "steps on cpu", "cuda": "graph replays on cuda"}[device] in example("torch_graph.py", device)


def test_report_bug_takes_tensors_of_a_device(tmp_path):
    """A live dump of CUDA tensors is the case that the same tensors on the host are."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    mixer = make_window(Shape()).mixer
    state, steps = torch.randn(3, 4, 24, 32), [("commit", {"accept": torch.tensor([1, 2], dtype=torch.int32)})]
    for device in ("cpu", "cuda"):
        on = ringfold.Mixer(A_log=torch.from_numpy(mixer.A_log).to(device))
        report_bug.write_case(tmp_path / device, state=state.to(device), mixer=on,
                              steps=[(op, {name: value.to(device) for name, value in values.items()})
                                     for op, values in steps])
    assert (tmp_path / "cpu").read_bytes() == (tmp_path / "cuda").read_bytes()


def test_report_bug(tmp_path):
    path = tmp_path / "case.safetensors"
    assert str(path) in example("report_bug.py", str(path))
    result = run_case(path)
    assert result["0.status"].values == [0] and result["1.status"].values == [0]
    assert any(result["state"].values)


@pytest.mark.parametrize("policy", ["on_commit", "lazy"])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("act, state", [("f32", "f32"), ("bf16", "f32"), ("f16", "bf16")])
def test_a_case_gives_the_bits_of_the_live_call(tmp_path, gate, act, state, policy):
    """The same steps in this process and in the program, with its plain reference: equal bytes."""
    shape = Shape(B=2, gate=gate, act=act, state=state)
    rows = 4 if policy == "on_commit" else 9
    pool = make_pool(shape, slots=2, layers=2, ring_rows=rows, max_window=4, fold_policy=policy)
    slots = pool.acquire(2)
    window = make_window(shape)
    pool.state()[...] = np.random.default_rng(9).standard_normal(pool.state().shape).astype(DTYPES[state])
    before = pool.state().copy()
    both = {name: np.stack([array, array[::-1]]) for name, array in window.arrays.items()}  # another input per layer
    outs, steps = [], []
    ids = np.array([slot.id for slot in slots], np.int32)
    for accept in ([3, 1], [0, 4], [2, 2]):
        outs.append(np.stack([pool.verify(layer, **{name: array[layer] for name, array in both.items()}, slots=slots,
                                          mixer=window.mixer) for layer in range(2)]))
        pool.commit(accept, slots)
        steps.append(("verify", {name: array.reshape(2, 8, *array.shape[3:]) for name, array in both.items()}
                      | {"slot_ids": ids}))
        steps.append(("commit", {"accept": np.array(accept, np.int32)}))
    pool.settle(slots)
    mixer = ringfold.Mixer(**{**vars(window.mixer), "A_log": np.stack([window.mixer.A_log] * 2),
                              "dt_bias": np.stack([window.mixer.dt_bias] * 2)})
    report_bug.write_case(tmp_path / "case", state=before, mixer=mixer, steps=steps, fold_policy=policy, ring_rows=rows)
    result = run_case(tmp_path / "case", "--impl", "reference")
    for i, out in enumerate(outs):
        assert result[f"{2 * i}.o"].bytes == out.tobytes(), i
    assert result["state"].bytes == pool.state().tobytes()


def test_report_bug_packs_torch_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    values = torch.randn(3, 4)
    for dtype, name in ((torch.float32, "F32"), (torch.float16, "F16"), (torch.bfloat16, "BF16")):
        packed = report_bug.packed(values.to(dtype).T)
        assert packed[:2] == (name, [4, 3])
        own = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}[name]
        assert packed[2] == values.numpy().T.astype(own).tobytes()
