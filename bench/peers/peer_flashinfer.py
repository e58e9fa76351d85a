"""FlashInfer's CuTe DSL kernels for GDN and KDA, compiled at run time by nvidia-cutlass-dsl: states per draft, a ring of
corrections (u) that the verify folds when it is nearly full, outputs alone, decoding.

Modules are imported without the packages around them. States are [slots, HV, V, K], as here, so that nothing is copied.
"""

import importlib.util
import logging
import os
import sys

import torch

import flashinfer_ring
import flashinfer_states
from loading import Missing, capability, folder_of, installed_folder, load, package, stand_in, version_of
from shapes import K
from states import Decode

SHIMS = "modules imported without the package around them"
RING_T = (4, 8)
NEEDS = {"cutlass": "nvidia-cutlass-dsl", "tvm_ffi": "apache-tvm-ffi", "cuda.bindings": "cuda-bindings"}


def is_there(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


class FlashInfer:
    name = "flashinfer"
    compiles_for_others = False  # its kernels stay in the process that compiled them: nothing to do beforehand

    def __init__(self, peers):
        place = folder_of(peers, "flashinfer")
        self.version = version_of("flashinfer-python", place)
        place = place or installed_folder("flashinfer-python", "flashinfer")
        dsl = os.path.join(place, "nvidia_cutlass_dsl", "dsl_packages")  # what the wheel's .pth file puts on the path
        if os.path.isdir(dsl) and dsl not in sys.path:
            sys.path.insert(0, dsl)
        missing = [wheel for module, wheel in NEEDS.items() if not is_there(module)]
        if missing:
            raise Missing(f"flashinfer {self.version} is there, {', '.join(missing)} is not")
        self.capability = capability()
        if 0 < self.capability[0] < 9:
            raise Missing(f"its kernels need sm_90 or later, found sm_{self.capability[0]}{self.capability[1]}")
        self.prepare(os.path.join(place, "flashinfer"))
        self.gdn = load("flashinfer.gdn_decode")
        self.gdn_bf16 = load("flashinfer.gdn_kernels.gdn_decode_bf16_state").gated_delta_rule_mtp
        self.gdn_outputs = load("flashinfer.gdn_kernels.gdn_decode_bf16_wy_output_only").gated_delta_rule_mtp
        self.gdn_ring = load("flashinfer.gdn_kernels.gdn_decode_bf16_wy_ucache").gated_delta_rule_mtp_ucache
        self.gdn_ring_flush = load(
            "flashinfer.gdn_kernels.gdn_decode_bf16_wy_ucache_flush").gated_delta_rule_mtp_ucache_flush
        self.kda = load("flashinfer.kda_kernels.recurrent_kda").run_recurrent_kda
        kda_outputs = load("flashinfer.kda_kernels.kda_decode_wy_output_only")
        self.kda_outputs, self.kda_ring = kda_outputs.kda_wy_output_only, kda_outputs.kda_recoverssm_verify

    def prepare(self, root):
        """Stand-ins for what asks about the machine, compiles other kernels or logs calls."""
        for name in ("", ".jit", ".gdn_kernels", ".kda_kernels"):
            package("flashinfer" + name, os.path.join(root, *name.split(".")[1:]))
        sys.modules["flashinfer"].__version__ = self.version
        stand_in("flashinfer.jit.core", logger=logging.getLogger("flashinfer"))
        stand_in("flashinfer.jit.cute_dsl_core",  # compiles in this process; nothing on disk
                 build_and_load_cute_dsl_kernel=lambda module, kernel, compile_fn, *files, **options: compile_fn())
        stand_in("flashinfer.jit.cpp_ext", is_cuda_version_at_least=lambda version: True)
        stand_in("flashinfer.utils", get_compute_capability=lambda device: self.capability)
        # Kernels that are compiled for sm_100 alone, behind a backend that is not asked for.
        for name in ("cake", "flash"):
            upper = {"cake": "CAKE_KDA", "flash": "FLASH_KDA"}[name]
            camel = {"cake": "CakeKDA", "flash": "FlashKDA"}[name]
            stand_in(f"flashinfer.jit.{name}_kda_decode", **{
                f"{upper}_DECODE_DIRECT_VARIANTS": (), f"{camel}DecodeTarget": object, f"{camel}DecodeVariant": object,
                f"get_{name}_kda_decode_module": None})
        for name in ("flashinfer.jit.cake_gdn", "flashinfer.api_logging"):
            sys.modules[name] = None  # as if it were not installed, which its modules allow for

    def works(self, shape):
        if shape.kind == "kda":
            return self.works_kda(shape)
        f32 = shape.state == "f32"
        ring = ("with fp32 states its ring needs sm_100 or sm_120, and this harness has no calls for those" if f32 else
                None if shape.T in RING_T else "its ring takes windows of 4 and 8 alone")
        history = "its ring with a history takes 16-bit states alone" if f32 else ring
        replay = "a fold with fp32 states needs sm_100 or sm_120, and this harness has no calls for those" if f32 else None
        return {"verify_states": None, "verify_outputs": None, "step_states": None, "decode": None, "verify_ring": ring,
                "verify_history": history, "step_circular": history, "fold": replay, "step_fold": replay}

    def works_kda(self, shape):
        reason = ("its KDA kernels take bf16 states alone" if shape.state == "f32" else
                  "its gate has one A_log for each key head" if shape.H != shape.HV else None)
        works = dict.fromkeys(("verify_states", "verify_outputs", "verify_ring", "step_states", "decode"), reason)
        works.update(dict.fromkeys(("fold", "step_fold"), "KDA's window is folded by the engine, not by FlashInfer"))
        works.update(dict.fromkeys(("verify_history", "step_circular"), "its ring with a history is GDN's alone"))
        return works

    def job(self, work, p):
        kda = p.shape.kind == "kda"
        made = {"verify_states": flashinfer_states.VerifyStates, "step_states": flashinfer_states.StepStates,
                "verify_outputs": flashinfer_states.VerifyOutputs, "fold": flashinfer_states.Replay,
                "step_fold": flashinfer_states.StepReplay, "decode": Decode,
                "verify_ring": flashinfer_ring.KdaRing if kda else flashinfer_ring.VerifyRing,
                "verify_history": flashinfer_ring.VerifyHistory, "step_circular": flashinfer_ring.StepCircular}[work](self, p)
        made.note = "; ".join(part for part in (SHIMS, made.note) if part)
        return made

    def update(self, job, window, states, indices, accepted):
        """States per draft, and decoding, where `accepted` is None."""
        if job.problem.shape.kind == "kda":
            return self.update_kda(job, window, states, indices, accepted)
        if accepted is None:
            return self.decode_gdn(job, window, states, indices)
        first, rows = job.starts[indices.data_ptr()]
        buffer = states.view(-1, window.T, *states.shape[1:])[rows]
        return self.verify_gdn(job, window, states, first, intermediate_states_buffer=buffer)

    def gates(self, p, window):
        return {"A_log": p.A_log, "dt_bias": p.dt_bias, "a": window.dense("a"), "b": window.dense("b")}

    def qkv(self, window):
        return {name: window.dense(name) for name in ("q", "k", "v")}

    def out(self, window):
        """Given, so that nothing is filled with zeros first."""
        return torch.empty_like(window.dense("v"))

    def verify_gdn(self, job, window, states, indices, **more):
        """The state stays as it is; the dtype of the state chooses the kernel."""
        call = (self.gdn.gated_delta_rule_mtp if job.problem.shape.state == "f32" else
                self.gdn.gated_delta_rule_decode_pretranspose)
        if job.problem.shape.state != "f32":
            more.update(state=None, backend="flashinfer")
        return call(**self.qkv(window), **self.gates(job.problem, window), initial_state=states,
                    initial_state_indices=indices, scale=K ** -0.5, output=self.out(window),
                    disable_state_update=True, **more)[0]

    def decode_gdn(self, job, window, states, indices):
        return self.gdn.gated_delta_rule_decode_pretranspose(
            **self.qkv(window), **self.gates(job.problem, window), state=None, initial_state=states,
            initial_state_indices=indices, scale=K ** -0.5, output=self.out(window), backend="flashinfer")[0]

    def of_kda(self, p):
        return {"A_log": p.A_log, "dt_bias": p.dt_bias.flatten(), "lower_bound": p.lower_bound}

    def update_kda(self, job, window, states, indices, accepted):
        spec = {} if accepted is None else {"num_spec_tokens": window.T - 1, "num_accepted_tokens": accepted}
        out = self.out(window)
        self.kda(q=window.q[None], k=window.k[None], v=window.v[None], g=window.a[None], beta=window.b[None],
                 **self.of_kda(job.problem), scale=K ** -0.5, initial_state=states, use_gate_in_kernel=True,
                 beta_is_logit=True, cu_seqlens=job.problem.bounds, ssm_state_indices=indices,
                 output=out.view(1, -1, *out.shape[2:]), **spec)
        return out
