"""flash-linear-attention: KDA with a pool and one state per draft; GDN without a pool."""

import os
import sys

import torch

from jobs import Calls, Steps
from loading import folder_of, installed_folder, load, package, version_of
from peer_atom import States

os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")  # the Triton kernels, whatever else is installed
SHIMS = "modules imported without the packages around them"


class Fla:
    name = "fla"

    def __init__(self, peers):
        place = folder_of(peers, "fla") or installed_folder("fla-core", "fla")
        self.version = version_of("fla-core", place)
        root = os.path.join(place, "fla")
        for name, path in (("fla", root), ("fla.ops", root + "/ops"), ("fla.ops.kda", root + "/ops/kda"),
                           ("fla.ops.gated_delta_rule", root + "/ops/gated_delta_rule"),
                           ("fla.ops.utils", root + "/ops/utils")):
            package(name, path)
        sys.modules["fla"].__version__ = self.version
        self.kda = load("fla.ops.kda.fused_recurrent").fused_recurrent_kda_fwd
        self.gdn = load("fla.ops.gated_delta_rule.fused_recurrent").fused_recurrent_gated_delta_rule_fwd

    def works(self, shape):
        reason = None if shape.kind == "kda" else "GDN keeps no state per draft and knows no pool"
        return {"verify_states": reason, "step_states": reason, "decode": None}

    def job(self, work, p):
        if work == "decode":
            return (DecodeKda if p.shape.kind == "kda" else DecodeGdn)(self, p)
        return {"verify_states": VerifyStates, "step_states": StepStates}[work](self, p)

    def update(self, p, window, states, indices, accepted, out=None):
        """KDA. `out` is given, so that nothing is filled with zeros first."""
        out = torch.empty_like(window.v) if out is None else out
        self.kda(q=window.q[None], k=window.k[None], v=window.v[None], g=window.a[None], beta=window.b[None],
                 A_log=p.A_log, dt_bias=p.dt_bias, initial_state=states, inplace_final_state=True, state_v_first=True,
                 cu_seqlens=p.bounds, ssm_state_indices=indices, num_accepted_tokens=accepted,
                 use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
                 lower_bound=p.lower_bound, out=out[None])
        return out


class VerifyStates(Calls):
    note = f"{SHIMS}; the gate in the kernel"

    def __init__(self, peer, p):
        super().__init__(p)
        self.peer = peer
        self.store = States(p, 1, max(1, min(p.sets * p.layers, (p.slots - 1) // p.shape.B)) * p.shape.B)

    def set_of(self, i):
        return i % len(self.store.indices)

    def call(self, i):
        p = self.problem
        return self.peer.update(p, p.window(i), self.store.states[0], self.store.indices[self.set_of(i)], p.accepted)

    def before(self, i):
        return self.store.states[0, self.store.current(self.problem, self.set_of(i), self.problem.accepted)].clone()

    def after(self, i):
        return self.store.states[0, self.store.indices[self.set_of(i)].long()[self.problem.rows]]


class StepStates(Steps):
    """A step is a verify: the next one begins at the accepted state."""

    note = f"{SHIMS}; the gate in the kernel"

    def __init__(self, peer, p):
        super().__init__(p)
        self.peer, self.accepted = peer, p.accepted
        self.store = States(p, p.layers, p.sets * p.shape.B)

    def verify(self, layer, set_, window):
        return self.peer.update(self.problem, window, self.store.states[layer], self.store.indices[set_],
                                self.accepted)

    def commit(self, set_, accepted):
        self.accepted = accepted  # where the next verify begins

    def begin(self):
        return self.store.states[0, self.store.current(self.problem, 0, self.accepted)].clone()

    def committed(self):
        return self.begin()

    def committed_rows(self):
        return self.begin()


class DecodeKda(Calls):
    note = f"{SHIMS}; the gate in the kernel"

    def __init__(self, peer, p):
        super().__init__(p)
        self.peer = peer

    def call(self, i):
        p = self.problem
        layer, set_ = p.place(i)
        return self.peer.update(p, p.window(i), p.state[layer], p.slot_ids[set_], None)

    def after(self, i):
        return self.before(i)


class DecodeGdn(Calls):
    note = f"{SHIMS}; no pool: states in batch order, the new state goes to fresh fp32 memory"

    def __init__(self, peer, p):
        super().__init__(p)
        self.peer, self.final = peer, None

    def call(self, i):
        p = self.problem
        layer, set_ = p.place(i)
        window = p.window(i)
        B = p.shape.B
        first = 1 + set_ * B  # in batch order
        out, self.final = self.peer.gdn(
            q=window.dense("q"), k=window.dense("k"), v=window.dense("v"), g=window.dense("a"), beta=window.dense("b"),
            A_log=p.A_log, dt_bias=p.dt_bias, scale=window.q.shape[-1] ** -0.5,
            initial_state=p.state[layer, first:first + B], output_final_state=True, use_qk_l2norm_in_kernel=True,
            use_beta_sigmoid_in_kernel=True, state_v_first=True)
        return out

    def before(self, i):
        layer, set_ = self.problem.place(i)
        first = 1 + set_ * self.problem.shape.B
        return self.problem.state[layer, first:first + self.problem.shape.B][self.problem.rows].clone()

    def after(self, i):
        return self.final[self.problem.rows]
