"""ATOM's Triton kernel with one state per draft, GDN and KDA. Its launch constants were chosen for AMD GPUs; `retuned`
is the same kernel with one warp for each tile."""

import os

import torch

from jobs import Calls, Steps
from loading import Missing, folder_of, load, package, version_of
from problem import DTYPES
from shapes import K, V

SHIMS = "module imported without the package around it"
RETUNED_WARPS = 1


class Retuned:
    """A Triton kernel that is launched with another number of warps."""

    def __init__(self, kernel, warps):
        self.kernel, self.warps = kernel, warps

    def __getitem__(self, grid):
        launch = self.kernel[grid]
        return lambda *args, **options: launch(*args, **{**options, "num_warps": self.warps})


class Atom:
    name = "atom"

    def __init__(self, peers):
        place = folder_of(peers, "atom")
        if not place:
            raise Missing("no folder atom under --peers (its package needs an AMD GPU)")
        self.version = version_of("atom", place)
        root = os.path.join(place, "atom")
        for name, path in (("atom", root), ("atom.model_ops", root + "/model_ops"),
                           ("atom.model_ops.fla_ops", root + "/model_ops/fla_ops")):
            package(name, path)
        self.module = load("atom.model_ops.fla_ops.fused_sigmoid_gating")
        self.kernel = self.module.fused_sigmoid_gating_delta_rule_update_kernel
        self.retuned = Retuned(self.kernel, RETUNED_WARPS)

    def works(self, shape):
        retuned = None if shape.T in (1, 4) else "measured for windows of 4 alone"
        works = {}
        for work in ("verify_states", "decode", "step_states"):
            works.update({work: None, f"{work}/retuned": retuned})
        return works

    def job(self, work, p):
        work, _, variant = work.partition("/")
        job = {"verify_states": VerifyStates, "decode": Decode, "step_states": StepStates}[work](self, p)
        job.launch = self.retuned if variant else self.kernel
        job.note = f"{SHIMS}; {f'retuned: {RETUNED_WARPS} warp' if variant else 'as shipped'}"
        return job

    def update(self, job, layer, window, states, indices, accepted):
        p = job.problem
        self.module.fused_sigmoid_gating_delta_rule_update_kernel = job.launch
        out = torch.empty_like(window.v)
        kda = p.shape.kind == "kda"
        self.module.fused_sigmoid_gating_delta_rule_update(
            A_log=p.A_log, a=window.a, b=window.b, dt_bias=p.dt_bias, q=window.q[None], k=window.k[None],
            v=window.v[None], o=out, initial_state=states, cu_seqlens=p.bounds, ssm_state_indices=indices,
            num_accepted_tokens=accepted, use_qk_l2norm_in_kernel=True, is_kda=kda, lower_bound=p.lower_bound)
        return out


class States:
    """T states of every slot of some layers; state i of a slot is that after i + 1 tokens of its last window."""

    def __init__(self, p, layers, requests):
        s = p.shape
        self.states = torch.empty(layers, requests * s.T, s.HV, V, K, device=p.device, dtype=DTYPES[s.state])
        self.states.normal_(0.0, 0.1, generator=p.generator)
        self.indices = [(torch.arange(s.B * s.T, device=p.device, dtype=torch.int32) + i * s.B * s.T).view(s.B, s.T)
                        for i in range(requests // s.B)]

    def current(self, p, set_, accepted):
        """Places of the states that count of the compared rows."""
        return self.indices[set_].long()[p.rows, accepted.long()[p.rows] - 1]


class VerifyStates(Calls):
    def __init__(self, peer, p):
        super().__init__(p)
        self.peer = peer
        # Calls of all layers share the memory, which is several L2s large.
        self.requests = max(1, min(p.sets * p.layers, (p.slots - 1) // p.shape.B)) * p.shape.B
        self.store = States(p, 1, self.requests)

    def set_of(self, i):
        return i % len(self.store.indices)

    def call(self, i):
        p = self.problem
        return self.peer.update(self, 0, p.window(i), self.store.states[0], self.store.indices[self.set_of(i)],
                                p.accepted)

    def before(self, i):
        return self.store.states[0, self.store.current(self.problem, self.set_of(i), self.problem.accepted)].clone()

    def after(self, i):
        return self.store.states[0, self.store.indices[self.set_of(i)].long()[self.problem.rows]]


class StepStates(Steps):
    """A step is a verify: the next one begins at the accepted state."""

    def __init__(self, peer, p):
        super().__init__(p)
        self.peer, self.accepted = peer, p.accepted
        self.store = States(p, p.layers, p.sets * p.shape.B)

    def verify(self, layer, set_, window):
        return self.peer.update(self, layer, window, self.store.states[layer], self.store.indices[set_], self.accepted)

    def commit(self, set_, accepted):
        self.accepted = accepted  # where the next verify begins

    def begin(self):
        return self.store.states[0, self.store.current(self.problem, 0, self.accepted)].clone()

    def committed(self):
        return self.begin()

    def committed_rows(self):
        return self.begin()


class Decode(Calls):
    def __init__(self, peer, p):
        super().__init__(p)
        self.peer = peer

    def call(self, i):
        p = self.problem
        layer, set_ = p.place(i)
        return self.peer.update(self, layer, p.window(i), p.state[layer], p.slot_ids[set_], None)

    def after(self, i):
        return self.before(i)
