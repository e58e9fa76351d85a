"""torch: tensors are taken as they are, and the operators say what they change, under torch.compile too."""

import gc
import weakref

import numpy as np
import pytest
from support import GATES, Shape, make_window, same

import ringfold

torch = pytest.importorskip("torch", reason="torch is not installed")
import ringfold.torch as rt  # noqa: E402

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
DEVICES = ["cpu"]
if ringfold.implementations("cuda") and torch.cuda.is_available():
    DEVICES.append("cuda")


def tensor(array, device):
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).to(device)
    return torch.from_numpy(array.copy()).to(device)


def bits(value):
    value = value.detach().contiguous().cpu()
    return value.view(torch.int16 if value.element_size() == 2 else torch.int32).numpy().tobytes()


class Case:
    """Two layers of a pool, and inputs, as tensors of a device."""

    def __init__(self, shape, device, **more):
        self.shape = shape
        window = make_window(shape)
        self.arrays = {name: tensor(array, device) for name, array in window.arrays.items()}
        parameters = {name: tensor(getattr(window.mixer, name), device) for name in ("A_log", "dt_bias")}
        self.mixer = ringfold.Mixer(**{**vars(window.mixer), **parameters})
        self.window = window
        options = {"ring_rows": shape.T, **more}
        self.pool = ringfold.Pool(slots=8, layers=2, H=shape.H, HV=shape.HV, K=shape.K, V=shape.V, kind=shape.kind,
                                  act_dtype=DTYPES[shape.act], state_dtype=DTYPES[shape.state], device=device,
                                  views="torch", **options)
        self.slots = self.pool.acquire(shape.B)
        self.ids = torch.tensor([slot.id for slot in self.slots], dtype=torch.int32, device=device)
        self.accept = torch.tensor([2, 0, 4], dtype=torch.int32, device=device)
        self.layers = [rt.bind(self.pool, layer) for layer in range(2)]
        self.whole = rt.bind(self.pool)

    def step(self, q, k, v, a, b, ids, accept):
        """Both layers, the second on the outputs of the first; the operators."""
        out = v
        for layer in self.layers:
            out = rt.verify(q, k, out, a, b, ids, mixer=self.mixer, **layer) * 2
        rt.commit(self.whole, accept, ids)
        return out

    def run(self, function):
        return function(*self.arrays.values(), self.ids, self.accept)

    def slots_bytes(self):
        return [self.pool.export(slot) for slot in self.slots]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("act, state", [("f32", "f32"), ("bf16", "f32"), ("bf16", "bf16"), ("f16", "f16")])
def test_tensors_have_the_bits_of_numpy(device, gate, act, state):
    shape = Shape(gate=gate, act=act, state=state, K=64, V=64)
    case = Case(shape, device)
    other = ringfold.Pool(slots=8, layers=2, H=shape.H, HV=shape.HV, K=64, V=64, kind=shape.kind, act_dtype=act,
                          state_dtype=state, ring_rows=shape.T)
    theirs = other.acquire(3)
    for _ in range(2):
        out = case.pool.verify(1, **case.arrays, slots=case.slots, mixer=case.mixer)
        case.pool.verify(0, **case.arrays, slots=case.ids, mixer=case.mixer)
        assert isinstance(out, torch.Tensor) and out.dtype == DTYPES[act] and out.device.type == device
        expected = [other.verify(layer, **case.window.arrays, slots=theirs, mixer=case.window.mixer)
                    for layer in (1, 0)]
        assert bits(out) == expected[0].tobytes()
        case.pool.commit(case.accept, case.ids)
        other.commit([2, 0, 4], theirs)
    assert bits(case.pool.state()) == other.state().tobytes()
    assert case.slots_bytes() == [other.export(slot) for slot in theirs]


def test_tensors_are_not_copied():
    from ringfold import _ringfold

    for dtype in DTYPES.values():
        values = torch.zeros(3, 4, 8, dtype=dtype)
        for view in (values, values[1:, :, 3:], values.permute(2, 0, 1), torch.nn.Parameter(values)):
            address, _, device, shape, strides = _ringfold.describe(view, True)
            assert (address, device, shape, strides) == (view.data_ptr(), "cpu", tuple(view.shape), view.stride())
    out = torch.zeros(3, 4, 4, 24)
    case = Case(Shape(), "cpu")
    assert case.pool.verify(0, **case.arrays, slots=case.ids, mixer=case.mixer, out=out) is out and out.any()


def test_views_share_one_storage_and_outlive_the_pool():
    case = Case(Shape(), "cpu")
    pool = case.pool
    assert pool.state(0).untyped_storage().data_ptr() == pool.state(1).untyped_storage().data_ptr()
    assert pool.state(1).data_ptr() == pool.state().data_ptr() + pool.state(0).nbytes
    memory, view = weakref.ref(pool._native), pool.state(1)
    view.fill_(3)
    del pool, case
    gc.collect()
    assert memory() is not None and (view == 3).all()
    del view
    gc.collect()
    assert memory() is None


@pytest.mark.parametrize("device", DEVICES)
def test_current_stream(device):
    from ringfold._arrays import stream_handle

    values = torch.zeros(3, device=device)
    if device == "cpu":
        assert stream_handle(None, values) == 0
        assert stream_handle(5, values) == 5
        return
    assert stream_handle(None, values) == torch.cuda.current_stream().cuda_stream
    beside = torch.cuda.Stream()
    with torch.cuda.stream(beside):
        assert stream_handle(None, values) == beside.cuda_stream != 0
    assert stream_handle(beside, values) == beside.cuda_stream


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("policy", ["on_commit", "on_next_verify", "lazy"])
def test_operators_are_the_plain_calls(device, policy):
    more = {"fold_policy": policy, "ring_rows": 4 if policy == "on_commit" else 9, "max_window": 4}
    plain, case = Case(Shape(act="bf16"), device, **more), Case(Shape(act="bf16"), device, **more)
    for _ in range(3):
        out = plain.arrays["v"]
        for layer in range(2):
            out = plain.pool.verify(layer, **{**plain.arrays, "v": out}, slots=plain.slots, mixer=plain.mixer) * 2
        plain.pool.commit(plain.accept, plain.slots)
        assert bits(case.run(case.step)) == bits(out)
    token = {name: value[:, :1].contiguous() for name, value in case.arrays.items()}
    left = case.pool.decode(1, **token, slots=case.slots, mixer=case.mixer)
    right = rt.decode(**token, slot_ids=plain.ids, mixer=plain.mixer, **plain.layers[1])
    assert bits(left) == bits(right)
    assert case.slots_bytes() == plain.slots_bytes()
    wide = rt.verify(**case.arrays, slot_ids=case.ids, mixer=case.mixer, **case.layers[0], float_out=True)
    assert wide.dtype == torch.float32


@pytest.mark.parametrize("device", DEVICES)
def test_fold_as_an_operator(device):
    case = Case(Shape(), device)
    bound = case.layers[0]
    rt.verify(**case.arrays, slot_ids=case.ids, mixer=case.mixer, **bound)
    expected = bound["state"].clone()
    rt.fold(case.ids, case.accept, state=expected, ring=bound["ring"])
    ringfold.fold(case.ids, case.accept, state=bound["state"], ring=bound["ring"])
    assert bits(expected) == bits(bound["state"]) and expected.any()


@pytest.mark.parametrize("device", DEVICES)
def test_the_raw_gate_in_the_ring(device):
    case = Case(Shape(gate="kda_safe", act="bf16"), device, ring_a="bf16")
    bound = case.layers[0]
    rt.verify(**case.arrays, slot_ids=case.ids, mixer=case.mixer, **bound)
    assert bound["ring"].g is None and bits(bound["ring"].a[case.ids[0], :4]) == bits(case.arrays["a"][0])
    expected = bound["state"].clone()
    rt.fold(case.ids, case.accept, state=expected, ring=bound["ring"], mixer=case.mixer)
    ringfold.fold(case.ids, case.accept, state=bound["state"], ring=bound["ring"], mixer=case.mixer)
    assert bits(expected) == bits(bound["state"]) and expected.any()


def flat(case, layer=0):
    """Arguments of torch.ops.ringfold.verify."""
    m, bound = case.mixer, case.layers[layer]
    history = bound["history"] or ringfold.History(None, None, None, "on_commit", 0)
    return [*case.arrays.values(), case.ids, None, 0, m.A_log, m.dt_bias, m.kind, m.softplus_beta,
            m.softplus_threshold, m.lower_bound, m.scale, m.qk_l2norm, bound["state"], *bound["ring"], bound["pending"],
            *history]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("policy", ["on_commit", "lazy"])
def test_opcheck(device, policy):
    """torch's own checks: declared mutations, fake implementation, functionalization."""
    more = {"fold_policy": policy, "ring_rows": 4 if policy == "on_commit" else 9, "max_window": 4}
    case = Case(Shape(act="bf16"), device, **more)
    status = torch.zeros(3, dtype=torch.int32, device=device)
    torch.library.opcheck(torch.ops.ringfold.verify.default,
                          (*flat(case), None, status, False, "exact", "per_commit", None))
    torch.library.opcheck(torch.ops.ringfold.decode.default,
                          (*flat(case), status, True, "exact", "per_commit", None))
    bound = case.layers[0]
    history = bound["history"] or ringfold.History(None, None, None, "on_commit", 0)
    torch.library.opcheck(torch.ops.ringfold.fold.default,
                          (case.ids, case.accept, bound["state"], *bound["ring"], None,
                           None if policy == "on_commit" else bound["pending"], *history, None, None, status, True,
                           None, None, "gdn", 1.0, 20.0, None, "per_commit", None))
    # commit works on its pool alone, so the checks that hand over copies do not apply; test_compiled has its fake.
    torch.library.opcheck(torch.ops.ringfold.commit.default,
                          (*case.whole, case.ids, case.accept, None, None, None, status, None),
                          test_utils=("test_autograd_registration",))


@pytest.mark.parametrize("device", DEVICES)
def test_compiled(device):
    """A whole step as one graph, compiled: the bits of the eager step, in outputs and in the pool."""
    eager, case = Case(Shape(act="bf16"), device), Case(Shape(act="bf16"), device)
    compiled = torch.compile(case.step, fullgraph=True)
    for _ in range(2):
        assert bits(case.run(compiled)) == bits(eager.run(eager.step))
        assert case.slots_bytes() == eager.slots_bytes()


def test_copies_of_a_pool_are_refused_by_commit():
    case = Case(Shape(), "cpu")
    rt.verify(**case.arrays, slot_ids=case.ids, mixer=case.mixer, **case.layers[0])
    copies = case.whole._replace(written=[value.clone() for value in case.whole.written])
    with pytest.raises(ringfold.InvalidArgumentError, match="^pool: expected its own tensors, found copies"):
        rt.commit(copies, case.accept, case.ids)
    number = case.whole.number
    whole = rt.bind(case.pool)
    assert whole.number == number
    ids, accept = case.ids, case.accept
    del case
    gc.collect()
    with pytest.raises(ringfold.InvalidArgumentError, match="^pool: expected one that is still there"):
        rt.commit(whole, accept, ids)
    numpy_pool = ringfold.Pool(slots=1, H=1, HV=1, K=8, V=8, ring_rows=1)
    with pytest.raises(ringfold.InvalidArgumentError, match="views='torch'"):
        rt.bind(numpy_pool)


def test_parameters_are_taken():
    case = Case(Shape(), "cpu")
    mixer = ringfold.Mixer(**{**vars(case.mixer), "A_log": torch.nn.Parameter(case.mixer.A_log)})
    out = case.pool.verify(0, **case.arrays, slots=case.ids, mixer=mixer)
    assert bits(out) == bits(case.pool.verify(0, **case.arrays, slots=case.ids, mixer=case.mixer))
    assert not out.requires_grad


@pytest.mark.skipif("cuda" not in DEVICES, reason="no CUDA device")
def test_graph_replays():
    case = Case(Shape(act="bf16", K=64, V=64), "cuda")
    case.run(case.step)
    for slot in case.slots:
        case.pool.reset(slot)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = case.run(case.step)
    eager = Case(Shape(act="bf16", K=64, V=64), "cuda")
    for accept in ([1, 2, 3], [4, 0, 1]):
        for each in (case, eager):
            each.accept.copy_(torch.tensor(accept))
        graph.replay()
        assert bits(out) == bits(eager.run(eager.step))
        assert case.slots_bytes() == eager.slots_bytes()


def test_numpy_and_torch_pools_are_one_thing():
    case = Case(Shape(), "cpu")
    slots = case.pool.acquire(2)
    other = ringfold.Pool(slots=8, layers=2, H=2, HV=4, K=32, V=24, ring_rows=4)
    theirs = other.acquire()
    case.pool.state()[:, slots[0].id] = 1
    other.import_(case.pool.export(slots[0]), theirs)
    assert (other.state()[:, theirs.id] == 1).all()
    assert same(other.state()[:, theirs.id].copy(), case.pool.state()[:, slots[0].id].numpy().copy())
