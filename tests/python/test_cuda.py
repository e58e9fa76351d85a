"""CUDA: streams, graphs, pools in device memory, verdicts on rows; torch's tensors, and arrays of CuPy and JAX."""

import numpy as np
import pytest
from support import GATES, Shape, make_window

import ringfold

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch_case import DEVICES, DTYPES, Case, bits, tensor  # noqa: E402

pytestmark = pytest.mark.skipif("cuda" not in DEVICES, reason="no CUDA device, or no kernels in this build")
SHAPE = Shape(act="bf16", K=64, V=64)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def plain_step(case, ids, accept):
    """A step by the pool's own calls; the outputs of both layers."""
    outs = [case.pool.verify(layer, **case.arrays, slots=ids, mixer=case.mixer) for layer in range(2)]
    case.pool.commit(accept, ids)
    return outs


def expected_step(cpu, ids, accept):
    return plain_step(cpu, torch.tensor(ids, dtype=torch.int32), torch.tensor(accept, dtype=torch.int32))


@pytest.mark.parametrize("explicit", [False, True])
def test_calls_run_in_the_stream_that_is_current_or_given(explicit):
    """Inputs arrive late, in a stream beside the default one: a call in any other stream would see zeros."""
    case, cpu = Case(SHAPE, "cuda"), Case(SHAPE, "cpu")
    late = {name: value.clone() for name, value in case.arrays.items()}
    for value in case.arrays.values():
        value.zero_()
    plain_step(case, ints(-1, -1, -1), case.accept)  # the first call of a kernel loads it, which takes its time
    torch.cuda.synchronize()
    beside = torch.cuda.Stream()
    more = {"stream": beside} if explicit else {}
    out = torch.empty_like(case.arrays["v"])
    with torch.cuda.stream(beside):
        torch.cuda._sleep(100_000_000)
        for name, value in late.items():
            case.arrays[name].copy_(value, non_blocking=True)
        if not explicit:
            for layer in range(2):
                case.pool.verify(layer, **case.arrays, slots=case.ids, mixer=case.mixer, out=out)
            case.pool.commit(case.accept, case.ids)
            assert not beside.query()  # the calls did not wait
    if explicit:
        for layer in range(2):
            case.pool.verify(layer, **case.arrays, slots=case.ids, mixer=case.mixer, out=out, **more)
        case.pool.commit(case.accept, case.ids, **more)
        assert not beside.query()
    beside.synchronize()
    assert bits(out) == bits(expected_step(cpu, cpu.ids.tolist(), [2, 0, 4])[1])
    assert case.slots_bytes() == cpu.slots_bytes()


@pytest.mark.parametrize("policy", ["on_commit", "on_next_verify", "lazy"])
def test_a_graph_is_replayed_with_other_slots(policy):
    """One captured step: slots, null rows, counts and inputs change between replays; the CPU does the same steps."""
    more = {"fold_policy": policy, "ring_rows": 4 if policy == "on_commit" else 9, "max_window": 4}
    case, cpu = Case(SHAPE, "cuda", **more), Case(SHAPE, "cpu", **more)
    others = [each.pool.acquire(3) for each in (case, cpu)]
    handles = [[*each.slots, *rest] for each, rest in zip((case, cpu), others)]
    assert handles[0] == handles[1]
    case.ids.fill_(-1)
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):  # kernels are loaded by their first call
        plain_step(case, case.ids, case.accept)
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = plain_step(case, case.ids, case.accept)
    assert case.pool.export(handles[0][0]) == cpu.pool.export(handles[1][0])  # capturing does nothing
    a, b, c, d, e, f = (slot.id for slot in handles[0])
    for step, (ids, accept) in enumerate([((a, b, c), (2, 0, 4)), ((d, -1, a), (1, 3, 3)), ((f, e, -1), (4, 4, 0)),
                                          ((c, a, d), (0, 2, 1)), ((-1, -1, -1), (1, 1, 1)), ((b, f, e), (3, 3, 3))]):
        inputs = make_window(SHAPE, seed=10 + step).arrays
        for name, value in inputs.items():
            case.arrays[name].copy_(tensor(value, "cuda"))
            cpu.arrays[name].copy_(tensor(value, "cpu"))
        case.ids.copy_(ints(*ids))
        case.accept.copy_(ints(*accept))
        graph.replay()
        wanted = expected_step(cpu, ids, accept)
        assert [bits(out) for out in outs] == [bits(out) for out in wanted], step
        assert [case.pool.export(slot) for slot in handles[0]] == [cpu.pool.export(slot) for slot in handles[1]], step


def test_calls_do_not_wait():
    case = Case(SHAPE, "cuda")
    plain_step(case, case.ids, case.accept)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    done = torch.cuda.Event()
    plain_step(case, case.ids, case.accept)
    done.record()
    assert not done.query()
    torch.cuda.synchronize()
    assert done.query()


def test_lives_of_slots_on_the_device():
    """Acquire, copy in a cycle, materialise, reset, release, export and import: a CUDA pool beside one of the CPU."""
    pools = [Case(SHAPE, device) for device in ("cuda", "cpu")]
    for case in pools:
        plain_step(case, case.ids, case.accept)
        case.pool.verify(0, **case.arrays, slots=case.ids, mixer=case.mixer)
        case.pool.verify(1, **case.arrays, slots=case.ids, mixer=case.mixer)
        a, b, c = case.slots
        extra = case.pool.acquire(2)
        case.pool.materialise(a, 3, extra[0])
        case.pool.copy([a, b, c, a], [b, c, a, extra[1]])
        case.pool.reset(b)
        case.pool.release(c)
        case.kept = [a, b, *extra]
        with pytest.raises(ringfold.InvalidArgumentError, match="^slot: expected an acquired slot"):
            case.pool.export(c)
        with pytest.raises(ringfold.OutOfMemoryError, match="^slots: expected 9 free slots"):
            case.pool.acquire(9)
    cuda, cpu = pools
    assert cuda.kept == cpu.kept and cuda.pool.free_slots == cpu.pool.free_slots == 4
    exported = [[case.pool.export(slot) for slot in case.kept] for case in pools]
    assert exported[0] == exported[1] and len(set(exported[0])) == 4
    for source, target in ((0, cpu), (1, cuda)):  # between devices
        slot = target.pool.acquire()
        target.pool.import_(exported[source][0], slot)
        assert target.pool.export(slot) == exported[0][0]


def test_views_are_the_memory_of_the_device():
    case = Case(SHAPE, "cuda")
    for view in (case.pool.state(), case.pool.pending(), case.pool.generations(), *case.pool.ring(1)[:4]):
        assert view.is_cuda and view.device.index == torch.cuda.current_device()
    assert case.pool.state().dtype == DTYPES[SHAPE.state] and case.pool.ring().k.dtype == DTYPES[SHAPE.act]
    assert case.pool.state(1).data_ptr() == case.pool.state().data_ptr() + case.pool.state(0).nbytes
    case.pool.state(1)[case.ids.long()] = 3.0
    data = case.pool.export(case.slots[0])
    case.pool.state(1)[case.ids.long()] = 4.0
    assert data != case.pool.export(case.slots[0])
    raw = ringfold.Pool(slots=2, H=1, HV=1, K=64, V=64, ring_rows=2, device="cuda", views="dlpack")
    assert torch.from_dlpack(raw.state()).is_cuda
    with pytest.raises(ringfold.InvalidArgumentError, match="^views: expected torch or dlpack for a CUDA pool"):
        ringfold.Pool(slots=2, H=1, HV=1, K=64, V=64, ring_rows=2, device="cuda", views="numpy")


def test_memory_that_the_device_does_not_have():
    with pytest.raises(ringfold.OutOfMemoryError) as caught:
        ringfold.Pool(slots=1 << 20, layers=64, H=16, HV=32, K=128, V=128, ring_rows=4, device="cuda")
    assert isinstance(caught.value, MemoryError)
    torch.zeros(1, device="cuda").add_(1).item()  # the device works on


def test_verdicts_on_rows():
    case = Case(SHAPE, "cuda")
    status, before = ints(77, 77, 77), case.slots_bytes()
    rows = ints(case.slots[0].id, 99, -1)
    out = torch.full_like(case.arrays["v"], 7)
    case.pool.verify(0, **case.arrays, slots=rows, mixer=case.mixer, out=out, row_status=status)
    assert status.tolist() == [ringfold.RowStatus.done, ringfold.RowStatus.slot_out_of_range,
                               ringfold.RowStatus.null_row]
    assert out[0].any() and not out[1:].any()
    case.pool.verify(0, **case.arrays, slots=rows, mixer=case.mixer)  # no row_status: passed over, no error
    case.pool.verify(1, **case.arrays, slots=rows, mixer=case.mixer)
    case.pool.commit(ints(5, 1, 1), rows, row_status=status)
    assert status[0] == ringfold.RowStatus.accept_out_of_range
    assert case.slots_bytes()[1:] == before[1:] and not case.pool.state()[:, case.slots[0].id].any()
    stale = case.slots[0]
    case.pool.release(stale)
    case.pool.acquire()
    case.pool.commit([1, 1, 1], [stale, *case.slots[1:]], row_status=status)
    assert status.tolist() == [ringfold.RowStatus.stale_generation, ringfold.RowStatus.no_pending_window,
                               ringfold.RowStatus.no_pending_window]


def test_arguments_on_several_devices_are_refused():
    case = Case(SHAPE, "cuda")
    for name in case.arrays:
        with pytest.raises(ringfold.InvalidArgumentError, match="expected memory of device"):
            case.pool.verify(0, **{**case.arrays, name: case.arrays[name].cpu()}, slots=case.ids, mixer=case.mixer,
                             out=torch.empty_like(case.arrays["v"]))
    with pytest.raises(ringfold.InvalidArgumentError, match="slot_ids: expected memory of device"):
        case.pool.verify(0, **case.arrays, slots=case.ids.cpu(), mixer=case.mixer)
    with pytest.raises(ringfold.NotFoundError, match="^impl: "):
        case.pool.verify(0, **case.arrays, slots=case.ids, mixer=case.mixer, impl="cuda.nosuch")
    with pytest.raises(ringfold.UnsupportedError):
        case.pool.verify(0, **case.arrays, slots=case.ids, mixer=case.mixer, impl="reference")


@pytest.mark.parametrize("impl", ringfold.implementations("cuda"))
@pytest.mark.parametrize("gate", GATES)
def test_every_implementation(gate, impl):
    """exact ones: the bits of the CPU. fast: the ring of the CPU, and outputs near it (docs/numerics.md has the bound)."""
    shape = Shape(gate=gate, act="bf16", K=64, V=64)
    case, cpu = Case(shape, "cuda"), Case(shape, "cpu")
    numerics = "fast" if impl == "cuda.fast" else "exact"
    out = case.pool.verify(1, **case.arrays, slots=case.ids, mixer=case.mixer, impl=impl, numerics=numerics)
    expected = cpu.pool.verify(1, **cpu.arrays, slots=cpu.ids, mixer=cpu.mixer)
    if numerics == "exact":
        assert bits(out) == bits(expected)
    else:
        assert torch.allclose(out.cpu().float(), expected.float(), rtol=2 ** -6, atol=2 ** -6) and out.any()
    for mine, theirs in zip(case.pool.ring(1)[:4], cpu.pool.ring(1)[:4]):
        assert bits(mine) == bits(theirs)


def test_gated_norm_and_conv():
    random = np.random.default_rng(3)
    x, z = (random.standard_normal((5, 3, 64), dtype=np.float32) for _ in range(2))
    weight = random.standard_normal(64, dtype=np.float32)
    out = ringfold.gated_norm(*(tensor(value, "cuda") for value in (x, z, weight)))
    assert bits(out) == ringfold.gated_norm(x, z, weight).tobytes()
    x, taps = random.standard_normal((2, 4, 24), dtype=np.float32), random.standard_normal((24, 4), dtype=np.float32)
    state, ring = random.standard_normal((3, 24, 3), dtype=np.float32), np.zeros((3, 4, 24), np.float32)
    on_gpu = {"conv_state": tensor(state, "cuda"), "conv_ring": tensor(ring, "cuda")}
    out = ringfold.conv_verify(tensor(x, "cuda"), tensor(taps, "cuda"), [2, 0], **on_gpu)
    assert bits(out) == ringfold.conv_verify(x, taps, [2, 0], conv_state=state, conv_ring=ring).tobytes()
    ringfold.conv_commit([2, 0], [3, 1], **on_gpu)
    ringfold.conv_commit([2, 0], [3, 1], conv_state=state, conv_ring=ring)
    assert bits(on_gpu["conv_state"]) == state.tobytes() and bits(on_gpu["conv_ring"]) == ring.tobytes()


def free_call(shape, convert):
    """A verify by the free function, of arrays that `convert` makes of NumPy's (float32 alone)."""
    window = make_window(shape)
    arrays = {name: convert(value) for name, value in window.arrays.items()}
    mixer = ringfold.Mixer(**{**vars(window.mixer), "A_log": convert(window.mixer.A_log),
                              "dt_bias": convert(window.mixer.dt_bias)})
    return arrays, mixer


def test_arrays_of_cupy():
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    shape = Shape(K=64, V=64)
    window, state = make_window(shape), np.random.default_rng(4).standard_normal((4, 4, 64, 64), dtype=np.float32)
    arrays, mixer = free_call(shape, cupy.asarray)
    expected = ringfold.verify(**window.arrays, slot_ids=[0, 3, 1], mixer=window.mixer, state=state)
    stream = cupy.cuda.Stream(non_blocking=True)
    held = cupy.asarray(state)
    cupy.cuda.Device().synchronize()
    with stream:  # its current stream is where the call runs
        out = ringfold.verify(**arrays, slot_ids=[0, 3, 1], mixer=mixer, state=held)
    stream.synchronize()
    assert isinstance(out, cupy.ndarray) and cupy.asnumpy(out).tobytes() == expected.tobytes()
    ringfold.decode(**arrays, slot_ids=[0, 3, 1], mixer=mixer, state=held)
    ringfold.decode(**window.arrays, slot_ids=[0, 3, 1], mixer=window.mixer, state=state)
    assert cupy.asnumpy(held).tobytes() == state.tobytes()


def jax_has_cuda(jax):
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def test_arrays_of_jax():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    if not jax_has_cuda(jax):
        pytest.skip("this jax has no CUDA")
    shape = Shape(K=64, V=64)
    window, state = make_window(shape), np.random.default_rng(4).standard_normal((4, 4, 64, 64), dtype=np.float32)
    arrays, mixer = free_call(shape, jax.numpy.asarray)
    jax.block_until_ready([*arrays.values(), mixer.A_log, mixer.dt_bias])
    held, out = tensor(state, "cuda"), torch.empty(3, 4, 4, 64, device="cuda")
    ids = ints(0, 3, 1)
    torch.cuda.synchronize()
    assert ringfold.verify(**arrays, slot_ids=ids, mixer=mixer, state=held, out=out) is out
    torch.cuda.synchronize()
    assert bits(out) == ringfold.verify(**window.arrays, slot_ids=[0, 3, 1], mixer=window.mixer, state=state).tobytes()
    with pytest.raises(ringfold.InvalidArgumentError, match="^out: expected an array"):
        ringfold.verify(**arrays, slot_ids=ids, mixer=mixer, state=held)


def test_costs_of_this_gpu():
    here = ringfold.choose(H=16, HV=32, K=128, V=128, rows=64, device="cuda")
    assert here.verify_impl.startswith("cuda.") and here.us > 0
