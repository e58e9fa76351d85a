"""Help, usage errors and JSON of every command."""

import os

import casefile
import common
from malformed_test import good_case

COMMANDS = ["run", "check", "explain", "bench", "info", "generate"]


class CommandsTest(common.CliTest):
    def case(self):
        casefile.write_case(self.path("case"), *good_case())
        return self.path("case")

    def test_help_with_examples(self):
        text = self.ok("--help")
        for command in COMMANDS:
            self.assertIn(command, text)
        for command in COMMANDS:
            text = self.ok(command, "--help")
            self.assertIn("Examples:", text, command)
            self.assertIn(f"ringfold {command}", text, command)
            self.assertIn("--json", text, command)

    def test_version(self):
        self.assertEqual(self.ok("--version").strip(), self.ok_json("info", "--json")["version"])

    def test_usage_errors(self):
        self.refused()
        self.refused("fold")
        self.refused("--nope")
        for command in COMMANDS:
            self.refused(command, "--no-such-option", says=["--no-such-option"])

    def test_run_usage(self):
        case, out = self.case(), self.path("out")
        self.refused("run", says=["case"])
        self.refused("run", case, says=["output"])
        self.refused("run", self.path("none"), "-o", out, says=["none", "No such file"])
        self.refused("run", self.folder, "-o", out, says=["regular file"])
        self.refused("run", case, "-o", os.path.join(self.folder, "no", "out"), says=["cannot be written"])
        self.refused("run", case, "-o", self.folder, says=["regular file"])
        self.refused("run", case, "-o", case, says=["other than the case file"])
        self.refused("run", case, "-o", out, "--impl", "warp9", says=["warp9"])
        self.refused("run", case, "-o", out, "--device", "tpu", says=["tpu"])
        cuda = self.ok_json("info", "--json")["cuda"]
        if not cuda["devices"]:
            self.refused("run", case, "-o", out, "--device", "cuda", says=["--device cuda", cuda["reason"]])
            self.refused("check", "--device", "cuda", says=["--device cuda", cuda["reason"]])
        self.refused("run", case, "-o", out, "--threads", "many", says=["threads"])
        self.refused("run", case, "-o", out, "--threads", "-1", says=["threads"])
        self.assertFalse(os.path.exists(out))

    def test_info(self):
        info = self.ok_json("info", "--json")
        self.assertIn("reference", info["implementations"][-1])
        cuda = info["cuda"]
        self.assertEqual(bool(cuda["reason"]), not cuda["devices"], "a device, or why there is none")
        self.assertEqual(bool(cuda["toolkit"]), cuda["built_in"])
        self.assertFalse(cuda["devices"] and not cuda["built_in"])
        self.assertGreaterEqual(info["threads"], 1)
        text = self.ok("info")
        for name in info["implementations"]:
            self.assertIn(name, text)
        self.assertIn("CUDA", text)

    def test_explain(self):
        result = self.ok_json("explain", "--shape", "16,32,128,128", "--state", "bf16", "--act", "bf16", "--window", "4",
                              "--rows", "32", "--layers", "30", "--json")
        self.assertEqual(result["per_layer"]["state_bytes"], 32 * 128 * 128 * 2)
        row = (16 * 128 + 32 * 128) * 2 + 2 * 32 * 4  # k and v in bf16, g and beta in fp32
        self.assertEqual(result["per_layer"]["ring_row_bytes"], row)
        self.assertEqual(result["per_layer"]["ring_bytes"], 4 * row)
        self.assertEqual(result["per_layer"]["snapshot_bytes"], 4 * 32 * 128 * 128 * 2)
        channels = (2 * 16 + 32) * 128 * 2  # bytes of q, k and v
        self.assertEqual(result["per_layer"]["conv_state_bytes"], 3 * channels)
        self.assertEqual(result["per_layer"]["conv_ring_row_bytes"], channels)
        self.assertEqual(result["per_layer"]["conv_ring_bytes"], 4 * channels)
        self.assertEqual(result["per_request"]["slot_bytes"], 30 * (32 * 128 * 128 * 2 + 4 * row + 7 * channels))
        traffic = result["traffic_per_step"]
        self.assertEqual(sorted(traffic), ["lazy", "on_commit", "on_next_verify", "snapshot"])
        self.assertLess(traffic["lazy"], traffic["on_next_verify"])
        self.assertLess(traffic["on_next_verify"], traffic["on_commit"])
        self.assertLess(traffic["on_commit"], traffic["snapshot"])
        self.assertEqual(result["plan"]["impl"], self.ok_json("info", "--json")["implementations"][0])
        self.assertTrue(all(candidate["reason"] for candidate in result["candidates"]))

    def test_explain_shows_both_forms_of_the_gate(self):
        kimi = ("explain", "--preset", "kimi-linear", "--window", "4", "--json")
        g, a = self.ok_json(*kimi), self.ok_json(*kimi, "--ring-a", "bf16")
        rest = (2 * 32 * 128) * 2 + 32 * 4  # k and v in bf16, beta in fp32
        for result, own, other in ((g, "ring_bytes", "ring_bytes_with_a"), (a, "ring_bytes_with_g", "ring_bytes")):
            self.assertEqual(result["per_layer"][own], 4 * (rest + 32 * 128 * 4))
            self.assertEqual(result["per_layer"][other], 4 * (rest + 32 * 128 * 2))
            self.assertEqual(result["per_request"][other], 20 * result["per_layer"][other])
        self.assertIn("ring a bf16", a["desc"])
        self.assertLess(a["plan"]["bytes_written"], g["plan"]["bytes_written"])
        self.assertIn("were its gate kept as a, bf16", self.ok("explain", "--preset", "kimi-linear"))
        self.assertIn("were its gate kept as g, f32", self.ok("explain", "--preset", "kimi-linear", "--ring-a", "f16"))
        self.assertNotIn("ring_bytes_with_a", self.ok_json("explain", "--json")["per_layer"])
        self.refused("explain", "--ring-a", "bf16", says=["--ring-a", "kda"])
        self.refused("explain", "--preset", "kimi-linear", "--ring-a", "i8", says=["--ring-a", "i8"])

    def test_explain_shows_a_pool(self):
        ask = ("explain", "--preset", "qwen3.5-35b", "--window", "4", "--rows", "256")
        self.assertNotIn("pool", self.ok_json(*ask, "--json"))
        pool = self.ok_json(*ask, "--slots", "4096", "--json")["pool"]
        ring, conv_ring = 4 * 12544, 4 * 8192 * 2
        self.assertEqual((pool["slots"], pool["rings"]), (4096, 256))
        self.assertEqual(pool["ring_per_slot"]["ring"], 30 * 4096 * ring)
        self.assertEqual(pool["ring_per_row"]["ring"], 30 * 256 * ring)
        self.assertEqual(pool["ring_per_slot"]["conv"] - pool["ring_per_row"]["conv"], 30 * (4096 - 256) * conv_ring)
        self.assertEqual(pool["ring_per_slot"]["state"], pool["ring_per_row"]["state"])
        for held in (pool["ring_per_slot"], pool["ring_per_row"]):
            self.assertEqual(held["total"], sum(held.values()) - held["total"])
        few = self.ok_json(*ask, "--slots", "4096", "--rings", "8", "--json")["pool"]
        self.assertEqual(few["ring_per_row"]["ring"], 30 * 8 * ring)
        text = self.ok(*ask, "--slots", "4096")
        for part in ("bytes of a pool of 4096 slots, all layers", "256 rings", str(30 * 256 * ring)):
            self.assertIn(part, text)
        lazy = self.ok_json(*ask, "--slots", "4096", "--policy", "lazy", "--json")["pool"]
        self.assertNotIn("ring_per_row", lazy)
        self.refused("explain", "--rings", "8", says=["--rings", "--slots"])
        self.refused("explain", "--rings", "8", "--slots", "9", "--policy", "lazy", says=["--rings", "lazy"])

    def test_explain_fold_policies(self):
        for policy in ("on_commit", "on_next_verify", "lazy"):
            for op in ("verify", "decode", "fold"):
                result = self.ok_json("explain", "--op", op, "--policy", policy, "--json")
                self.assertIn(policy, result["desc"])
                self.assertTrue(any(c["impl"] == "reference" and c["serves"] for c in result["candidates"]))
                for c in result["candidates"]:
                    self.assertFalse(c["serves"] and c["impl"].startswith("cuda"), c)
        self.refused("explain", "--ring-rows", "8", says=["--ring-rows", "on_commit"])
        self.ok("explain", "--policy", "lazy", "--ring-rows", "16")
        written = {policy: self.ok_json("explain", "--policy", policy, "--json")["plan"]["bytes_written"]
                   for policy in ("on_commit", "on_next_verify", "lazy")}
        self.assertEqual(written["on_commit"], written["lazy"])
        self.assertEqual(written["on_next_verify"] - written["on_commit"], 32 * 128 * 128 * 4)

    def test_explain_steps(self):
        """Predicted steps, for a machine that need not be here."""
        ask = ("explain", "--preset", "qwen3.5-35b", "--rows", "256", "--layers", "8", "--machine", "h200")
        steps = self.ok_json(*ask, "--numerics", "fast", "--json")["steps"]
        self.assertEqual((steps["machine"], steps["layers"], steps["rows"], steps["accepted"]), ("h200", 8, 256, 3))
        ways = steps["ways"]
        chosen = [way for way in ways if way["chosen"]]
        self.assertEqual(len(chosen), 1)
        self.assertEqual((chosen[0]["policy"], chosen[0]["ring_u"], chosen[0]["verify_impl"]), ("lazy", True, "cuda.fast"))
        self.assertLessEqual(chosen[0]["us"], 1.01 * min(way["us"] for way in ways))
        self.assertEqual({way["policy"] for way in ways}, {"on_commit", "on_next_verify", "lazy"})
        exact = self.ok_json(*ask, "--json")["steps"]["ways"]
        self.assertEqual([way["policy"] for way in exact if way["chosen"]], ["on_next_verify"])
        self.assertTrue(all(way["numerics"] == "exact" for way in exact))
        window = min(way["ring_bytes"] for way in exact)
        bound = self.ok_json(*ask, "--most-ring-bytes", str(window), "--json")["steps"]["ways"]
        self.assertEqual([way["policy"] for way in bound if way["chosen"]], ["on_commit"])
        self.refused(*ask, "--most-ring-bytes", str(window - 1), says=["most_ring_bytes", str(window)])
        text = self.ok(*ask, "--numerics", "fast")
        starred = [line for line in text.split("\n") if line.startswith("*")]
        self.assertEqual(len(starred), 1, text)
        self.assertIn("lazy, with u", starred[0])
        self.assertIn(f"{chosen[0]['us']:.1f}", starred[0])
        for word in ("h200", "on_commit", "on_next_verify", "cuda.exact", "predicted"):
            self.assertIn(word, text)
        self.refused("explain", "--machine", "z80", says=["--machine", "h200", "z80"])
        self.refused("explain", "--machine", "h200", "--op", "fold", says=["--machine", "fold"])
        self.refused("explain", "--machine", "h200", "--window", "33", says=["window", "33"])

    def test_explain_steps_here(self):
        result = self.ok_json("explain", "--accepted", "9", "--json")["steps"]
        self.assertEqual(result["accepted"], 4, "no more than the window has")
        self.assertEqual({way["verify_impl"] for way in result["ways"]}, {self.ok_json("info", "--json")["implementations"][0]})
        self.assertEqual(sum(way["chosen"] for way in result["ways"]), 1)
        self.assertNotIn("steps", self.ok_json("explain", "--op", "fold", "--json"))
        self.assertEqual(self.ok("explain").count("\n* "), 1)

    def test_explain_every_operation_and_preset(self):
        for op in ("verify", "decode", "fold", "conv_verify", "conv_decode", "conv_commit", "gated_norm"):
            self.assertIn("plan", self.ok_json("explain", "--op", op, "--json"), op)
        for preset in ("qwen3.5-35b", "qwen3.5-27b", "kimi-linear", "k3-tp8"):
            text = self.ok("explain", "--preset", preset)
            for word in ("candidates", "plan", "ring", "state per draft", "on_commit"):
                self.assertIn(word, text, preset)
        forced = self.ok_json("explain", "--impl", "reference", "--json")
        self.assertEqual(forced["plan"]["impl"], "reference")

    def test_explain_short_conv(self):
        narrow = self.ok_json("explain", "--channels", "10", "--conv-width", "2", "--act", "f32", "--json")["per_layer"]
        self.assertEqual((narrow["conv_state_bytes"], narrow["conv_ring_row_bytes"]), (40, 40))
        none = self.ok_json("explain", "--channels", "0", "--json")["per_layer"]
        self.assertEqual(none["slot_bytes"], none["state_bytes"] + none["ring_bytes"])
        self.assertNotIn("conv_state_bytes", none)
        self.assertIn("short conv, its window", self.ok("explain"))
        self.assertNotIn("conv, its window", self.ok("explain", "--channels", "0"))
        self.refused("explain", "--op", "conv_verify", "--channels", "0", says=["--channels"])

    def test_explain_usage(self):
        self.refused("explain", "--preset", "gpt", says=["--preset", "qwen3.5-35b", "gpt"])
        self.refused("explain", "--op", "fly", says=["--op", "fly"])
        self.refused("explain", "--mixer", "mamba", says=["--mixer", "mamba"])
        self.refused("explain", "--state", "f64", says=["--state", "f64"])
        self.refused("explain", "--shape", "16,32,128")
        self.refused("explain", "--shape", "16,32,128,-1", says=["--shape"])
        self.refused("explain", "--window", "0", says=["window"])
        self.refused("explain", "--impl", "warp9", says=["warp9"])

    def test_what_this_version_does_not_have_is_said(self):
        devices = self.ok_json("info", "--json")["cuda"]["devices"]
        for option, value in (("--device", "cuda"), ("--window", "33")):
            if value == "cuda" and devices:
                continue
            result = common.run("explain", option, value, "--json")
            self.assertEqual(result.returncode, 2, option)
            self.assertEqual(len(result.stderr.strip().split("\n")), 1, result.stderr)
            self.assertIn(value, result.stderr)

    def test_bench(self):
        keys = self.ok("bench", "--list").split()
        self.assertGreater(len(keys), 10)
        self.assertEqual(len(keys), len(set(keys)))
        listed = self.ok_json("bench", "--list", "--json")
        self.assertEqual([row["key"] for row in listed["rows"]], keys)
        key = next(key for key in keys if key.startswith("decode") and "_b1_" in key)
        rows = self.ok_json("bench", key, "--seconds", "0.01", "--json")["rows"]
        row = next(row for row in rows if row["key"] == key)
        for name in ("us", "bytes", "bytes_twin_us", "fma_twin_us", "ratio"):
            self.assertGreater(row[name], 0, name)

    def test_bench_usage(self):
        self.refused("bench", "no-such-row", says=["no-such-row"])
        self.refused("bench", "--impl", "warp9", says=["warp9"])
        self.refused("bench", "--seconds", "0", says=["seconds"])

    def test_check(self):
        report = self.ok_json("check", "--quick", "--lines", "C1,C4", "--impl", "reference", "--json")
        self.assertTrue(report["ok"])
        self.assertEqual({cell["line"] for cell in report["cells"]}, {"C1", "C4"})
        self.assertEqual(report["impls"], ["reference"])
        for cell in report["cells"]:
            self.assertGreater(cell["checks"], 0)
            self.assertEqual(cell["failed"], 0)
        text = self.ok("check", "--quick", "--lines", "C1", "--impl", "reference")
        self.assertIn("C1", text)
        self.assertIn("ok", text)

    def test_check_usage(self):
        self.refused("check", "--lines", "C99", says=["--lines", "C99"])
        self.refused("check", "--impl", "warp9", says=["--impl", "warp9"])

    def test_generate_usage(self):
        self.refused("generate", says=[])
        self.refused("generate", self.path("no-model"), "--prompt", "x", says=["no-model"])


if __name__ == "__main__":
    common.main()
