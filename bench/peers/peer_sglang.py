"""SGLang's Triton kernels for GDN and KDA: states per draft, ring with a fold on every commit, circular ring.

Called as its backends call them: ragged windows (cu_seqlens), one verify for each layer, one commit for all.
"""

import os
import sys

import torch

import history
from jobs import Calls, Steps
from loading import Missing, capability, folder_of, installed_folder, load, package, stand_in, version_of
from problem import DTYPES
from shapes import HISTORY, K, V

RING = 16  # SGLang's default length of the circular ring and of KDA's ring
SHIMS = "modules imported without the packages around them"


class SGLang:
    name = "sglang"
    compiles_for_others = True

    def __init__(self, peers):
        place = folder_of(peers, "sglang") or installed_folder("sglang", "sglang")
        self.version = version_of("sglang", place)
        root = os.path.join(place, "sglang")
        kernels = os.path.join(root, "kernels", "ops")
        self.linear = "sglang.kernels.ops.attention.linear"
        if not os.path.isfile(os.path.join(kernels, "attention", "linear", "fused_sigmoid_gating_recurrent.py")):
            self.linear = "sglang.kernels.ops.attention.fla"  # up to 0.5.22
        major, minor = capability()
        flags = {name: (lambda value: lambda: value)(value) for name, value in {
            "is_cuda": major > 0, "is_hip": False, "is_gfx95_supported": False, "is_sm90_supported": major == 9,
            "get_device_sm": major * 10 + minor, "is_cpu": False, "is_npu": False, "is_xpu": False}.items()}
        for name, path in (("sglang", root), ("sglang.kernels", os.path.dirname(kernels)),
                           ("sglang.kernels.ops", kernels), ("sglang.kernels.ops.attention", kernels + "/attention"),
                           ("sglang.kernels.ops.attention.linear", kernels + "/attention/linear"),
                           ("sglang.kernels.ops.attention.fla", kernels + "/attention/fla"),
                           ("sglang.kernels.ops.mamba", kernels + "/mamba"),
                           ("sglang.kernels.ops.memory", kernels + "/memory"), ("sglang.srt", root + "/srt"),
                           ("sglang.kernels.jit", root + "/kernels/jit")):
            package(name, path)
        stand_in("sglang.kernels.jit.utils", is_arch_support_pdl=lambda: major >= 9)
        stand_in("sglang.srt.utils", **flags)
        stand_in("sglang.srt.utils.common", torch_release=tuple(int(n) for n in torch.__version__.split(".")[:2]),
                 get_device_core_count=lambda device=0: 132)
        stand_in("sglang.kernels.ops.attention.fla.utils", is_tf32_supported=major >= 8, is_gather_supported=True,
                 input_guard=lambda f: f)
        # Its CUDA kernel for decoding KDA is compiled by tvm_ffi at run time; without that SGLang has the Triton one.
        sys.modules["sglang.kernels.ops.attention"].kda_packed_decode = stand_in(
            "sglang.kernels.ops.attention.kda_packed_decode", covered=lambda *arguments: False)
        self.update = load(f"{self.linear}.fused_sigmoid_gating_recurrent").fused_sigmoid_gating_delta_rule_update
        self.gdn_fold = load(f"{self.linear}.gdn_replayssm_spec_fold").commit_gdn_replayssm_fold_all_layers
        self.kda_fold = load(f"{self.linear}.kda_replayssm_spec_decode").commit_kda_replayssm_spec_all_layers
        self.circular = load(f"{self.linear}.gdn_replayssm_spec_decode")
        self.recurrent = load("sglang.kernels.ops.attention.fla.fused_recurrent")
        self.scatter = load("sglang.kernels.ops.mamba.mamba_state_scatter_triton").fused_mamba_state_scatter_with_mask

    def works(self, shape):
        works = {"verify_states": None, "verify_ring": None, "fold": None, "step_states": None, "step_fold": None,
                 "decode": None}
        for work in ("verify_history", "step_circular"):
            works[work] = None if shape.kind == "gdn" else "the circular ring is GDN's alone"
        return works

    def job(self, work, p):
        return {"verify_states": VerifyStates, "verify_ring": VerifyRing, "fold": Fold, "decode": Decode,
                "step_states": StepStates, "step_fold": StepFold, "step_circular": StepCircular,
                "verify_history": VerifyHistory}[work](self, p)


def verify(peer, p, layer, set_, window, **more):
    """A verify of a layer that leaves the state alone."""
    shape = p.shape
    kda = shape.kind == "kda"
    return peer.update(
        A_log=p.A_log, a=window.a.flatten(1) if kda else window.a, dt_bias=p.dt_bias.flatten(), softplus_beta=1.0,
        softplus_threshold=20.0, q=window.q[None], k=window.k[None], v=window.v[None], b=window.b,
        initial_state_source=p.state[layer], initial_state_indices=p.slot_ids[set_], use_qk_l2norm_in_kernel=True,
        cu_seqlens=p.bounds, is_kda=kda, lower_bound=p.lower_bound, disable_state_update=True, **more)


class Rings:
    def __init__(self, p, rows):
        s = p.shape
        per_key = (K,) if s.kind == "kda" else ()
        lead = (p.layers, p.slots)
        self.rows = rows
        self.v, self.k = p.empty(*lead, s.HV, rows, V), p.empty(*lead, s.H, rows, K)
        self.g = p.empty(*lead, s.HV, rows, *per_key, dtype=torch.float32)
        self.beta = p.empty(*lead, s.HV, rows, dtype=torch.float32)

    def of(self, layer):
        return {"cache_ring": True, "replayssm_rawv": self.v[layer], "replayssm_rawk": self.k[layer],
                "replayssm_g": self.g[layer], "replayssm_beta": self.beta[layer]}


class VerifyStates(Calls):
    note = SHIMS

    def __init__(self, peer, p):
        super().__init__(p)
        self.peer, s = peer, p.shape
        self.requests = max(s.B, min(p.slots, p.sets * s.B))
        self.buffer = torch.empty(self.requests, s.T, s.HV, V, K, device=p.device, dtype=DTYPES[s.state])
        self.places = [torch.arange(s.B, device=p.device, dtype=torch.int32) + i * s.B
                       for i in range(self.requests // s.B)]

    def call(self, i):
        p = self.problem
        layer, set_ = p.place(i)
        return verify(self.peer, p, layer, set_, p.window(i), intermediate_states_buffer=self.buffer,
                      intermediate_state_indices=self.places[set_ % len(self.places)], cache_steps=p.shape.T)

    def after(self, i):
        set_ = self.problem.place(i)[1] % len(self.places)
        return self.buffer[self.places[set_].long()[self.problem.rows]]


class VerifyRing(Calls):
    note = SHIMS

    def __init__(self, peer, p):
        super().__init__(p)
        self.peer = peer
        self.rings = Rings(p, RING if p.shape.kind == "kda" else p.shape.T)

    def call(self, i):
        p = self.problem
        layer, set_ = p.place(i)
        return verify(self.peer, p, layer, set_, p.window(i), **self.rings.of(layer))


def fold(peer, p, rings, set_, accepted):
    kda = p.shape.kind == "kda"
    (peer.kda_fold if kda else peer.gdn_fold)(
        p.state, rings.v, rings.k, rings.g, rings.beta, p.slot_ids[set_], accepted, max_cache_len=rings.rows,
        num_k_heads=p.shape.H, null_block_id=-1)


class Fold(VerifyRing):
    def __init__(self, peer, p):
        super().__init__(peer, p)
        self.tokens = p.shape.accepted
        for i in range(p.calls):
            super().call(i)
        self.note = f"{SHIMS}; all layers in one call"

    def enqueue(self):
        for set_ in range(self.problem.sets):
            fold(self.peer, self.problem, self.rings, set_, self.problem.accepted)
        return self.problem.calls

    def call(self, i):
        super().call(i)
        fold(self.peer, self.problem, self.rings, self.problem.place(i)[1], self.problem.accepted)

    def after(self, i):
        return self.before(i)


class Decode(Calls):
    """One token from the packed projection."""

    note = SHIMS

    def __init__(self, peer, p):
        super().__init__(p)
        kda = p.shape.kind == "kda"
        self.kernel = (peer.recurrent.fused_recurrent_kda_packed_decode if kda else
                       peer.recurrent.fused_recurrent_gated_delta_rule_packed_decode)
        self.more = {"lower_bound": p.lower_bound} if kda else {}
        self.out = p.empty(p.shape.B, 1, p.shape.HV, V)
        if kda:
            self.note = f"{SHIMS}; Triton kernel, its CUDA one needs tvm_ffi at run time"
        else:
            self.state_precision = "bf16"  # beta is rounded to bf16 before it is used
            self.note = f"{SHIMS}; rounds beta to bf16"

    def call(self, i):
        p = self.problem
        layer, set_ = p.place(i)
        window = p.window(i)
        self.kernel(mixed_qkv=window.mixed, a=window.a.flatten(1), b=window.b, A_log=p.A_log,
                    dt_bias=p.dt_bias.flatten(), scale=K ** -0.5, initial_state=p.state[layer], out=self.out,
                    ssm_state_indices=p.slot_ids[set_], use_qk_l2norm_in_kernel=True, **self.more)
        return self.out

    def after(self, i):
        return self.before(i)


class StepStates(Steps):
    """The default protocol: a state per draft in a buffer; the commit copies the accepted one."""

    note = SHIMS

    def __init__(self, peer, p):
        super().__init__(p)
        if p.device.type != "cuda":
            raise Missing("the commit takes CUDA tensors alone")
        self.peer, s = peer, p.shape
        self.buffer = torch.empty(p.layers, s.B, s.T, s.HV, V, K, device=p.device, dtype=DTYPES[s.state])
        self.places = torch.arange(s.B, device=p.device, dtype=torch.int32)
        self.last = p.accepted - 1  # made once for all layers of a step elsewhere in SGLang

    def verify(self, layer, set_, window):
        return verify(self.peer, self.problem, layer, set_, window, intermediate_states_buffer=self.buffer[layer],
                      intermediate_state_indices=self.places, cache_steps=self.problem.shape.T)

    def commit(self, set_, accepted):
        last = self.last if accepted is self.problem.accepted else accepted - 1
        self.peer.scatter(self.problem.state, self.buffer, self.problem.slot_ids[set_], last)

    def committed(self):
        return self.begin()


class StepFold(Steps):
    def __init__(self, peer, p):
        super().__init__(p)
        self.peer = peer
        self.rings = Rings(p, RING if p.shape.kind == "kda" else p.shape.T)
        self.note = SHIMS + ("" if p.shape.kind == "kda" else "; 0.5.23 ships it for GDN and takes the circular ring")

    def verify(self, layer, set_, window):
        return verify(self.peer, self.problem, layer, set_, window, **self.rings.of(layer))

    def commit(self, set_, accepted):
        fold(self.peer, self.problem, self.rings, set_, accepted)

    def committed(self):
        return self.begin()


class StepCircular(Steps):
    """Outputs from checkpoint and history; folds rows whose ring is nearly full, 16-bit states on every commit."""

    precision = "bf16 operands"
    state_precision = "bf16 operands"

    def __init__(self, peer, p):
        super().__init__(p)
        self.kernels, s = peer.circular, p.shape
        lead = (p.layers, p.slots)
        self.d, self.d_low = (p.empty(*lead, s.HV, RING, V) for _ in range(2))
        self.k, self.k_low = (p.empty(*lead, s.H, RING, K) for _ in range(2))
        self.g = p.empty(*lead, s.HV, RING, dtype=torch.float32)
        self.write_pos, self.base = (p.empty(p.slots, dtype=torch.int32) for _ in range(2))
        self.is_flush = p.empty(p.slots, dtype=torch.int8)
        self.every = s.state != "f32"
        self.period = 1 if self.every else self.cycle()
        self.note = f"{SHIMS}; ring of {RING}" + (", folds on every commit with a 16-bit state" if self.every else "")

    def cycle(self):
        seen, live, i = {}, 0, 0
        s = self.problem.shape
        while live not in seen:
            seen[live] = i
            live += s.accepted
            live = 0 if live + 2 * s.T > RING else live
            i += 1
        return i - seen[live]

    def verify(self, layer, set_, window):
        p = self.problem
        out = torch.empty_like(window.v)
        self.kernels.gdn_replayssm_spec_decode(
            q=window.q, k=window.k, v=window.v, a=window.a, b=window.b, A_log=p.A_log, dt_bias=p.dt_bias,
            checkpoint_state=p.state[layer], d_cache=self.d[layer], k_cache=self.k[layer], g_cache=self.g[layer],
            rawv_cache=self.d_low[layer], rawk_cache=self.k_low[layer], beta_cache=None, out=out,
            query_start_loc=p.bounds, ssm_state_indices=p.slot_ids[set_], replay_indices=p.slot_ids[set_],
            write_pos=self.write_pos, cache_base=self.base, is_flush=self.is_flush, max_cache_len=RING,
            max_spec_len=p.shape.T, scale=K ** -0.5, null_block_id=-1, launch_mode="verify")
        return out

    def commit(self, set_, accepted):
        p = self.problem
        ids = p.slot_ids[set_]
        self.kernels.commit_gdn_replayssm_spec(
            write_pos=self.write_pos, cache_base=self.base, is_flush=self.is_flush, num_accepted=accepted,
            replay_indices=ids, max_cache_len=RING, max_spec_len=p.shape.T, fold_every_commit=self.every,
            null_block_id=-1)
        self.materialise(set_)

    def materialise(self, set_):
        p = self.problem
        ids = p.slot_ids[set_]
        self.kernels.commit_gdn_replayssm_circular(
            checkpoint_state=p.state, d_cache=self.d, k_cache=self.k, g_cache=self.g, d_residual_cache=self.d_low,
            k_residual_cache=self.k_low, state_batch_indices=ids, replay_indices=ids, write_pos=self.write_pos,
            cache_base=self.base, is_flush=self.is_flush, accept_lens=p.accepted, null_block_id=-1)

    def settle(self):
        self.is_flush.fill_(1)
        self.materialise(0)

    def begin(self):
        for cursor in (self.write_pos, self.base, self.is_flush):
            cursor.zero_()
        return super().begin()

    def committed(self):
        return Steps.begin(self) if self.every else None


class VerifyHistory(history.Verify, StepCircular):
    """verify alone, behind a history."""

    def __init__(self, peer, p):
        super().__init__(peer, p)
        if self.every or HISTORY + p.shape.T > RING or HISTORY + 2 * p.shape.T > RING:
            raise Missing("a history of this length is folded before the verify")
        self.remember(self.begin())
