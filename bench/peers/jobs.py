"""Jobs: a work of a peer, or of ringfold, on a problem. A job can be compared with the oracle and can be timed."""

import oracle
from problem import relative

# |error| / |reference|, norms over all elements. One rounding to bf16 is at most BF16 of each element, and so of a norm.
# They say whether a kernel was called rightly: what is wrong by a gate, a scale or an order of rows is wrong by tenths.
BF16 = 2.0 ** -9
# An output computed in fp32 is rounded once; the second one is for fp32 itself, whose errors are far below. From operands
# in bf16 (q, k, the state, u, v) there is one each more, of the terms of sums that may cancel to half of them: (1 + 4) * 2.
OUT_TOLERANCE = {"fp32": 2 * BF16, "bf16 operands": 10 * BF16}
# A state: 8 tokens, two sums of 128 terms each, an error of 2^-24 a term are 1.2e-4 if all have one sign, which they have
# not. One that is stored in bf16: as outputs.
STATE_TOLERANCE = {"f32": 1e-4, "bf16": 2 * BF16, "bf16 operands": 10 * BF16}
# Whole steps feed on their own states. Gates shrink what an older rounding left, so that ten steps' roundings, which are
# independent, add up to at most sqrt(10) of one; a state in fp32 has none, and its outputs are as above.
STEP_TOLERANCE = {"f32": 2 * BF16, "bf16": 2 * 10 ** 0.5 * BF16}


class Refused(Exception):
    """A result that is not what was asked for: nothing is reported of it."""


class Job:
    """`note`: what a reader must know about the number. `precision`: a key of OUT_TOLERANCE."""

    note = ""
    precision = "fp32"
    state_precision = None  # a key of STATE_TOLERANCE; None: the dtype of the state

    def __init__(self, problem):
        self.problem = problem

    def enqueue(self):
        """Puts one replay's worth of calls into the current stream; returns how many layers' calls these are."""
        raise NotImplementedError

    def check(self):
        """{what: (error, tolerance)} against the oracle. Changes states."""
        raise NotImplementedError

    def checked(self):
        """check, or Refused."""
        errors = self.check()
        bad = [f"{what}: error {error:.2e}, tolerance {tolerance:.0e}" for what, (error, tolerance) in errors.items()
               if not error <= tolerance]
        if bad:
            raise Refused("; ".join(bad))
        return errors

    def rows_of(self, output):
        """The compared rows of an output of all tokens, as [R, T, HV, V]."""
        p = self.problem
        return output.reshape(p.shape.B, -1, *output.shape[-2:])[p.rows]

    def state_tolerance(self):
        return STATE_TOLERANCE[self.state_precision or self.problem.shape.state]


class Calls(Job):
    """One call for each layer and set. Subclasses have `call(i)`, which returns outputs, and may have `after(i)`: the
    state of the compared rows, after `tokens` tokens, that the call has left behind."""

    tokens = None  # None: the whole window

    def __init__(self, problem):
        super().__init__(problem)
        self.held = problem.state  # where the states are that calls start from

    def call(self, i):
        raise NotImplementedError

    def after(self, i):
        return None

    def before(self, i):
        """States [R, HV, V, K] of the compared rows."""
        layer, set_ = self.problem.place(i)
        return self.held[layer, self.problem.slot_ids[set_][self.problem.rows].long()].clone()

    def enqueue(self):
        for i in range(self.problem.calls):
            self.call(i)
        return self.problem.calls

    def check(self):
        p = self.problem
        errors = {}
        for i in sorted({0, p.calls - 1}):
            start = self.before(i)
            out = self.call(i)
            expected, states = oracle.run(p, p.window(i), p.rows, start)
            if out is not None:
                errors[f"outputs of call {i}"] = (relative(self.rows_of(out), expected), OUT_TOLERANCE[self.precision])
            left = self.after(i)
            if left is not None:
                reference = states[:, (self.tokens or p.shape.T) - 1] if left.dim() == 4 else states
                errors[f"states of call {i}"] = (relative(left, reference), self.state_tolerance())
        return errors


class Steps(Job):
    """Whole steps: `verify(layer, set_, window)` returns outputs, `commit(set_, accepted)` follows for all layers.
    A replay is a flush cycle of `period` steps of every set, step by step, so that a set comes back cold."""

    period = 1

    def __init__(self, problem):
        super().__init__(problem)
        self.held = problem.state

    def verify(self, layer, set_, window):
        raise NotImplementedError

    def commit(self, set_, accepted):
        raise NotImplementedError

    def begin(self):
        """Makes histories empty and gives the compared rows of set 0 and layer 0 as they are: [R, HV, V, K]."""
        return self.held[0, self.problem.slot_ids[0][self.problem.rows].long()].clone()

    def settle(self):
        """Histories of set 0 go into their states."""

    def committed(self):
        """The state that all tokens are in, of the same rows; None where a history lies outside of it."""
        return None

    def committed_rows(self):
        """The same after settle, for every job."""
        return Steps.begin(self)

    def step(self, set_, window, accepted):
        out = None
        for layer in range(self.problem.layers):
            result = self.verify(layer, set_, window)
            out = result if layer == 0 else out
        self.commit(set_, accepted)
        return out

    def enqueue(self):
        p = self.problem
        for i in range(self.period):
            for set_ in range(p.sets):
                self.step(set_, p.window(i), p.accepted)
        return self.period * p.sets * p.layers

    def check(self):
        p = self.problem
        state, worst = self.begin().double(), 0.0
        for i in range(self.period + 2):
            out = self.step(0, p.window(i), p.accepted)
            expected, states = oracle.run(p, p.window(i), p.rows, state)
            error = relative(self.rows_of(out), expected)
            worst = error if error != error else max(worst, error)
            state = states[:, p.shape.accepted - 1]
        tolerance = max(STEP_TOLERANCE[p.shape.state], OUT_TOLERANCE[self.precision])
        errors = {f"outputs of {self.period + 2} steps": (worst, tolerance)}
        left = self.committed()
        if left is not None:
            errors["state"] = (relative(left, state), max(self.state_tolerance(),
                                                          STEP_TOLERANCE["bf16"] if p.shape.state == "bf16" else 0))
        for _ in range((-(self.period + 2)) % self.period):  # set 0 goes on in step with the others
            self.step(0, p.window(0), p.accepted)
        return errors
