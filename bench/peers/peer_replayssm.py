"""ReplaySSM, the Triton kernels of its authors (a vLLM tree): circular ring with corrected values, GDN alone."""

import os

import torch
import triton
import triton.language

import history
from jobs import Calls, Steps
from loading import Missing, capability, folder_of, load, package, stand_in, version_of
from shapes import HISTORY, K, V

BASE_BLOCK = 16  # its default for the history
SHIMS = "stand-ins for vllm.triton_utils and vllm.platforms"


class Platform:
    @staticmethod
    def is_device_capability_family(family):
        return capability()[0] == family // 10


class ReplaySSM:
    name = "replayssm"
    compiles_for_others = True

    def __init__(self, peers):
        place = folder_of(peers, "replayssm")
        if not place:
            raise Missing("no folder replayssm under --peers (it is a branch of vLLM; nothing is installed by that name)")
        self.version = version_of("replayssm", place)
        layers = os.path.join(place, "vllm", "model_executor", "layers")
        for name, path in (("vllm", place + "/vllm"), ("vllm.model_executor", place + "/vllm/model_executor"),
                           ("vllm.model_executor.layers", layers), ("vllm.model_executor.layers.fla", layers + "/fla"),
                           ("vllm.model_executor.layers.fla.ops", layers + "/fla/ops"),
                           ("vllm.model_executor.layers.mamba", layers + "/mamba"),
                           ("vllm.model_executor.layers.mamba.ops", layers + "/mamba/ops")):
            package(name, path)
        stand_in("vllm.triton_utils", triton=triton, tl=triton.language)
        stand_in("vllm.platforms", current_platform=Platform)
        self.spec = load("vllm.model_executor.layers.fla.ops.gdn_replayssm_spec_decode")
        self.decode = load("vllm.model_executor.layers.fla.ops.fused_recurrent_replayssm")

    def works(self, shape):
        reason = None if shape.kind == "gdn" else "GDN alone"
        return {"verify_history": reason, "step_circular": reason, "decode": reason}

    def job(self, work, p):
        return {"verify_history": VerifyHistory, "step_circular": StepCircular, "decode": Decode}[work](self, p)


class StepCircular(Steps):
    """Two launches for each layer, one for rows that fold and one for the others; one launch moves the cursors."""

    precision = "bf16 operands"

    def __init__(self, peer, p):
        super().__init__(p)
        self.kernels, s = peer.spec, p.shape
        self.length = BASE_BLOCK + s.T
        buffer = 1 << (self.length - 1).bit_length()
        lead = (p.layers, p.slots)
        self.d, self.k = p.empty(*lead, s.HV, buffer, V), p.empty(*lead, s.H, buffer, K)
        self.g = p.empty(*lead, s.HV, buffer, dtype=torch.float32)
        self.write_pos, self.base = (p.empty(p.slots, dtype=torch.int32) for _ in range(2))
        self.is_flush = p.empty(p.slots, dtype=torch.int8)
        self.period = self.cycle()
        self.note = f"{SHIMS}; ring of {self.length}" + ("; its fold rounds fp32 states to bf16" if s.state == "f32" else "")

    def cycle(self):
        seen, state, i = {}, (0, False), 0
        s = self.problem.shape
        while state not in seen:
            seen[state] = i
            live, flush = state
            live = s.accepted if flush else live + s.accepted
            state = live, live + 2 * s.T > self.length
            i += 1
        return i - seen[state]

    def verify(self, layer, set_, window):
        p = self.problem
        out = torch.empty_like(window.v)
        self.kernels.gdn_replayssm_spec_decode(
            mixed_qkv=window.mixed, a=window.a, b=window.b, A_log=p.A_log, dt_bias=p.dt_bias,
            checkpoint_state=p.state[layer], d_cache=self.d[layer], k_cache=self.k[layer], g_cache=self.g[layer],
            out=out, query_start_loc=p.bounds, ssm_state_indices=p.slot_ids[set_], write_pos=self.write_pos,
            cache_base=self.base, is_flush=self.is_flush, max_cache_len=self.length, max_spec_len=p.shape.T,
            scale=K ** -0.5, use_qk_l2norm_in_kernel=True)
        return out

    def commit(self, set_, accepted):
        p = self.problem
        self.kernels.commit_gdn_replayssm_spec(
            write_pos=self.write_pos, cache_base=self.base, is_flush=self.is_flush, num_accepted=accepted,
            state_batch_indices=p.slot_ids[set_], max_cache_len=self.length, max_spec_len=p.shape.T)

    def settle(self):
        """A verify of rows that are to fold puts their history into the state."""
        self.is_flush.fill_(1)
        for layer in range(self.problem.layers):
            self.verify(layer, 0, self.problem.windows[0])

    def begin(self):
        for cursor in (self.write_pos, self.base, self.is_flush):
            cursor.zero_()
        return super().begin()


class VerifyHistory(history.Verify, StepCircular):
    """verify alone, behind a history; both launches, as a step has them."""

    def __init__(self, peer, p):
        super().__init__(peer, p)
        if HISTORY + 2 * p.shape.T > self.length:
            raise Missing("a history of this length is folded before the verify")
        self.remember(self.begin())


class Decode(Calls):
    """Cached decoding of one token: the mean over its ring of 16, of which the last call stores the state."""

    precision = "bf16 operands"
    LENGTH = 16

    def __init__(self, peer, p):
        super().__init__(p)
        self.kernel, s = peer.decode.fused_recurrent_gated_delta_rule_replayssm, p.shape
        lead = (p.layers, p.slots)
        self.d, self.k = p.empty(*lead, s.HV, self.LENGTH, V), p.empty(*lead, s.H, self.LENGTH, K)
        self.g = p.empty(*lead, s.HV, self.LENGTH, dtype=torch.float32)
        self.positions = [torch.full((s.B,), i, device=p.device, dtype=torch.int32) for i in range(self.LENGTH)]
        self.out = p.empty(s.B, 1, s.HV, V)
        self.note = f"{SHIMS}; mean over its ring of {self.LENGTH}, with the store"

    def token(self, i, position):
        p = self.problem
        layer, set_ = p.place(i)
        window = p.window(i)
        self.kernel(mixed_qkv=window.mixed, a=window.a, b=window.b, A_log=p.A_log, dt_bias=p.dt_bias, scale=K ** -0.5,
                    initial_state=p.state[layer], d_cache=self.d[layer], k_cache=self.k[layer], g_cache=self.g[layer],
                    out=self.out, ssm_state_indices=p.slot_ids[set_], write_pos=self.positions[position],
                    use_qk_l2norm_in_kernel=True)
        return self.out

    def call(self, i):
        return self.token(i, 0)

    def enqueue(self):
        calls = 0
        for position in range(self.LENGTH):
            for i in range(self.problem.calls):
                self.token(i, position)
                calls += 1
        return calls
