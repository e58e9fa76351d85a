"""What can serve a request, why not, how it would be run; and the conformance kit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence, Union

from . import _ringfold
from ._arrays import dtype_name
from ._errors import InvalidArgumentError


@dataclass(frozen=True)
class Candidate:
    impl: str
    serves: bool
    reason: str  #: why not; "chosen", "serves" or "forced" otherwise


@dataclass(frozen=True)
class Plan:
    """How a request would be run."""

    impl: str
    tasks: int  #: independent pieces of work
    v_parts: int  #: pieces that one head's V is cut into
    threads: int
    bytes_read: int  #: of states, rings and inputs, for all rows
    bytes_written: int
    fmas: int  #: multiply-adds, for all rows


@dataclass(frozen=True)
class Footprint:
    """Bytes that one request needs, and bytes that one step moves, for one layer."""

    state_bytes: int  #: one checkpoint
    ring_row_bytes: int
    ring_bytes: int  #: the ring of one slot: ``window`` rows
    conv_state_bytes: int
    conv_ring_row_bytes: int
    snapshot_bytes: int  #: the alternative: one state per draft token
    step_on_commit: int  #: bytes of state and ring moved per step
    step_on_next_verify: int
    step_lazy: int
    step_snapshot: int


@dataclass(frozen=True)
class Explanation:
    """The answer of ``explain``. ``str()`` is for people."""

    request: str
    candidates: tuple[Candidate, ...]  #: in order of preference
    plan: Optional[Plan]  #: of the chosen one; None where nothing serves
    footprint: Footprint
    error: str  #: why nothing serves; "" otherwise
    plan_text: str

    def __str__(self) -> str:
        width = max(len(candidate.impl) for candidate in self.candidates)
        lines = [f"request     {self.request}"]
        for i, candidate in enumerate(self.candidates):
            lines.append(f"{'candidates' if i == 0 else '':<12}{candidate.impl:<{width}} "
                         f"{'yes' if candidate.serves else 'no':<4}{candidate.reason}")
        lines.append(f"plan        {self.plan_text or 'none: nothing serves this request'}")
        f = self.footprint
        lines.append(f"held        state {f.state_bytes} B, ring {f.ring_bytes} B of {f.ring_row_bytes} B a row "
                     f"(a state per draft: {f.snapshot_bytes} B)")
        lines.append(f"moved       per step: on_commit {f.step_on_commit} B, on_next_verify {f.step_on_next_verify} B, "
                     f"lazy {f.step_lazy} B, a state per draft {f.step_snapshot} B")
        return "\n".join(lines)


def explain(*, H: int, HV: int, K: int, V: int, op: str = "verify", kind: str = "gdn", window: int = 4, rows: int = 1,
            layers: int = 1, state_dtype: Any = "f32", act_dtype: Any = "bf16", numerics: str = "exact",
            state_rounding: str = "per_commit", fold_policy: str = "on_commit", history_rows: Optional[int] = None,
            ring_u: bool = False, ring_a: Any = None, channels: int = 0, conv_width: int = 4, snapshots: bool = False,
            device: str = "cpu", threads: int = 0, impl: Optional[str] = None,
            accepted_per_step: float = 3.0) -> Explanation:
    """Every implementation with its reason, the plan of the chosen one, and what a request holds and moves.

    Pure: the same arguments give the same answer. A request that nothing serves has no plan, and says why in ``error``.

    Args:
        H, HV, K, V: key heads, value heads, head dims.
        op: verify, decode, fold, conv_verify, conv_decode, conv_commit, gated_norm, verify_layer or decode_layer.
        window, rows, layers: tokens of the longest row, rows of the batch, layers of a fold.
        history_rows: rows of a ring that holds a history. None: twice the window with another policy than on_commit.
        ring_u: the ring keeps u beside the raw rows.
        ring_a: KDA: dtype of the raw gate input that the ring keeps in place of g.
        channels, conv_width: of the short conv (of a layer: 2*H*K + HV*V channels).
        threads: CPU threads; 0: ``num_threads()``.
        impl: forces an implementation. NotFoundError where no such name is known.
        accepted_per_step: for the traffic of the lazy policy.
    """
    arguments = dict(locals())
    if history_rows is None:
        arguments["history_rows"] = 0 if fold_policy == "on_commit" else min(2 * window, _ringfold.MAX_WINDOW)
    arguments.update(state_dtype=dtype_name(state_dtype), act_dtype=dtype_name(act_dtype),
                     ring_a=None if ring_a is None else dtype_name(ring_a))
    answer = _ringfold.explain(arguments)
    return Explanation(request=answer["request"],
                       candidates=tuple(Candidate(*candidate) for candidate in answer["candidates"]),
                       plan=None if answer["plan"] is None else Plan(**answer["plan"]),
                       footprint=Footprint(**answer["footprint"]), error=answer["error"],
                       plan_text=answer["plan_text"])


@dataclass(frozen=True)
class StepCost:
    """What one step is predicted to cost in one layer, in one of the ways to run it: a verify of the whole batch, and
    its share of the commit of all layers."""

    fold_policy: str  #: this, ring_rows and ring_u are arguments of ``Pool``
    ring_rows: int
    ring_u: bool
    numerics: str  #: of the verify
    us: float
    bytes: float  #: moved: states, rings, inputs and outputs, read and written
    ring_bytes: int  #: held by the rings of one slot, all layers
    verify_impl: str
    fold_impl: str


def machines() -> list[str]:
    """Names of the machines that the cost model knows: "h200" (measured), others scaled from it, and "cpu"."""
    return _ringfold.machines()


def step_costs(*, H: int, HV: int, K: int, V: int, kind: str = "gdn", window: int = 4, rows: int = 1, layers: int = 1,
               state_dtype: Any = "f32", act_dtype: Any = "bf16", ring_a: Any = None, numerics: str = "exact",
               state_rounding: str = "per_commit", accepted_per_step: float = 3.0, machine: Optional[str] = None,
               device: str = "cpu", threads: int = 0) -> list[StepCost]:
    """The costs of all ways to run a step, simplest and smallest rings first (docs/dispatch.md).

    Pure where ``machine`` is given.

    Args:
        H, HV, K, V: key heads, value heads, head dims.
        window, rows: tokens of a row's window, rows of the batch.
        layers: of the pool, which one commit works on.
        ring_a: KDA: dtype of the raw gate input that the ring keeps in place of g.
        numerics: with "fast" also the ways of ``cuda.fast``.
        accepted_per_step: the mean of num_accepted, 0 .. window.
        machine: a name (``machines()``), or None: what this machine has of ``device``.
        threads: CPU threads; 0: ``num_threads()``.

    Raises:
        InvalidArgumentError, NotFoundError (a machine that nobody knows), UnsupportedError (no such device here).
    """
    return [StepCost(**cost) for cost in _ringfold.step_costs(_step(locals()))]


def choose(*, H: int, HV: int, K: int, V: int, kind: str = "gdn", window: int = 4, rows: int = 1, layers: int = 1,
           state_dtype: Any = "f32", act_dtype: Any = "bf16", ring_a: Any = None, numerics: str = "exact",
           state_rounding: str = "per_commit", accepted_per_step: float = 3.0, machine: Optional[str] = None,
           device: str = "cpu", threads: int = 0, most_ring_bytes: int = 0) -> StepCost:
    """The cheapest of ``step_costs``, or a simpler one within 1 % of it. Arguments as there, and:

    Args:
        most_ring_bytes: the rings of one slot (all layers) take no more. 0: no bound.

    A pool for it: ``Pool(.., fold_policy=cost.fold_policy, ring_rows=cost.ring_rows, ring_u=cost.ring_u,
    max_window=window)``. Raises UnsupportedError where no ring is so small.
    """
    return StepCost(**_ringfold.choose(_step(locals())))


def _step(arguments: dict) -> dict:
    ring_a = arguments["ring_a"]
    return {**arguments, "state_dtype": dtype_name(arguments["state_dtype"]),
            "act_dtype": dtype_name(arguments["act_dtype"]), "ring_a": None if ring_a is None else dtype_name(ring_a)}


def implementations(device: str = "cpu") -> list[str]:
    """Names of the implementations of this build that this machine can run, best first."""
    return _ringfold.implementations(device)


def num_threads() -> int:
    """Threads of CPU calls: all cores, unless set. Results do not depend on it."""
    return _ringfold.num_threads()


def set_num_threads(threads: int) -> None:
    """Sets the threads of CPU calls; 0 or less: all cores."""
    _ringfold.set_num_threads(threads)


@dataclass(frozen=True)
class Info:
    """What this build and this machine have. ``str()`` is for people."""

    version: str
    implementations: tuple[str, ...]  #: of the CPU, best first
    cuda_implementations: tuple[str, ...]  #: those that run here
    cuda_built: bool  #: whether the CUDA kernels are in this build
    threads: int

    def __str__(self) -> str:
        cuda = ", ".join(self.cuda_implementations)
        if not cuda:
            cuda = "no usable device" if self.cuda_built else "not in this build"
        return "\n".join([f"ringfold {self.version}",
                          f"implementations   {', '.join(self.implementations)} (best first)",
                          f"CUDA              {cuda}", f"threads           {self.threads}"])


def info() -> Info:
    """Version, implementations, threads."""
    built = any(candidate.impl.startswith("cuda.") for candidate in explain(H=1, HV=1, K=1, V=1).candidates)
    return Info(version=_ringfold.version(), implementations=tuple(implementations()),
                cuda_implementations=tuple(implementations("cuda")), cuda_built=built, threads=num_threads())


@dataclass(frozen=True)
class Cell:
    """One line of the contract on one implementation. Counts are of configurations."""

    impl: str
    line: str
    passed: int
    failed: int
    skipped: int
    checks: int  #: comparisons made
    seconds: float
    failures: list[str]  #: the first few messages
    reasons: list[str]  #: distinct reasons of skips


@dataclass(frozen=True)
class Report:
    """The answer of ``check``. True where all lines hold; ``str()`` is for people."""

    cells: tuple[Cell, ...]

    @property
    def passed(self) -> int:
        return sum(cell.passed for cell in self.cells)

    @property
    def failed(self) -> int:
        return sum(cell.failed for cell in self.cells)

    @property
    def skipped(self) -> int:
        return sum(cell.skipped for cell in self.cells)

    @property
    def ok(self) -> bool:
        return self.failed == 0 and self.passed + self.skipped > 0

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        what = _ringfold.contract_lines()
        lines = []
        for cell in self.cells:
            verdict = "FAIL" if cell.failed else "ok" if cell.passed else "skip"
            lines.append(f"{cell.line:<5} {cell.impl:<14} {verdict:<5} {cell.passed} passed, {cell.failed} failed, "
                         f"{cell.skipped} skipped  {what[cell.line]}")
            lines += [f"      {message}" for message in cell.failures + ([] if cell.passed else cell.reasons)]
        lines.append(f"{'ok' if self.ok else 'FAIL'}: {self.passed} configurations passed, {self.failed} failed, "
                     f"{self.skipped} skipped")
        return "\n".join(lines)


def check(*, impl: Union[str, Sequence[str], None] = None, lines: Union[str, Sequence[str], None] = None,
          quick: bool = True, threads: int = 0) -> Report:
    """The conformance kit: every line of the contract (docs/contract.md) on every implementation of this machine.

    It runs to its end: an interrupt is seen when it is done.

    Args:
        impl: one name or several. None: all, those of CUDA included.
        lines: "C4", "C4,C8" or a list. None: all.
        quick: a small grid, in seconds; otherwise the whole one.
        threads: CPU threads of the calls under test; 0: as set.
    """
    known_impls = implementations("cuda") + implementations("cpu")
    known_lines = list(_ringfold.contract_lines())
    impls = _names("impl", impl, known_impls)
    wanted = _names("lines", lines, known_lines)
    return Report(tuple(Cell(**cell) for cell in _ringfold.check(impls, wanted, quick, threads)))


def _names(argument: str, given: Union[str, Sequence[str], None], known: Sequence[str]) -> list[str]:
    if given is None:
        return []
    names = given.split(",") if isinstance(given, str) else list(given)
    for name in names:
        if name not in known:
            raise InvalidArgumentError(f"{argument}: expected some of {', '.join(known)}, found {name!r}")
    return names
