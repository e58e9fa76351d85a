"""verify_history, the same for everybody: a step's verify alone, behind a history."""

import torch

import oracle
from jobs import OUT_TOLERANCE
from problem import relative
from shapes import HISTORY


class Verify:
    """To be mixed into a class of steps, before it. `remember` comes last in its constructor."""

    def remember(self, state):
        """Verifies and accepts HISTORY tokens in whole windows; `state` are the compared rows' checkpoints before."""
        p, self.start = self.problem, state
        full = torch.full_like(p.accepted, p.shape.T)
        for i in range(HISTORY // p.shape.T):
            for set_ in range(p.sets):
                self.step(set_, p.window(i), full)

    def enqueue(self):
        p = self.problem
        for i in range(p.calls):
            layer, set_ = p.place(i)
            self.verify(layer, set_, p.window(i))
        return p.calls

    def check(self):
        p, state = self.problem, self.start.double()
        for i in range(HISTORY // p.shape.T):
            state = oracle.run(p, p.window(i), p.rows, state)[1][:, -1]
        out = self.verify(0, 0, p.window(0))
        expected = oracle.run(p, p.window(0), p.rows, state)[0]
        return {"outputs": (relative(self.rows_of(out), expected), OUT_TOLERANCE[self.precision])}
