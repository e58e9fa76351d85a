"""The pool: lives of slots, steps, transfers, views, and who keeps whom alive."""

import gc
import itertools
import weakref

import numpy as np
import pytest
from support import DTYPES, GATES, Shape, make_pool, make_window, noise, same

import ringfold

POLICIES = ("on_commit", "on_next_verify", "lazy")
IDS = itertools.count()


def step_windows(shape, steps):
    return [make_window(shape, seed=seed) for seed in range(steps)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("act, state", [("f32", "f32"), ("bf16", "bf16"), ("f16", "f32")])
def test_steps_with_drafts_are_plain_decoding(gate, act, state, policy):
    shape = Shape(gate=gate, act=act, state=state)
    pool = make_pool(shape, layers=2, fold_policy=policy, ring_rows=4 if policy == "on_commit" else 8, max_window=4,
                     state_rounding="per_token")
    drafted, plain = pool.acquire(3), pool.acquire(3)
    random = np.random.default_rng(2)
    for window in step_windows(shape, 5):
        accepted = random.integers(0, 5, 3).tolist()
        outs = [pool.verify(layer, **window.arrays, slots=drafted, mixer=window.mixer) for layer in range(2)]
        status = np.full(3, 77, np.int32)
        pool.commit(accepted, drafted, row_status=status)
        assert status.tolist() == [0, 0, 0]
        for r, layer in itertools.product(range(3), range(2)):
            for t in range(accepted[r]):
                token = {name: array[r:r + 1, t:t + 1] for name, array in window.arrays.items()}
                out = pool.decode(layer, **token, slots=[plain[r]], mixer=window.mixer)
                assert same(out[0, 0], outs[layer][r, t])
    pool.settle(drafted)
    states = pool.state()
    for left, right in zip(drafted, plain):
        assert states[:, left.id].any()
        assert same(states[:, left.id].copy(), states[:, right.id].copy())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("gate, act", [("kda", "bf16"), ("kda_safe", "f16"), ("kda_safe", "f32")])
def test_the_raw_gate_in_the_ring_changes_no_bit(gate, act, policy):
    shape = Shape(gate=gate, act=act)
    options = {"layers": 2, "fold_policy": policy, "ring_rows": 4 if policy == "on_commit" else 8, "max_window": 4}
    pool, other = make_pool(shape, ring_a=DTYPES[act], **options), make_pool(shape, **options)
    assert pool.config.ring_a == act and other.config.ring_a is None
    assert pool.ring().g is None and pool.ring(1).a.dtype == DTYPES[act] and other.ring().a is None
    parameters = 2 * 4 * (32 + 1) * 4  # layers, HV, K + 1, bytes
    assert other.memory.ring - (pool.memory.ring - parameters) == 2 * 8 * options["ring_rows"] * 4 * 32 * (
        4 - np.dtype(DTYPES[act]).itemsize)
    assert ringfold.pool_bytes(**pool.config._asdict()) == pool.memory
    slots = [p.acquire(3) for p in (pool, other)]
    windows = step_windows(shape, 4)
    mixers = [windows[0].mixer, windows[1].mixer]
    with pytest.raises(ringfold.InvalidArgumentError, match="^mixers: expected set_mixers"):
        pool.commit([0, 0, 0], slots[0])
    with pytest.raises(ringfold.InvalidArgumentError, match="^mixers: expected 2"):
        pool.set_mixers(mixers[:1])
    with pytest.raises(ringfold.InvalidArgumentError, match="^mixers: expected a pool with ring_a"):
        other.set_mixers(mixers)
    pool.set_mixers(mixers)
    for step, window in enumerate(windows):
        for layer in range(2):
            # The pool's own mixer goes before the one that a call gives.
            out = pool.verify(layer, **window.arrays, slots=slots[0], mixer=windows[3].mixer)
            assert same(out, other.verify(layer, **window.arrays, slots=slots[1], mixer=mixers[layer]))
        for p, own in zip((pool, other), slots):
            p.commit([step, 4 - step, 2], own)
    for p, own in zip((pool, other), slots):
        p.settle(own)
    assert same(pool.state(), other.state()) and pool.state().any()


@pytest.mark.parametrize("gate", ("gdn", "kda_safe"))
def test_fewer_rings_than_slots(gate):
    shape = Shape(B=2, gate=gate)
    pool, other = make_pool(shape, layers=2, rings=2), make_pool(shape, layers=2)
    assert pool.config.rings == 2 and pool.memory.ring * 4 == other.memory.ring
    assert ringfold.pool_bytes(**pool.config._asdict()) == pool.memory
    assert pool.ring(0).k.shape[0] == 2 and pool.state(0).shape[0] == 8 and other.owners() is None
    slots = [p.acquire(8) for p in (pool, other)]
    for step, (pair, rings) in enumerate((((5, 2), [1, 0]), ((2, 7), [1, 0]), ((7, 5), [0, 1]))):
        window = make_window(shape, seed=step)
        mine, theirs = ([all_slots[i] for i in pair] for all_slots in slots)
        for layer in range(2):
            if step == 1:  # the function on the pool's arrays
                out = ringfold.verify(**window.arrays, slot_ids=[slot.id for slot in mine], mixer=window.mixer,
                                      ring_ids=rings, **pool.bind(layer))
            else:
                out = pool.verify(layer, **window.arrays, slots=mine, mixer=window.mixer, ring_ids=rings)
            assert same(out, other.verify(layer, **window.arrays, slots=theirs, mixer=window.mixer))
        assert pool.owners(1).slot_of_ring[rings[0]] == mine[0].id
        assert pool.owners(1).ring_of_slot[mine[1].id] == rings[1]
        pool.commit([3, 1], mine, ring_ids=np.array(rings, np.int32))
        other.commit([3, 1], theirs)
    assert same(pool.state(), other.state())

    status = np.full(2, 77, np.int32)
    for who, ring in ((0, 0), (1, 0), (3, 1)):
        pool.verify(0, **{name: array[:1] for name, array in window.arrays.items()}, slots=[slots[0][who]],
                    mixer=window.mixer, ring_ids=[ring])
        pool.verify(1, **{name: array[:1] for name, array in window.arrays.items()}, slots=[slots[0][who]],
                    mixer=window.mixer, ring_ids=[ring])
    pool.commit([1, 1], [slots[0][0], slots[0][3]], ring_ids=[0, 9], row_status=status)
    assert [ringfold.RowStatus(s).name for s in status] == ["window_not_in_ring", "ring_out_of_range"]
    with pytest.raises(ringfold.InvalidArgumentError, match="^ring_ids: expected i32"):
        pool.commit([1], [slots[0][1]])
    with pytest.raises(ringfold.InvalidArgumentError, match="^ring_ids: expected nothing"):
        other.commit([1], [slots[1][0]], ring_ids=[0])
    with pytest.raises(ringfold.InvalidArgumentError, match="row 0 is refused: duplicate_ring"):
        pool.verify(0, **window.arrays, slots=slots[0][:2], mixer=window.mixer, ring_ids=[1, 1])
    with pytest.raises(ringfold.InvalidArgumentError, match="^rings: expected 0 with fold policy lazy"):
        make_pool(shape, rings=2, fold_policy="lazy", ring_rows=8)


def test_config_and_bytes():
    pool = make_pool(Shape(act="bf16", state="f16"), layers=3, conv_channels=16)
    config = pool.config
    assert (config.layers, config.slots, config.K, config.V, config.max_window) == (3, 8, 32, 24, 4)
    assert (config.act_dtype, config.state_dtype, config.kind, config.device) == ("bf16", "f16", "gdn", "cpu")
    assert pool.memory.state == 3 * 8 * 4 * 24 * 32 * 2
    assert pool.memory.total == sum(pool.memory)
    assert ringfold.pool_bytes(**config._asdict()) == pool.memory
    assert "slots=8" in repr(pool)
    for given in ("f32", "float32", np.float32, np.dtype(np.float32)):
        assert make_pool(Shape(), state_dtype=given).config.state_dtype == "f32"


@pytest.mark.parametrize("changes", [{"slots": 0}, {"H": 3}, {"K": 300}, {"V": 0}, {"ring_rows": 33}, {"kind": "x"},
                                     {"state_dtype": "i32"}, {"act_dtype": np.float64},
                                     {"conv_width": 5, "conv_channels": 4}, {"fold_policy": "later"}, {"state_rounding": "x"},
                                     {"device": "tpu"}, {"views": "pandas"}, {"layers": "two"}, {"qk_l2norm": 3}, {"max_window": 9}])
def test_bad_configs(changes):
    good = {"slots": 2, "H": 2, "HV": 4, "K": 8, "V": 8, "ring_rows": 4}
    ringfold.Pool(**good)
    with pytest.raises(ringfold.InvalidArgumentError, match="expected .*found"):
        ringfold.Pool(**{**good, **changes})


def test_cuda_pools_need_a_device():
    if ringfold.implementations("cuda"):
        pytest.skip("there is a CUDA device")
    with pytest.raises(ringfold.UnsupportedError):
        make_pool(Shape(), device="cuda")
    with pytest.raises(ringfold.InvalidArgumentError, match="^views: expected torch or dlpack for a CUDA pool"):
        make_pool(Shape(), device="cuda", views="numpy")


def test_lives_of_slots():
    shape = Shape(B=1)
    pool, window = make_pool(shape, slots=3), make_window(shape)
    first = pool.acquire()
    assert isinstance(first, ringfold.Slot) and pool.free_slots == 2
    others = pool.acquire(2)
    assert len({first.id, *(slot.id for slot in others)}) == 3 and pool.acquire(0) == []
    for count in (None, 1, 10 ** 12):
        with pytest.raises(ringfold.OutOfMemoryError, match=f"^slots: expected {count or 1} free slots, found 0 of 3"):
            pool.acquire(count)
    with pytest.raises(ringfold.InvalidArgumentError, match="^count: expected 0 or more, found -1"):
        pool.acquire(-1)
    pool.verify(0, **window.arrays, slots=[first], mixer=window.mixer)
    pool.commit([4], [first])
    assert pool.state(0)[first.id].any()
    pool.reset(first)
    assert not pool.state(0)[first.id].any()
    pool.verify(0, **window.arrays, slots=[first], mixer=window.mixer)
    pool.release(first)
    assert pool.pending(0)[first.id] == ringfold.NOT_ACQUIRED
    again = pool.acquire()
    assert again.id == first.id and again.generation != first.generation
    assert pool.generations()[again.id] == again.generation
    for call in (pool.release, pool.reset, pool.export, pool.settle):
        with pytest.raises(ringfold.InvalidArgumentError, match="generation"):
            call(first)
    # A stale handle in a commit is a row that is refused.
    pool.verify(0, **window.arrays, slots=[again], mixer=window.mixer)
    status = np.zeros(1, np.int32)
    pool.commit([1], [first], row_status=status)
    assert status[0] == ringfold.RowStatus.stale_generation
    pool.commit([1], [again.id], generations=[first.generation], row_status=status)
    assert status[0] == ringfold.RowStatus.stale_generation
    with pytest.raises(ringfold.InvalidArgumentError, match="stale_generation"):
        pool.commit([1], [first])
    pool.commit([1], [again])
    with pytest.raises(ringfold.InvalidArgumentError, match="no_pending_window"):
        pool.commit([1], [again])
    pool.release([again, *others])
    assert pool.free_slots == 3
    for wrong in (again.id, [again.id], "slot", None):
        with pytest.raises(ringfold.InvalidArgumentError, match="^slots: expected a Slot"):
            pool.release(wrong)


def test_null_rows_and_row_arguments():
    shape = Shape()
    pool, window = make_pool(shape), make_window(shape)
    a, b = pool.acquire(2)
    out = pool.verify(0, **window.arrays, slots=[a, None, b], mixer=window.mixer)
    assert not out[1].any() and out[0].any() and out[2].any()
    status = np.full(3, 77, np.int32)
    pool.commit(np.array([2, 2, 2], np.int32), [a, None, b], row_status=status)
    assert status.tolist() == [0, ringfold.RowStatus.null_row, 0]
    ids = np.array([a.id, -1, b.id], np.int32)
    assert same(pool.verify(0, **window.arrays, slots=ids, mixer=window.mixer),
                pool.verify(0, **window.arrays, slots=ids.tolist(), mixer=window.mixer))
    with pytest.raises(ringfold.InvalidArgumentError, match="^slots: expected one Slot for each row"):
        pool.verify(0, **window.arrays, slots=a, mixer=window.mixer)
    for call in (lambda mixed: pool.verify(0, **window.arrays, slots=mixed, mixer=window.mixer),
                 lambda mixed: pool.commit([1, 1, 1], mixed)):
        with pytest.raises(ringfold.InvalidArgumentError, match="^slots: expected Slots and None, or int32 ids"):
            call([a, 1, b])
    for layer in (-1, 1):
        with pytest.raises(ringfold.InvalidArgumentError, match=r"^layer: expected 0 .. 0, found"):
            pool.verify(layer, **window.arrays, slots=[a, None, b], mixer=window.mixer)
        with pytest.raises(ringfold.InvalidArgumentError, match=r"^layer: expected 0 .. 0, found"):
            pool.state(layer)
    other = ringfold.Mixer(A_log=window.mixer.A_log, kind="kda")
    with pytest.raises(ringfold.InvalidArgumentError, match="^mixer: expected kind gdn and qk_l2norm true, as"):
        pool.verify(0, **window.arrays, slots=ids, mixer=other)


def test_tracking_copy_and_materialise():
    shape = Shape(B=2)
    pool, window = make_pool(shape, slots=9), make_window(shape)
    slots, marks, copies, plain = pool.acquire(2), pool.acquire(2), pool.acquire(2), pool.acquire(2)
    pool.verify(0, **window.arrays, slots=slots, mixer=window.mixer)
    pool.copy(slots, copies)  # with the pending window
    pool.materialise(slots[0], 3, plain[0])
    pool.commit([4, 2], slots, track_slots=[marks[0], None], track_steps=[2, -1])
    state = pool.state(0)
    assert same(state[marks[0].id], state[plain[0].id]) and state[plain[0].id].any()
    assert not state[marks[1].id].any()
    pool.commit([4, 2], copies)
    for left, right in zip(slots, copies):
        assert same(state[left.id], state[right.id])
    pool.copy(slots + copies[:1], [slots[1], slots[0], marks[1]])  # a cycle, and one more
    assert same(state[slots[0].id], state[copies[1].id])
    assert same(state[slots[1].id], state[copies[0].id]) and same(state[marks[1].id], state[copies[0].id])
    with pytest.raises(ringfold.InvalidArgumentError):
        pool.materialise(slots[0], 1, plain[0])  # nothing is pending
    with pytest.raises(ringfold.InvalidArgumentError):
        pool.copy(slots, plain[:1])


def test_export_and_import():
    shape = Shape(B=1, act="bf16")
    window = make_window(shape)
    first, second = make_pool(shape), make_pool(shape)
    slot, target = first.acquire(), second.acquire(2)[1]
    first.verify(0, **window.arrays, slots=[slot], mixer=window.mixer)
    data = first.export(slot)
    assert type(data) is bytes and len(data) > first.state(0)[slot.id].nbytes
    for container in (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        second.reset(target)
        second.import_(container, target)
        assert second.export(target) == data
        second.commit([2], [target])
    first.commit([2], [slot])
    assert same(first.state(0)[slot.id].copy(), second.state(0)[target.id].copy())
    before = second.export(target)
    for bad in (b"", data[:-1], data[:200] + bytes([data[200] ^ 1]) + data[201:], bytes(len(data))):
        with pytest.raises(ringfold.InvalidArgumentError, match="^bytes: expected"):
            second.import_(bad, target)
    with pytest.raises(TypeError):
        second.import_("text", target)
    assert second.export(target) == before


def test_conv_of_a_pool():
    shape, C = Shape(B=2), 24
    random = np.random.default_rng(4)
    pool, window = make_pool(shape, conv_channels=C), make_window(shape)
    x, weight = noise(random, "f32", 2, 4, C), noise(random, "f32", C, 4)
    drafted, plain = pool.acquire(2), pool.acquire(2)
    out = pool.conv_verify(0, x, weight, drafted)
    pool.verify(0, **window.arrays, slots=drafted, mixer=window.mixer)
    assert pool.conv_pending(0)[drafted[0].id] == 4 and not pool.conv_state(0).any()
    pool.commit([3, 1], drafted)
    for r, count in enumerate([3, 1]):
        for t in range(count):
            assert same(pool.conv_decode(0, x[r:r + 1, t:t + 1], weight, [plain[r]])[0, 0], out[r, t])
        assert same(pool.conv_state(0)[drafted[r].id], pool.conv_state(0)[plain[r].id])
    assert pool.conv_ring(0).shape == (8, 4, C)
    without = make_pool(shape)
    slot = without.acquire(2)
    assert without.conv_state() is None and without.conv_ring(0) is None and without.conv_pending() is None
    with pytest.raises(ringfold.InvalidArgumentError, match="^pool: expected one with a short conv"):
        without.conv_verify(0, x, weight, slot)


@pytest.mark.parametrize("act", ["f32", "bf16", "f16"])
def test_views_are_the_pools_memory(act):
    shape = Shape(gate="kda", act=act, state=act)
    pool = make_pool(shape, layers=2, fold_policy="lazy", ring_rows=8, conv_channels=6)
    assert pool.state().shape == (2, 8, 4, 24, 32) and pool.state().dtype == DTYPES[act]
    assert pool.ring().k.shape == (2, 8, 8, 2, 32) and pool.ring(1).v.shape == (8, 8, 4, 24)
    assert pool.ring(0).g.shape == (8, 8, 4, 32) and pool.ring(0).beta.dtype == np.float32
    assert pool.conv_state(1).shape == (8, 6, 3) and pool.pending().shape == (2, 8)
    history = pool.history(1)
    assert history.policy == "lazy" and history.max_window == 4 and history.live.shape == (8,)
    assert make_pool(shape).history() is None
    # Written through one view, seen through another, and by the pool.
    slot = pool.acquire()
    pool.state(1)[slot.id] = 1.5
    assert (pool.state()[1, slot.id] == 1.5).all() and not pool.state()[0].any()
    copy = pool.acquire()
    pool.copy(slot, copy)
    assert (pool.state(1)[copy.id] == 1.5).all()
    assert np.shares_memory(pool.state(0), pool.state())


def test_views_outlive_the_pool_and_the_pool_dies_with_them():
    for make_view in (lambda p: p.state(0), lambda p: p.ring().v, lambda p: p.pending(), lambda p: p.state()[0, 1:, 2]):
        pool = make_pool(Shape(), layers=2)
        slot = pool.acquire()
        pool.state()[...] = 3
        memory, own = weakref.ref(pool._native), weakref.ref(pool)
        view = make_view(pool)
        expected = view.copy()
        del pool
        assert own() is None, "no cycle keeps the pool"
        gc.collect()
        assert memory() is not None
        others = [make_pool(Shape(), layers=2) for _ in range(4)]  # would get the memory if it were free
        for other in others:
            other.state()[...] = 9
        assert same(view, expected)
        derived = view[..., :1]
        del view
        assert memory() is not None
        del derived
        gc.collect()
        assert memory() is None, "nothing keeps the memory"
        assert slot.id >= 0


def test_dlpack_views():
    pool = make_pool(Shape(), layers=2, views="dlpack")
    slot = pool.acquire()
    for view in (pool.state(1), pool.state()):
        array = np.from_dlpack(view)
        assert array.shape[-1] == 32
        array[...] = 2
    memory = weakref.ref(pool._native)
    pool.reset(slot)
    assert not np.from_dlpack(pool.state(1))[slot.id].any()
    del pool, view
    gc.collect()
    assert memory() is not None and (array[1 - slot.id] != 9).all()
    del array
    gc.collect()
    assert memory() is None


def test_many_pools_do_not_leak():
    alive = []
    for _ in range(20):
        pool = make_pool(Shape(), slots=2)
        pool.acquire(2)
        pool.state(), pool.ring(0), pool.bind(0), pool.history()
        with pytest.raises(ringfold.Error):
            pool.acquire()
        alive.append(weakref.ref(pool._native))
    del pool
    gc.collect()
    assert not any(reference() for reference in alive)


def test_the_module_function_commit():
    shape = Shape()
    pool, window = make_pool(shape), make_window(shape)
    slots = pool.acquire(3)
    pool.verify(0, **window.arrays, slots=slots, mixer=window.mixer)
    ringfold.commit(pool, [1, 2, 3], slots)
    assert (pool.pending(0)[[slot.id for slot in slots]] == ringfold.NO_WINDOW).all()
