"""verify_history's comparison with the oracle, the same for everybody."""

import oracle
from jobs import OUT_TOLERANCE
from problem import relative
from shapes import HISTORY


def check(job, state):
    """`job` has verified and accepted HISTORY tokens in whole windows; `state` are its rows' checkpoints before."""
    p, state = job.problem, state.double()
    for i in range(HISTORY // p.shape.T):
        state = oracle.run(p, p.window(i), p.rows, state)[1][:, -1]
    out = job.verify(0, 0, p.window(0))
    expected = oracle.run(p, p.window(0), p.rows, state)[0]
    return {"outputs": (relative(job.rows_of(out), expected), OUT_TOLERANCE["bf16 operands"])}
