"""FlashInfer's adapter of bench/peers: what it serves and why not, and its jobs over stand-ins for the kernels that follow
their documented contracts, so that indices, cursors and accepted counts are right before a GPU sees them. Needs torch and
Triton."""

import importlib.util
import os
import sys
import types
import unittest

import common

sys.path.insert(0, os.path.join(common.ROOT, "bench", "peers"))
import shapes  # noqa: E402

HAS_TORCH = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("triton") is not None
if HAS_TORCH:
    os.environ.setdefault("TRITON_INTERPRET", "1")
    import flashinfer_ring
    import loading
    import oracle
    import peer_flashinfer
    import torch
    from problem import Problem

    torch.set_num_threads(1)  # small tensors


def adapter(cls=None):
    cls = cls or peer_flashinfer.FlashInfer
    return cls.__new__(cls)


@unittest.skipUnless(HAS_TORCH, "needs torch and Triton")
class WorksTest(unittest.TestCase):
    def works(self, name):
        return adapter().works(shapes.parse(name))

    def test_every_shape_of_the_grid_has_an_answer_for_every_work(self):
        for shape in shapes.grid():
            works = adapter().works(shape)
            self.assertEqual(set(works), set(shapes.BESIDE))
            self.assertTrue(all(reason is None or len(reason) > 10 for reason in works.values()))

    def test_reasons(self):
        served = {work for work, reason in self.works("gdn_bf16_t4_b8_h16x32").items() if reason is None}
        self.assertEqual(served, set(shapes.BESIDE))
        two = self.works("gdn_bf16_t2_b8_h16x32")
        self.assertIn("windows of 4 and 8", two["verify_ring"])
        self.assertIsNone(two["verify_outputs"])
        f32 = self.works("gdn_f32_t4_b8_h16x32")
        self.assertEqual([work for work, reason in f32.items() if reason is None],
                         ["verify_states", "verify_outputs", "step_states", "decode"])
        self.assertIn("sm_100", f32["verify_ring"])
        self.assertIn("16-bit states", f32["step_circular"])
        self.assertIn("sm_100", f32["fold"])
        self.assertIn("bf16 states", self.works("kda_f32_t4_b8_h32x32")["decode"])
        kda = self.works("kda_bf16_t4_b8_h32x32")
        self.assertIsNone(kda["verify_ring"])
        self.assertIn("engine", kda["fold"])
        self.assertIn("A_log", self.works("kda_bf16_t4_b8_h16x32")["decode"])

    def test_what_is_missing_is_named(self):
        old = peer_flashinfer.NEEDS
        peer_flashinfer.NEEDS = {"no_such_module.part": "no-such-wheel", "os": "there"}
        self.addCleanup(setattr, peer_flashinfer, "NEEDS", old)
        folder = self.enterContext(common_folder())
        os.makedirs(os.path.join(folder, "flashinfer", "flashinfer"))
        with open(os.path.join(folder, "flashinfer", "VERSION"), "w", encoding="utf-8") as file:
            file.write("9.9")
        with self.assertRaisesRegex(loading.Missing, "flashinfer 9.9 is there, no-such-wheel is not"):
            peer_flashinfer.FlashInfer(folder)
        with self.assertRaisesRegex(loading.Missing, "neither under --peers nor installed"):
            peer_flashinfer.FlashInfer(None)


def common_folder():
    import tempfile
    return tempfile.TemporaryDirectory(prefix="ringfold_flashinfer_")


def recurrence(p, q, k, v, a, b, state):
    """Outputs and states of all rows."""
    window = types.SimpleNamespace(dense={"q": q, "k": k, "v": v, "a": a, "b": b}.__getitem__)
    return oracle.run(p, window, list(range(q.shape[0])), state)


def normalised(p, k):
    k = k.double()
    return (k / (k.square().sum(-1, keepdim=True) + oracle.EPS).sqrt()).repeat_interleave(p.shape.HV // p.shape.H, 2)


class Kernels:
    """Stand-ins with the contracts of FlashInfer's functions, computed by the oracle."""

    def __init__(self, p):
        self.p = p

    def mtp(self, q, k, v, a, b, initial_state, initial_state_indices, intermediate_states_buffer=None, output=None,
            disable_state_update=None, **more):
        out, states = recurrence(self.p, q, k, v, a, b, initial_state[initial_state_indices.long()])
        assert disable_state_update
        if intermediate_states_buffer is not None:
            intermediate_states_buffer.copy_(states)
        output.copy_(out)
        return output, initial_state

    def decode(self, q, k, v, a, b, initial_state, initial_state_indices, output, **more):
        out, states = recurrence(self.p, q, k, v, a, b, initial_state[initial_state_indices.long()])
        initial_state[initial_state_indices.long()] = states[:, -1].to(initial_state.dtype)
        output.copy_(out)
        return output, initial_state

    def outputs(self, q, k, v, a, b, initial_state_source, initial_state_indices, **more):
        return recurrence(self.p, q, k, v, a, b, initial_state_source[initial_state_indices.long()])[0]

    def replay(self, q, k, v, a, b, initial_state_source, initial_state_indices, accepted_steps, disable_output, **more):
        ids = initial_state_indices.long()
        states = recurrence(self.p, q, k, v, a, b, initial_state_source[ids])[1]
        initial_state_source[ids] = states[torch.arange(len(ids)), accepted_steps.long()].to(initial_state_source.dtype)

    def ring(self, q, k, v, a, b, initial_state_source, initial_state_indices, k_cache, u_cache, g_cache, hist_len,
             output, cache_base=None, flush_min=None, restart_hist_on_flush=None, **more):
        """One row after the other: the state with its history, the window, and what it leaves in the ring."""
        p, rows = self.p, k_cache.shape[-2]
        assert rows == (flashinfer_ring.HELD if cache_base is None else flashinfer_ring.CIRCULAR_ROWS)
        assert restart_hist_on_flush in (None, False)
        group = p.shape.HV // p.shape.H
        for i, slot in enumerate(initial_state_indices.tolist()):
            live, base = int(hist_len[i]), 0 if cache_base is None else int(cache_base[i])
            assert live + q.shape[1] <= rows and live <= flashinfer_ring.HELD
            at = (base + torch.arange(live)) % rows
            g = g_cache[slot][:, at].double()
            last = g[:, -1:] if live else torch.zeros(p.shape.HV, 1, dtype=torch.float64)
            keys = k_cache[slot].repeat_interleave(group, 0)[:, at].double()
            state = initial_state_source[slot].double() * last.exp()[..., None] + torch.einsum(
                "hj,hjv,hjk->hvk", (last - g).exp(), u_cache[slot][:, at].double(), keys)
            out, states = recurrence(p, *(x[i:i + 1] for x in (q, k, v, a, b)), state[None])
            output[i] = out[0]
            if flush_min is not None and live >= flush_min:
                initial_state_source[slot] = state.to(initial_state_source.dtype)
                last = torch.zeros_like(last)
            decay = oracle.gates(p, a[i], b[i])[0]
            before = torch.cat([state[None], states[0][:-1]])
            unit = normalised(p, k[i:i + 1])[0]
            u = torch.einsum("thvk,thk->thv", states[0] - decay.exp()[..., None, None] * before, unit) / unit.square().sum(-1, keepdim=True)
            at = (base + live + torch.arange(q.shape[1])) % rows
            k_cache[slot][:, at] = unit[:, ::group].transpose(0, 1).to(k_cache.dtype)
            u_cache[slot][:, at] = u.transpose(0, 1).to(u_cache.dtype)
            g_cache[slot][:, at] = (last + decay.cumsum(0).T).to(g_cache.dtype)
        return output

    def kda(self, q, k, v, g, beta, initial_state, cu_seqlens, ssm_state_indices, output, use_gate_in_kernel,
            beta_is_logit, num_spec_tokens=None, num_accepted_tokens=None, **more):
        assert use_gate_in_kernel and beta_is_logit
        B = len(cu_seqlens) - 1
        ids = ssm_state_indices.long().view(B, -1)
        first = ids[:, 0] if num_accepted_tokens is None else ids[torch.arange(B), num_accepted_tokens.long() - 1]
        assert ids.shape[1] == (1 if num_spec_tokens is None else num_spec_tokens + 1)
        dense = [x[0].view(B, -1, *x.shape[2:]) for x in (q, k, v, g, beta)]
        out, states = recurrence(self.p, *dense, initial_state[first])
        initial_state[ids] = states.to(initial_state.dtype)
        output.copy_(out.view(output.shape))
        return output, None

    def kda_outputs(self, q, k, v, g, beta, initial_state_source, initial_state_indices, **more):
        return self.outputs(q, k, v, g, beta, initial_state_source, initial_state_indices)

    def kda_ring(self, q, k, v, g, beta, checkpoint_state, correction_cache, kg_cache, query_start_loc, state_indices,
                 spec_query_len, out, null_min, **more):
        dense = [x[0].view(-1, spec_query_len, *x.shape[2:]) for x in (q, k, v, g, beta)]
        assert null_min == 0 and kg_cache.shape[-1] == 2 * shapes.K and len(query_start_loc) == len(state_indices) + 1
        out.copy_(self.outputs(*dense, checkpoint_state, state_indices).view(out.shape))


@unittest.skipUnless(HAS_TORCH, "needs torch and Triton")
class JobsTest(unittest.TestCase):
    def peer(self, p):
        kernels, peer = Kernels(p), adapter()
        decode = kernels.decode
        peer.gdn = types.SimpleNamespace(
            gated_delta_rule_mtp=kernels.mtp,
            gated_delta_rule_decode_pretranspose=lambda q, **more: (kernels.mtp if q.shape[1] > 1 else decode)(q, **more))
        peer.gdn_bf16, peer.gdn_outputs, peer.gdn_ring = kernels.replay, kernels.outputs, kernels.ring
        peer.gdn_ring_flush, peer.kda = kernels.ring, kernels.kda
        peer.kda_outputs, peer.kda_ring = kernels.kda_outputs, kernels.kda_ring
        return peer

    def problem(self, kind, state, T, layers=2):
        H, HV = {"gdn": (1, 2), "kda": (2, 2)}[kind]
        return Problem(shapes.Shape(kind, state, T, 2, H, HV), "cpu", layers=layers, slots=5, cold_bytes=0,
                       dtype=torch.float32)

    def test_every_work(self):
        from jobs import Refused
        for kind, state, T in (("gdn", "f32", 4), ("gdn", "bf16", 4), ("gdn", "bf16", 8), ("gdn", "bf16", 2),
                               ("kda", "bf16", 4)):
            for work, reason in adapter().works(shapes.Shape(kind, state, T, 2, 2, 2)).items():
                if reason:
                    continue
                with self.subTest(kind=kind, state=state, T=T, work=work):
                    p = self.problem(kind, state, 1 if work == "decode" else T)
                    job = self.peer(p).job(work, p)
                    try:
                        job.checked()
                    except Refused as error:
                        self.fail(str(error))
                    self.assertTrue(job.note)
                    self.assertGreater(job.enqueue(), 0)

    def test_acceptance_that_varies(self):
        import accuracy
        for work in ("step_states", "step_fold", "step_circular"):
            with self.subTest(work=work):
                p = self.problem("gdn", "bf16", 4, layers=1)
                _, out_error, state_error, _ = accuracy.measure(self.peer(p).job(work, p), 120)
                self.assertLess(out_error, 0.01)
                self.assertLess(state_error, 0.01)

    def test_cycles_of_the_ring(self):
        for T, period in ((4, 5), (8, 2)):
            p = self.problem("gdn", "bf16", T)
            self.assertEqual(self.peer(p).job("step_circular", p).period, period)


if __name__ == "__main__":
    unittest.main(verbosity=2)
