"""FlashInfer's jobs with a ring. GDN: corrections (u), normalised keys and running gates of up to 16 tokens that the state
lacks; a verify folds them first where another window would not fit. KDA: what a window adds, for an engine's own fold."""

import torch
import triton
import triton.language as tl

import history
from jobs import Calls, Steps
from loading import Missing
from shapes import HISTORY, K, V

HELD = 16  # tokens that the ring may hold
CIRCULAR_ROWS = 32  # so that a window that folds writes no row that is still read
ROUNDS = "rounds A_log and dt_bias to bf16"


@triton.jit
def move_cursors(live_ptr, base_ptr, accepted_ptr, full, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The caller's part of a commit: rows that were folded leave the ring."""
    at = tl.arange(0, BLOCK)
    live, base = tl.load(live_ptr + at, at < n), tl.load(base_ptr + at, at < n)
    accepted = tl.load(accepted_ptr + at, at < n)
    folded = live >= full
    tl.store(base_ptr + at, tl.where(folded, (base + live) % ROWS, base), at < n)
    tl.store(live_ptr + at, tl.where(folded, 0, live) + accepted, at < n)


class Rings:
    """Of all slots of all layers; zero, as they must be before their first use. Cursors are a set's rows'."""

    def __init__(self, p, rows):
        s, lead = p.shape, (p.layers, p.slots)
        self.k, self.u = p.empty(*lead, s.H, rows, K), p.empty(*lead, s.HV, rows, V)
        self.g = p.empty(*lead, s.HV, rows, dtype=torch.float32)
        self.live = [p.empty(s.B, dtype=torch.int32) for _ in range(p.sets)]

    def of(self, layer, set_):
        return {"k_cache": self.k[layer], "u_cache": self.u[layer], "g_cache": self.g[layer], "hist_len": self.live[set_]}


def verify(kernel, peer, job, layer, set_, window, **more):
    p = job.problem
    return kernel(**peer.qkv(window), **peer.gates(p, window), initial_state_source=p.state[layer],
                  initial_state_indices=p.slot_ids[set_], scale=K ** -0.5, output=peer.out(window),
                  **job.rings.of(layer, set_), **more)


class VerifyRing(Calls):
    """Behind no history."""

    precision = "bf16 operands"
    note = ROUNDS

    def __init__(self, peer, p):
        super().__init__(p)
        self.peer, self.rings = peer, Rings(p, HELD)

    def call(self, i):
        p = self.problem
        layer, set_ = p.place(i)
        return verify(self.peer.gdn_ring, self.peer, self, layer, set_, p.window(i))


class StepVerify(Steps):
    """Steps with the kernel that never folds."""

    precision = "bf16 operands"
    note = ROUNDS

    def __init__(self, peer, p):
        super().__init__(p)
        self.peer, self.rings = peer, Rings(p, HELD)

    def verify(self, layer, set_, window):
        return verify(self.peer.gdn_ring, self.peer, self, layer, set_, window)

    def commit(self, set_, accepted):
        self.rings.live[set_].add_(accepted)


class VerifyHistory(history.Verify, StepVerify):
    def __init__(self, peer, p):
        super().__init__(peer, p)
        if HISTORY + p.shape.T > HELD:
            raise Missing("a history of this length does not fit")
        self.remember(self.begin())


class StepCircular(Steps):
    """One kernel for every step; the harness moves the cursors, as an engine does, once for all layers."""

    precision = "bf16 operands"
    state_precision = "bf16 operands"

    def __init__(self, peer, p):
        super().__init__(p)
        self.peer, self.rings = peer, Rings(p, CIRCULAR_ROWS)
        self.base = [torch.zeros_like(live) for live in self.rings.live]
        self.full = HELD - p.shape.T + 1  # a history of so many rows is folded by the next verify
        self.period = self.cycle()
        self.note = f"{ROUNDS}; ring of {CIRCULAR_ROWS} rows, {HELD} of them live; cursors moved by a kernel of the harness"

    def cycle(self):
        seen, live, i = {}, 0, 0
        while live not in seen:
            seen[live] = i
            live = (0 if live >= self.full else live) + self.problem.shape.accepted
            i += 1
        return i - seen[live]

    def verify(self, layer, set_, window, full=None):
        return verify(self.peer.gdn_ring_flush, self.peer, self, layer, set_, window, cache_base=self.base[set_],
                      flush_min=full or self.full, restart_hist_on_flush=False)

    def commit(self, set_, accepted):
        B = self.problem.shape.B
        move_cursors[(1,)](self.rings.live[set_], self.base[set_], accepted, self.full, B, ROWS=CIRCULAR_ROWS,
                           BLOCK=max(16, 1 << (B - 1).bit_length()))

    def settle(self):
        """A verify that folds whatever there is."""
        for layer in range(self.problem.layers):
            self.verify(layer, 0, self.problem.windows[0], full=1)

    def begin(self):
        for cursors in (self.rings.live, self.base):
            for cursor in cursors:
                cursor.zero_()
        return super().begin()


class KdaRing(Calls):
    """Corrections in fp32, keys and gates as they came, by slot."""

    precision = "bf16 operands"
    note = "corrections in fp32, keys and gates left for an engine's own fold"

    def __init__(self, peer, p):
        super().__init__(p)
        s, lead = p.shape, (p.layers, p.slots)
        self.peer = peer
        self.u = p.empty(*lead, s.HV, s.T, V, dtype=torch.float32)
        self.kg = p.empty(*lead, s.HV, s.T, 2 * K)

    def call(self, i):
        p = self.problem
        layer, set_ = p.place(i)
        window = p.window(i)
        out = self.peer.out(window)
        self.peer.kda_ring(window.q[None], window.k[None], window.v[None], window.a[None], window.b[None],
                           checkpoint_state=p.state[layer], correction_cache=self.u[layer], kg_cache=self.kg[layer],
                           query_start_loc=p.bounds, state_indices=p.slot_ids[set_], spec_query_len=p.shape.T,
                           out=out.view(1, -1, *out.shape[2:]), null_min=0, **self.peer.of_kda(p))
        return out
