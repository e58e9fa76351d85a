"""flash-linear-attention: KDA with a pool and one state per draft; GDN without a pool."""

import os
import sys

import torch

from jobs import Calls
from loading import folder_of, installed_folder, load, package, version_of
from states import Decode, StepStates, VerifyStates

os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")  # the Triton kernels, whatever else is installed
SHIMS = "modules imported without the packages around them"


class Fla:
    name = "fla"
    compiles_for_others = True

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
        if work == "decode" and p.shape.kind == "gdn":
            return DecodeGdn(self, p)
        job = {"verify_states": VerifyStates, "step_states": StepStates, "decode": Decode}[work](self, p)
        job.note = f"{SHIMS}; the gate in the kernel"
        return job

    def update(self, job, window, states, indices, accepted, out=None):
        """KDA. `out` is given, so that nothing is filled with zeros first."""
        p = job.problem
        out = torch.empty_like(window.v) if out is None else out
        self.kda(q=window.q[None], k=window.k[None], v=window.v[None], g=window.a[None], beta=window.b[None],
                 A_log=p.A_log, dt_bias=p.dt_bias, initial_state=states, inplace_final_state=True, state_v_first=True,
                 cu_seqlens=p.bounds, ssm_state_indices=indices, num_accepted_tokens=accepted,
                 use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
                 lower_bound=p.lower_bound, out=out[None])
        return out


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
