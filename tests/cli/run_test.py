"""ringfold run against an independent computation in double precision, and against itself, bit for bit."""

import random

import casefile
import common
from casefile import Tensor
from simulate import Simulator

GATES = {"gdn": {"mixer": "gdn"}, "kda": {"mixer": "kda"}, "kda_safe": {"mixer": "kda", "lower_bound": -5.0}}


class Maker:
    """Random tensors of one case."""

    def __init__(self, seed, mixer, slots, H, HV, K, V, layers=None, state="F32", act="F32", gates="F32"):
        self.random, self.case = random.Random(seed), {"version": 1, **GATES[mixer], "steps": []}
        self.H, self.HV, self.K, self.V, self.act, self.gates = H, HV, K, V, act, gates
        self.lead = [] if layers is None else [layers]
        self.gate_dims = [HV, K] if self.case["mixer"] == "kda" else [HV]
        self.tensors = {"state": self.normal(state, [slots, HV, V, K]), "A_log": self.normal("F32", [HV], 0.5),
                        "dt_bias": self.normal("F32", self.gate_dims, 0.5)}

    def normal(self, dtype, shape, sigma=1.0):
        shape = self.lead + shape
        count = 1
        for size in shape:
            count *= size
        return Tensor(dtype, shape, [self.random.gauss(0, sigma) for _ in range(count)])

    def add(self, op, **ints):
        index = len(self.case["steps"])
        self.case["steps"].append({"op": op})
        for name, values in ints.items():
            self.tensors[f"{index}.{name}"] = Tensor("I32", [len(values)], values)
        return index

    def window(self, op, slot_ids, tokens, cu_seqlens=None):
        extra = {} if cu_seqlens is None else {"cu_seqlens": cu_seqlens}
        i = self.add(op, slot_ids=slot_ids, **extra)
        self.tensors[f"{i}.q"] = self.normal(self.act, [tokens, self.H, self.K])
        self.tensors[f"{i}.k"] = self.normal(self.act, [tokens, self.H, self.K])
        self.tensors[f"{i}.v"] = self.normal(self.act, [tokens, self.HV, self.V])
        self.tensors[f"{i}.a"] = self.normal(self.gates, [tokens, *self.gate_dims])
        self.tensors[f"{i}.b"] = self.normal(self.gates, [tokens, self.HV])
        return i


def every_operation(maker):
    """One case with all operations, refused and null rows included, on six slots."""
    maker.window("verify", [0, 5, -1, 2], 8, [0, 3, 4, 6, 8])
    maker.add("commit", slot_ids=[0, 5, -7, 2, 3], accept=[2, 1, 0, 0, 1])
    maker.window("verify", [0, 5, 1], 9)
    maker.add("copy", src=[0, 1, 5, -1, 6], dst=[1, 0, 4, 2, 3])
    maker.add("commit", slot_ids=[0, 1, 4, 5], accept=[3, 1, 4, 2], track_slots=[2, -1, -1, 3], track_steps=[0, 2, -1, 1])
    maker.window("verify_snapshot", [5, 1, 9], 6)
    maker.add("commit", accept=[1, 2, 0])
    maker.window("decode", [3, -1, 0, 6], 4)
    maker.window("verify", [2, 3], 4)
    maker.window("verify", [2, 3], 3, [0, 0, 3])
    maker.add("reset", slot_ids=[2, -1, 6, 1])
    maker.add("commit", slot_ids=[2, 3, 3 - 6], accept=[1, 3, 5])
    maker.add("commit", slot_ids=[3], accept=[1])
    return maker


class RunTest(common.CliTest):
    def execute(self, case, tensors, *arguments):
        casefile.write_case(self.path("case.safetensors"), case, tensors)
        self.ok("run", self.path("case.safetensors"), "-o", self.path("out.safetensors"), *arguments)
        return casefile.read(self.path("out.safetensors"))

    def compare(self, maker):
        out = self.execute(maker.case, maker.tensors)
        expected = Simulator(maker.case, maker.tensors).expected
        self.assertEqual(sorted(out), sorted(expected))
        compared = 0
        for name, want in expected.items():
            got = out[name].values
            self.assertEqual(len(got), len(want), name)
            if name.endswith(".status"):
                self.assertEqual(got, want, name)
                continue
            for at, (value, (reference, bound)) in enumerate(zip(got, want)):
                self.assertLessEqual(abs(value - reference), bound, f"{name}[{at}]: {value} for {reference} +- {bound}")
                compared += 1
        self.assertGreater(compared, 50)
        return out

    def test_gdn_fp32(self):
        self.compare(every_operation(Maker(1, "gdn", slots=6, H=1, HV=2, K=4, V=3)))

    def test_gdn_layers_bf16_inputs(self):
        self.compare(every_operation(Maker(2, "gdn", slots=6, H=2, HV=6, K=5, V=2, layers=3, act="BF16", gates="BF16")))

    def test_kda_softplus_layers(self):
        self.compare(every_operation(Maker(3, "kda", slots=6, H=2, HV=2, K=9, V=3, layers=2, gates="F16")))

    def test_kda_safe_fp16(self):
        self.compare(every_operation(Maker(4, "kda_safe", slots=6, H=1, HV=3, K=3, V=5, act="F16")))

    def test_bf16_state_both_roundings(self):
        for rounding in ("per_commit", "per_token"):
            maker = Maker(5, "gdn", slots=6, H=1, HV=2, K=4, V=3, state="BF16", act="BF16")
            maker.case["state_rounding"] = rounding
            self.compare(every_operation(maker))

    def test_optional_keys(self):
        maker = Maker(6, "gdn", slots=6, H=1, HV=1, K=4, V=4, state="F16")
        maker.case.update(softplus_beta=0.5, softplus_threshold=0.25, scale=0.3, qk_l2norm=False, numerics="exact",
                          fold_policy="on_commit", lower_bound=None, ring_rows=16)
        every_operation(maker)
        for name, tensor in maker.tensors.items():  # keys without l2norm have to be short, or the state grows
            if name.endswith(".k"):
                maker.tensors[name] = Tensor(tensor.dtype, tensor.shape, [value / 4 for value in tensor.values])
        self.compare(maker)

    def test_defaults_are_the_documented_values(self):
        maker = every_operation(Maker(7, "kda", slots=6, H=1, HV=2, K=4, V=3))
        short = self.execute(maker.case, maker.tensors)
        maker.case.update(softplus_beta=1.0, softplus_threshold=20.0, lower_bound=None, scale=None, qk_l2norm=True,
                          numerics="exact", state_rounding="per_commit", fold_policy="on_commit", ring_rows=None)
        full = self.execute(maker.case, maker.tensors)
        self.assertEqual({n: t.bytes for n, t in short.items()}, {n: t.bytes for n, t in full.items()})

    def test_fold_policies_change_no_byte(self):
        for seed, state, mixer in ((20, "F32", "gdn"), (21, "BF16", "kda"), (22, "F16", "kda_safe")):
            maker = every_operation(Maker(seed, mixer, slots=6, H=1, HV=2, K=6, V=3, layers=2, state=state, act="BF16"))
            expected = self.execute(maker.case, maker.tensors)
            for policy in ("on_next_verify", "lazy"):
                for rows in (None, 4, 5, 7, 32):  # the longest window has three tokens
                    maker.case.update(fold_policy=policy, ring_rows=rows)
                    for impl in ([], ["--impl", "reference"]):
                        out = self.execute(maker.case, maker.tensors, *impl)
                        self.assertEqual(sorted(out), sorted(expected))
                        for name, tensor in expected.items():
                            self.assertEqual(out[name].bytes, tensor.bytes, (name, state, policy, rows, impl))

    def test_fold_policies_against_double(self):
        maker = every_operation(Maker(23, "gdn", slots=6, H=2, HV=2, K=5, V=4, layers=2))
        maker.case.update(fold_policy="lazy", ring_rows=9)
        self.compare(maker)

    def test_a_window_without_room_behind_a_history_is_refused(self):
        maker = Maker(24, "gdn", slots=3, H=1, HV=1, K=4, V=4)
        maker.case.update(fold_policy="lazy", ring_rows=3)
        maker.window("verify", [0, 1], 5, [0, 2, 5])
        maker.add("commit", slot_ids=[0, 1], accept=[2, 1])
        maker.window("verify", [0, 1], 3, [0, 2, 3])
        maker.add("commit", slot_ids=[0, 1], accept=[2, 1])
        out = self.execute(maker.case, maker.tensors)
        self.assertEqual([out[f"{i}.status"].values for i in range(4)], [[0, 7], [0, 5], [0, 0], [0, 0]])

    def test_window_longer_than_the_ring_is_refused(self):
        maker = Maker(8, "gdn", slots=3, H=1, HV=1, K=4, V=4)
        maker.case["ring_rows"] = 2
        maker.window("verify", [0, 1], 5, [0, 2, 5])
        maker.add("commit", slot_ids=[0, 1], accept=[2, 1])
        out = self.compare(maker)
        self.assertEqual(out["0.status"].values, [0, 7])
        self.assertEqual(out["1.status"].values, [0, 5])

    def test_duplicates_are_refused(self):
        maker = Maker(9, "gdn", slots=3, H=1, HV=1, K=4, V=4)
        maker.window("verify", [1, 1, 2], 3)
        maker.add("copy", src=[0, 1, 2], dst=[2, 2, 1])
        out = self.execute(maker.case, maker.tensors)
        self.assertEqual(out["0.status"].values, [3, 3, 0])
        self.assertEqual(out["1.status"].values, [3, 3, 0])

    def test_bad_window_bounds_are_row_statuses(self):
        maker = Maker(10, "gdn", slots=3, H=1, HV=1, K=4, V=4)
        maker.window("verify", [0, 1, 2], 4, [0, 2, 1, 4])
        status = self.execute(maker.case, maker.tensors)["0.status"].values
        self.assertEqual(status[1], 10)

    def test_verify_and_commit_are_decode_bit_for_bit(self):
        """Tokens of two windows with rejected tails, against the accepted tokens decoded one by one."""
        for gate in GATES:
            whole = Maker(11, gate, slots=2, H=2, HV=4, K=8, V=6, layers=2, act="BF16")
            first = whole.window("verify", [0, 1], 8)
            whole.add("commit", slot_ids=[0, 1], accept=[3, 1])
            second = whole.window("verify", [0, 1], 6)
            whole.add("commit", slot_ids=[0, 1], accept=[0, 3])
            single = Maker(11, gate, slots=2, H=2, HV=4, K=8, V=6, layers=2, act="BF16")
            for step, slot, token in [(first, 0, 0), (first, 0, 1), (first, 0, 2), (first, 1, 4), (second, 1, 3),
                                      (second, 1, 4), (second, 1, 5)]:
                i = single.add("decode", slot_ids=[slot])
                for name in "qkvab":
                    source = whole.tensors[f"{step}.{name}"]
                    values = [x for layer in range(2) for x in source.at(layer, token)]
                    single.tensors[f"{i}.{name}"] = Tensor(source.dtype, [2, 1, *source.shape[2:]], values)
            got, want = self.execute(whole.case, whole.tensors), self.execute(single.case, single.tensors)
            self.assertEqual(got["state"].bytes, want["state"].bytes, gate)
            for layer in range(2):
                self.assertEqual(got[f"{first}.o"].at(layer, 4), want["3.o"].at(layer, 0), gate)
                self.assertEqual(got[f"{second}.o"].at(layer, 5), want["6.o"].at(layer, 0), gate)

    def test_ring_dump_holds_the_raw_inputs(self):
        for mixer, layers in (("gdn", None), ("kda", 2)):
            maker = Maker(12, mixer, slots=3, H=2, HV=4, K=4, V=3, layers=layers, act="BF16")
            maker.window("verify", [2, 0], 4)
            out = self.execute(maker.case, maker.tensors, "--dump-ring")
            lead = [] if layers is None else [layers]
            self.assertEqual(out["ring.k"].shape, [*lead, 3, 2, 2, 4])
            self.assertEqual(out["ring.v"].shape, [*lead, 3, 2, 4, 3])
            self.assertEqual(out["ring.g"].shape, [*lead, 3, 2, 4] + ([4] if mixer == "kda" else []))
            self.assertEqual(out["ring.beta"].shape, [*lead, 3, 2, 4])
            for name in "kv":
                for layer in range(layers or 1):
                    at = [] if layers is None else [layer]
                    source, ring = maker.tensors[f"0.{name}"], out[f"ring.{name}"]
                    self.assertEqual(ring.at(*at, 2, 1), source.at(*at, 1))
                    self.assertEqual(ring.at(*at, 0, 0), source.at(*at, 2))
            self.assertEqual(out["ring.beta"].dtype, "F32")

    def test_implementations_and_threads_agree_bit_for_bit(self):
        names = self.ok_json("info", "--json")["implementations"]
        self.assertGreaterEqual(len(names), 2)
        maker = every_operation(Maker(13, "kda_safe", slots=6, H=2, HV=6, K=12, V=7, layers=2, act="BF16", state="BF16"))
        want = {n: t.bytes for n, t in self.execute(maker.case, maker.tensors, "--dump-ring").items()}
        for name in names:
            for threads in (1, 3):
                got = self.execute(maker.case, maker.tensors, "--dump-ring", "--impl", name, "--threads", threads)
                self.assertEqual({n: t.bytes for n, t in got.items()}, want, f"{name}, {threads} threads")

    def test_json_summary(self):
        maker = every_operation(Maker(14, "gdn", slots=6, H=1, HV=1, K=2, V=2))
        casefile.write_case(self.path("c"), maker.case, maker.tensors)
        summary = self.ok_json("run", self.path("c"), "-o", self.path("o"), "--json")
        out = casefile.read(self.path("o"))
        self.assertEqual([step["op"] for step in summary["steps"]], [step["op"] for step in maker.case["steps"]])
        for i, step in enumerate(summary["steps"]):
            self.assertEqual(step["status"], out[f"{i}.status"].values)

    def test_unused_tensor_is_noted(self):
        maker = Maker(15, "gdn", slots=1, H=1, HV=1, K=2, V=2)
        maker.window("decode", [0], 1)
        maker.tensors["0.accept"] = Tensor("I32", [1], [1])
        casefile.write_case(self.path("c"), maker.case, maker.tensors)
        result = common.run("run", self.path("c"), "-o", self.path("o"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("0.accept", result.stderr)


if __name__ == "__main__":
    common.main()
