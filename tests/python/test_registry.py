"""explain, info, check, threads: what the program prints, as objects."""

import json
import subprocess

import pytest
from support import cli, runs_others

import ringfold

SHAPE = {"H": 16, "HV": 32, "K": 128, "V": 128}


def program(*arguments):
    if cli() is None:
        pytest.skip("RINGFOLD_CLI is not set")
    return json.loads(subprocess.run([cli(), *arguments, "--json"], capture_output=True, text=True, check=True).stdout)


def test_explain():
    answer = ringfold.explain(**SHAPE, window=4, rows=32)
    assert answer.plan.impl == ringfold.implementations()[0]
    chosen = [c for c in answer.candidates if c.reason == "chosen"]
    assert [c.impl for c in chosen] == [answer.plan.impl] and chosen[0].serves
    assert answer.candidates[-1].impl == "reference" and all(c.reason for c in answer.candidates)
    assert answer.footprint.state_bytes == 32 * 128 * 128 * 4
    assert answer.error == "" and answer.plan.bytes_read > 32 * answer.footprint.state_bytes
    text = str(answer)
    for part in (*(c.impl for c in answer.candidates), "chosen", answer.plan_text, str(answer.footprint.step_lazy)):
        assert part in text
    assert ringfold.explain(**SHAPE, window=4, rows=32) == answer


def test_explain_is_what_the_program_says():
    for op, more in (("verify", {}), ("fold", {"fold_policy": "lazy"}), ("decode", {"state_dtype": "bf16"})):
        answer = ringfold.explain(**SHAPE, op=op, **more)
        options = [part for name, value in more.items()
                   for part in ({"fold_policy": "--policy", "state_dtype": "--state"}[name], value)]
        told = program("explain", "--op", op, "--shape", "16,32,128,128", *options)
        assert told["desc"] == answer.request
        # The program may have CUDA's candidates besides, and may have been built for other instruction sets.
        if set(ringfold.implementations()) <= set(program("info")["implementations"]):
            reasons = {c["impl"]: c["reason"] for c in told["candidates"]}
            assert {c.impl: reasons[c.impl] for c in answer.candidates if c.serves} == \
                {c.impl: c.reason for c in answer.candidates if c.serves}
            assert {name: getattr(answer.plan, name) for name in told["plan"]} == told["plan"]
        assert told["traffic_per_step"]["lazy"] == answer.footprint.step_lazy


def test_explain_without_an_answer():
    answer = ringfold.explain(**SHAPE, numerics="fast", fold_policy="lazy", ring_u=True)
    assert answer.plan is None and not any(c.serves for c in answer.candidates)
    assert "reference" in answer.error and "none: nothing serves this request" in str(answer)
    with pytest.raises(ringfold.NotFoundError):
        ringfold.explain(**SHAPE, impl="warp9")
    for bad in ({"op": "sing"}, {"kind": "x"}, {"device": "tpu"}, {"rows": "many"}, {"state_dtype": "f64"}):
        with pytest.raises(ringfold.InvalidArgumentError, match="expected .*found"):
            ringfold.explain(**{**SHAPE, **bad})
    forced = ringfold.explain(**SHAPE, impl="reference")
    assert forced.plan.impl == "reference"


def test_info_and_version():
    info = ringfold.info()
    assert info.version == ringfold.version == ringfold.__version__
    assert info.implementations == tuple(ringfold.implementations()) and info.implementations[-1] == "reference"
    assert info.threads == ringfold.num_threads()
    assert info.version in str(info) and "reference" in str(info)
    assert bool(info.cuda_implementations) <= info.cuda_built
    assert program("info")["version"] == ringfold.version
    with pytest.raises(ringfold.InvalidArgumentError, match="^device: expected cpu or cuda, found 'tpu'"):
        ringfold.implementations("tpu")


def test_explain_layers():
    for op in ("verify_layer", "decode_layer"):
        answer = ringfold.explain(**SHAPE, op=op, channels=2 * 16 * 128 + 32 * 128)
        assert answer.plan.impl == ringfold.implementations()[0] and op in answer.request


def test_step_costs_are_what_the_program_says():
    told = program("explain", "--shape", "16,32,128,128", "--rows", "64", "--layers", "8", "--numerics", "fast", "--accepted",
                   "2.7", "--machine", "h200")
    more = {**SHAPE, "rows": 64, "layers": 8, "numerics": "fast", "accepted_per_step": 2.7, "machine": "h200",
            "state_dtype": "f32", "act_dtype": "bf16"}
    costs, best = ringfold.step_costs(**more), ringfold.choose(**more)
    assert len(costs) > 30 and {cost.fold_policy for cost in costs} == {"on_commit", "on_next_verify", "lazy"}
    assert any(cost.ring_u and cost.numerics == "fast" for cost in costs)
    assert best in costs and best.us <= 1.01 * min(cost.us for cost in costs)
    text = json.dumps(told)
    for cost in (best, costs[0]):
        assert cost.verify_impl in text and str(cost.ring_bytes) in text


def test_choose():
    shape = {**SHAPE, "rows": 256, "numerics": "fast", "machine": "h200"}
    assert ringfold.machines()[0] == "h200" and "cpu" in ringfold.machines()
    costs = ringfold.step_costs(**shape)
    smallest = ringfold.choose(**shape, most_ring_bytes=costs[0].ring_bytes)
    assert smallest.fold_policy == "on_commit" and smallest.ring_rows == 4
    best = ringfold.choose(**shape)
    assert best.us < smallest.us and best.ring_bytes > smallest.ring_bytes
    assert ringfold.choose(**shape) == best  # pure
    here = ringfold.choose(**SHAPE)
    assert here.verify_impl == ringfold.implementations()[0]
    pool = ringfold.Pool(slots=1, **SHAPE, fold_policy=here.fold_policy, ring_rows=here.ring_rows, ring_u=here.ring_u,
                         max_window=4)
    assert pool.config.max_window == 4
    with pytest.raises(ringfold.NotFoundError, match="^machine: expected one of h200, .*found 'abacus'"):
        ringfold.choose(**{**shape, "machine": "abacus"})
    with pytest.raises(ringfold.UnsupportedError, match="^most_ring_bytes: expected at least"):
        ringfold.choose(**shape, most_ring_bytes=1)
    for call in (ringfold.choose, ringfold.step_costs):
        for name, value in {"accepted_per_step": 5, "layers": 0, "K": 300, "window": 33, "kind": "x", "rows": "many",
                            "machine": 3}.items():
            with pytest.raises(ringfold.InvalidArgumentError, match="expected .*found"):
                call(**{**shape, name: value})
    if not ringfold.implementations("cuda"):
        with pytest.raises(ringfold.UnsupportedError, match="^device: "):
            ringfold.choose(**SHAPE, device="cuda")


def test_a_ring_with_the_raw_gate_is_smaller():
    shape = dict(H=4, HV=4, K=128, V=64, kind="kda", machine="h200", act_dtype="bf16")
    row = 4 * 128 * 2 + 4 * 64 * 2 + 4 * 4  # k, v and beta
    for ring_a, gate in ((None, 4), ("f32", 4), ("bf16", 2)):
        costs = ringfold.step_costs(**shape, ring_a=ring_a)
        assert all(cost.ring_bytes == cost.ring_rows * (row + 4 * 128 * gate) for cost in costs)
        assert ringfold.choose(**shape, ring_a=ring_a) in costs



def test_check():
    report = ringfold.check(impl="reference", lines="C1,C4")
    assert report and report.ok and report.passed > 0 and report.failed == 0
    assert [(cell.impl, cell.line) for cell in report.cells] == [("reference", "C1"), ("reference", "C4")]
    assert all(cell.checks > 0 for cell in report.cells)
    assert "C4" in str(report)
    assert str(report).endswith(f"ok: {report.passed} configurations passed, 0 failed, 0 skipped")
    told = program("check", "--quick", "--impl", "reference", "--lines", "C1,C4")
    assert told["passed"] == report.passed
    skipped = ringfold.check(impl="reference", lines=["C9"])
    assert skipped.skipped > 0 and skipped.cells[0].reasons
    for bad in ({"impl": "warp9"}, {"lines": "C99"}, {"impl": ["reference", "x"]}):
        with pytest.raises(ringfold.InvalidArgumentError, match="expected some of .*found"):
            ringfold.check(**bad)


def test_check_lets_other_threads_run():
    assert runs_others(lambda: ringfold.check(impl="reference", lines="C1"))
