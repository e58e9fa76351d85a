"""ATOM's Triton kernel with one state per draft, GDN and KDA. Its launch constants were chosen for AMD GPUs; `retuned`
is the same kernel with one warp for each tile."""

import os

import torch

from loading import Missing, folder_of, load, package, version_of
from states import Decode, StepStates, VerifyStates

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
    compiles_for_others = True

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

    def update(self, job, window, states, indices, accepted):
        p = job.problem
        self.module.fused_sigmoid_gating_delta_rule_update_kernel = job.launch
        out = torch.empty_like(window.v)
        kda = p.shape.kind == "kda"
        self.module.fused_sigmoid_gating_delta_rule_update(
            A_log=p.A_log, a=window.a, b=window.b, dt_bias=p.dt_bias, q=window.q[None], k=window.k[None],
            v=window.v[None], o=out, initial_state=states, cu_seqlens=p.bounds, ssm_state_indices=indices,
            num_accepted_tokens=accepted, use_qk_l2norm_in_kernel=True, is_kda=kda, lower_bound=p.lower_bound)
        return out
