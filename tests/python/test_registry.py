"""explain, info, check, threads: what the program prints, as objects."""

import json
import subprocess
import threading
import time

import pytest
from support import cli

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
    ticks, stop = [], threading.Event()
    thread = threading.Thread(target=lambda: [ticks.append(time.perf_counter()) or time.sleep(0.002)
                                              for _ in iter(stop.is_set, True)])
    thread.start()
    begin = time.perf_counter()
    ringfold.check(impl="reference", lines="C1,C3,C4")
    end = time.perf_counter()
    stop.set()
    thread.join()
    assert sum(begin + (end - begin) / 4 < tick < end - (end - begin) / 4 for tick in ticks) >= 2
