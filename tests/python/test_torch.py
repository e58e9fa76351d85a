"""torch: tensors are taken as they are, and the operators say what they change, under torch.compile too."""

import gc
import weakref

import pytest
from support import GATES, Shape, same

import ringfold

torch = pytest.importorskip("torch", reason="torch is not installed")
import ringfold.torch as rt  # noqa: E402
from torch_case import DEVICES, DTYPES, Case, LayerCase, bits  # noqa: E402


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
                          (*flat(case), None, status, False, "exact", "per_commit", *(None,) * 4))
    torch.library.opcheck(torch.ops.ringfold.decode.default,
                          (*flat(case), status, True, "exact", "per_commit", None))
    bound = case.layers[0]
    history = bound["history"] or ringfold.History(None, None, None, "on_commit", 0)
    torch.library.opcheck(torch.ops.ringfold.fold.default,
                          (case.ids, case.accept, bound["state"], *bound["ring"], None,
                           None if policy == "on_commit" else bound["pending"], *history, None, None, status, True,
                           None, None, "gdn", 1.0, 20.0, None, "per_commit", *(None,) * 4))
    # commit works on its pool alone, so the checks that hand over copies do not apply; test_compiled has its fake.
    torch.library.opcheck(torch.ops.ringfold.commit.default,
                          (*case.whole, case.ids, case.accept, None, None, None, status, None, None),
                          test_utils=("test_autograd_registration",))


@pytest.mark.parametrize("rings", [0, 4])
@pytest.mark.parametrize("device", DEVICES[-1:])  # where there is a GPU, code for the CPU is compiled elsewhere
def test_compiled(device, rings):
    """A whole step as one graph, compiled: the bits of the eager step, in outputs and in the pool."""
    eager, case = (Case(Shape(act="bf16"), device, rings=rings) for _ in range(2))
    compiled = torch.compile(case.step, fullgraph=True)
    for step in range(2):
        for each in (eager, case):
            each.use_rings(step)
        assert bits(case.run(compiled)) == bits(eager.run(eager.step))
        assert case.slots_bytes() == eager.slots_bytes()
        assert case.memory() == eager.memory()


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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gate, more", [
    ("gdn", {"ring_rows": 4}), ("gdn", {"ring_rows": 9, "fold_policy": "lazy", "max_window": 4}),
    ("kda_safe", {"ring_rows": 4, "ring_a": "bf16"})], ids=["on_commit", "lazy", "raw_gate"])
def test_layers_as_operators(device, gate, more):
    """The operators are the plain calls, and these are the calls of the CPU."""
    shape = Shape(gate=gate, act="bf16", K=64, V=64)
    plain, case, cpu = (LayerCase(shape, where, **more) for where in (device, device, "cpu"))
    for each in (plain, case, cpu):
        if "ring_a" in more:
            each.pool.set_mixers([each.layer["mixer"]] * 2)
    for _ in range(3):
        for each in (plain, cpu):
            each.outs = [each.pool.verify_layer(i, **each.layer, slots=each.slots) for i in range(2)]
            each.pool.commit(each.accept, each.slots)
            each.outs.append(each.pool.decode_layer(0, **each.layer, slots=each.slots))
        outs = case.run_whole(case.whole_step)
        assert [bits(out) for out in outs] == [bits(out) for out in plain.outs] == [bits(out) for out in cpu.outs]
    assert case.slots_bytes() == plain.slots_bytes() == cpu.slots_bytes()
    wide = rt.verify_layer(**case.layer, slot_ids=case.ids, **case.bound[0], float_out=True)
    assert wide.dtype == torch.float32 and wide.shape == case.layer["z"].shape and wide.any()
    (H, K), (HV, V) = (2, 64), (4, 64)
    q, k, v = (part.unflatten(-1, heads) for part, heads in
               zip(case.layer["qkv"].split([H * K, H * K, HV * V], dim=-1), [(H, K), (H, K), (HV, V)]))
    views = rt.verify_layer(**{**case.layer, "qkv": (q, k, v)}, slot_ids=case.ids, **case.bound[0], float_out=True)
    assert bits(views) == bits(wide)


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck_of_layers(device):
    case = LayerCase(Shape(act="bf16"), device)
    m, x = case.mixer, case.layer
    status = torch.zeros(3, dtype=torch.int32, device=device)
    history = (None, None, None, "on_commit", 0)
    inputs = ([x["qkv"]], x["a"], x["b"], case.ids, None, 0, m.A_log, m.dt_bias, m.kind, m.softplus_beta,
              m.softplus_threshold, m.lower_bound, m.scale, m.qk_l2norm, x["conv_weight"], x["conv_bias"], True, x["z"],
              x["norm_weight"], "silu", 1e-6, "f32")
    b = case.bound[0]
    torch.library.opcheck(torch.ops.ringfold.verify_layer.default,
                          (*inputs, b["state"], *b["ring"], b["pending"], b["conv_state"], b["conv_ring"],
                           b["conv_pending"], *history, status, False, "exact", "per_commit", *(None,) * 6))
    torch.library.opcheck(torch.ops.ringfold.decode_layer.default,
                          (*inputs, b["state"], *(None,) * 6, b["pending"], b["conv_state"], b["conv_pending"],
                           *history, status, True, "exact", "per_commit", None))


@pytest.mark.parametrize("rings", [0, 4])
@pytest.mark.parametrize("device", DEVICES[-1:])  # where there is a GPU, code for the CPU is compiled elsewhere
def test_layers_compiled(device, rings):
    eager, case = (LayerCase(Shape(act="bf16"), device, rings=rings) for _ in range(2))
    compiled = torch.compile(case.whole_step, fullgraph=True)
    for step in range(2):
        for each in (eager, case):
            each.use_rings(step)
        outs = case.run_whole(compiled)
        assert [bits(out) for out in outs] == [bits(out) for out in eager.run_whole(eager.whole_step)]
        assert case.slots_bytes() == eager.slots_bytes()
        assert case.memory() == eager.memory()


def test_numpy_and_torch_pools_are_one_thing():
    case = Case(Shape(), "cpu")
    slots = case.pool.acquire(2)
    other = ringfold.Pool(slots=8, layers=2, H=2, HV=4, K=32, V=24, ring_rows=4)
    theirs = other.acquire()
    case.pool.state()[:, slots[0].id] = 1
    other.import_(case.pool.export(slots[0]), theirs)
    assert (other.state()[:, theirs.id] == 1).all()
    assert same(other.state()[:, theirs.id].copy(), case.pool.state()[:, slots[0].id].numpy().copy())
