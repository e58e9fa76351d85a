"""Errors against fp64 after thousands of tokens: random windows, random acceptance, verify and commit as in a step.

For each peer's whole steps, and for ringfold, whose states are compared bit by bit with plain decoding besides.
"""

import torch

import oracle
from capi import constant, make
from problem import Problem, Window
from shapes import Shape
from side_ringfold import mixer_of, stream_of, window_of

ROWS, T = 4, 4
CASES = (("gdn", 16, 32, "f32"), ("gdn", 16, 32, "bf16"), ("kda", 32, 32, "f32"), ("kda", 32, 32, "bf16"))


def problem_of(kind, H, HV, state, device, dtype=torch.bfloat16, rows=ROWS):
    return Problem(Shape(kind, state, T, rows, H, HV), device, layers=1, slots=2 * rows + 1, cold_bytes=0, dtype=dtype)


class Plain:
    """Plain decoding of the accepted tokens by ringfold, one token in each call, on states of its own."""

    def __init__(self, library, p, state):
        self.library, self.p, self.mixer = library, p, mixer_of(p)
        self.state = state.clone()
        self.equal, self.outputs = True, 0

    def token(self, window, t, live):
        p = self.p
        ids = torch.where(live, torch.arange(p.shape.B, device=p.device), -1).to(torch.int32)
        view = make("window", slot_ids=ids, **{name: window.dense(name)[:, t:t + 1] for name in ("q", "k", "v", "a", "b")})
        out = torch.empty(p.shape.B, 1, *window.v.shape[1:], device=p.device, dtype=window.v.dtype)
        self.library.call("decode", make(
            "decode_args", mixer=self.mixer, window=view, state=self.state, out=out, stream=stream_of(p.device),
            state_rounding=constant("per_token")))
        return out[:, 0]

    def follow(self, window, accepted, out):
        """The accepted tokens of a window, and whether `out` (None: not asked for) has the same bits."""
        for t in range(self.p.shape.T):
            live = accepted > t
            expected = self.token(window, t, live)
            if out is not None:
                self.equal = self.equal and torch.equal(out[live, t], expected[live])


def measure(job, tokens, seed=7, plain=None, exact=False):
    """(accepted tokens of all rows, error of all outputs, error of the last states, those states)."""
    p = job.problem
    state = job.begin().double()
    squares = torch.zeros(2, device=p.device, dtype=torch.float64)
    choices = torch.Generator().manual_seed(seed)
    done = 0
    while done < tokens:
        window = Window(p.shape, p.generator, p.device, p.dtype)
        counts = torch.randint(1, p.shape.T + 1, (p.shape.B,), generator=choices)
        accepted = counts.to(p.device, torch.int32)
        out = job.rows_of(job.step(0, window, accepted))
        expected, states = oracle.run(p, window, p.rows, state)
        squares += torch.stack([(out.double() - expected).square().sum(), expected.square().sum()])
        state = states[torch.arange(p.shape.B, device=p.device), accepted.long() - 1]
        if plain:
            plain.follow(window, accepted, out if exact else None)
        done += int(counts.sum())
    job.settle()
    left = job.committed_rows()
    state_error = ((left.double() - state).norm() / state.norm()).item()
    return done, (squares[0] / squares[1]).sqrt().item(), state_error, left


def entry(subject, work, p, tokens, out_error, state_error, note):
    return {"peer": subject.name, "version": subject.version, "work": work, "shape": str(p.shape), "tokens": tokens,
            "out_error": out_error, "state_error": state_error, "note": note}


def of_peer(peer, case, device, tokens):
    """Entries of all its whole steps."""
    kind, H, HV, state = case
    for work, reason in peer.works(Shape(kind, state, T, ROWS, H, HV)).items():
        if reason is None and work.startswith("step_") and "/" not in work:
            p = problem_of(kind, H, HV, state, device)
            job = peer.job(work, p)
            done, out_error, state_error, _ = measure(job, tokens)
            yield entry(peer, work, p, done, out_error, state_error, job.note)


def of_ringfold(ringfold, case, device, tokens):
    """Each fold policy. fp32 states, and what exact numerics put out, must have the bits of plain decoding; 16-bit
    states are rounded on every commit, as by peers, and once more per token, which is what has those bits."""
    from side_ringfold import PoolStep
    kind, H, HV, state = case
    runs = [(policy, "per_token" if state == "f32" else "per_commit")
            for policy in ("on_commit", "on_next_verify", "lazy")]
    for policy, rounding in runs + ([("on_next_verify", "per_token")] if state != "f32" else []):
        p = problem_of(kind, H, HV, state, device)
        job = PoolStep(ringfold.library, p, policy, rounding=rounding)
        job.keeps = True
        plain = Plain(ringfold.library, p, job.begin()) if rounding == "per_token" else None
        done, out_error, state_error, left = measure(job, tokens, plain=plain, exact=job.numerics == "exact")
        yield entry(ringfold, f"step_{policy}", p, done, out_error, state_error, note_of(job, rounding, plain, left))


def note_of(job, rounding, plain, left):
    note = job.note + (f"; rounded {rounding}" if job.problem.shape.state != "f32" else "")
    if plain:
        same = torch.equal(left.view(torch.uint8), plain.state.view(torch.uint8))
        note += f"; states {'have' if same else 'DO NOT HAVE'} the bits of plain decoding"
        if job.numerics == "exact":
            note += f"; outputs {'have them too' if plain.equal else 'DO NOT HAVE THEM'}"
    return note
