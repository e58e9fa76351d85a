"""bench/peers without a GPU and without any peer: arguments, what is refused, the results file, tables and plots, and
the C ABI's structs as they are read from its header. With torch, jobs are computed on the CPU too, and with Triton and
a folder of peers in RINGFOLD_PEERS their adapters."""

import contextlib
import ctypes
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import common

PEERS = os.path.join(common.ROOT, "bench", "peers")
sys.path.insert(0, PEERS)
import capi  # noqa: E402
import cpu  # noqa: E402
import evidence  # noqa: E402
import loading  # noqa: E402
import results  # noqa: E402
import run  # noqa: E402
import shapes  # noqa: E402
import tables  # noqa: E402

HAS_TORCH = importlib.util.find_spec("torch") is not None


def row(peer="sglang", work="verify_ring:verify_fast", shape="gdn_f32_t4_b32_h16x32", theirs=60.0, ours=20.0):
    return results.row(peer, "1.2", work, shape, theirs, ours, "a shim; ringfold: fast")


def example():
    return {"date": "2026-01-02T03:04:05Z", "device": "Made-up GPU", "ringfold": "0.1.0", "commit": "c0ffee" * 7,
            "tree_hash": "aa", "command": "bench/peers/run.py",
            "rows": [row(), row(work="step_fold:step_lazy", ours=80.0), row("atom", "step_states:step_lazy", theirs=90.0),
                     row("fla", "decode:decode", "kda_bf16_t4_b1_h32x32", 5.5, 5.0)],
            "accuracy": [{"peer": "ringfold", "version": "0.1.0", "work": "step_lazy", "shape": "gdn_f32_t4_b4_h16x32",
                          "tokens": 4100, "out_error": 1e-3, "state_error": 1e-7, "note": "bits"}],
            "refused": [{"peer": "atom", "work": "decode", "shape": "gdn_f32_t4_b1_h16x32", "error": "why not"}],
            "missing": [{"peer": "flashinfer", "reason": "no compiler"}]}


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ringfold_peers_")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return self.path(name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()


class ArgumentsTest(unittest.TestCase):
    def refused(self, *argv):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as ended:
            run.arguments(argv)
        self.assertEqual(ended.exception.code, 2)
        return said.getvalue()

    def test_shapes(self):
        grid = run.arguments([]).chosen
        self.assertEqual(len(grid), len(set(grid)))
        names = set(map(str, grid))
        for heads, kind in (("16x32", "gdn"), ("16x64", "gdn"), ("32x32", "kda"), ("12x12", "kda")):
            for state in ("f32", "bf16"):
                self.assertTrue({f"{kind}_{state}_t4_b{B}_h{heads}" for B in (1, 8, 32, 128, 256)} <= names)
        self.assertIn("kda_bf16_t8_b256_h32x32", names)
        self.assertIn("gdn_f32_t2_b1_h16x32", names)
        self.assertTrue(set(tables.README_SHAPES) <= names)
        self.assertEqual([str(s) for s in run.arguments(["--shapes", "gdn_f32_t4_b8,gdn_f32_t4_b3_h2x4"]).chosen],
                         ["gdn_f32_t4_b8_h16x32", "gdn_f32_t4_b8_h16x64", "gdn_f32_t4_b3_h2x4"])
        self.assertIn("expected a shape like", self.refused("--shapes", "gdn_f64_t4"))
        for shape in grid:
            self.assertEqual(shapes.parse(str(shape)), shape)

    def test_numbers(self):
        self.assertIn("positive", self.refused("--seconds", "0"))
        self.assertIn("positive", self.refused("--replays", "0"))
        self.assertIn("invalid", self.refused("--warm", "some"))

    def test_only(self):
        self.assertTrue(run.wanted(None, "sglang", "fold"))
        self.assertTrue(run.wanted("atom,sglang:verify", "sglang", "verify_ring"))
        self.assertFalse(run.wanted("atom,sglang:verify", "sglang", "fold"))

    def test_every_work_of_a_peer_has_a_counterpart(self):
        self.assertEqual(set(shapes.BESIDE), set(shapes.MEANING))
        for accepted, T in ((2, 2), (3, 4), (5, 8)):
            self.assertEqual(shapes.parse(f"gdn_f32_t{T}_b1_h16x32").accepted, accepted)


class RedTest(Folder):
    """Nothing is reported while the tests are red."""

    def setUp(self):
        super().setUp()
        self.write("src/a.cc", "int a;\n")

    def evidence(self, **suites):
        hashes = evidence.hash_files(self.folder)
        return {"device": "GPU", "driver": "1", "toolkit": "13", "date": "d", "commit": "c", "bench": {},
                "tree_hash": evidence.tree_hash(hashes), "files": evidence.short_hashes(hashes),
                "suites": suites or {"contract_test": {"passed": 9, "failed": 0, "skipped": []}}}

    def test_reasons(self):
        self.assertIn("have not run", results.red(self.folder)[0])
        self.write(evidence.FILE, "{")
        self.assertIn("cannot be read", results.red(self.folder)[0])
        self.write(evidence.FILE, {})
        self.assertIn("malformed", results.red(self.folder)[0])
        self.write(evidence.FILE, self.evidence())
        self.assertEqual(results.red(self.folder), [])
        self.write(evidence.FILE, self.evidence(
            contract_test={"passed": 9, "failed": 1, "skipped": [], "failures": ["C4 differs"]},
            trace_test={"passed": 9, "failed": 0, "skipped": []}))
        self.assertEqual(results.red(self.folder), ["contract_test is red: C4 differs"])

    def test_another_tree(self):
        self.write(evidence.FILE, self.evidence())
        self.write("src/a.cc", "int b;\n")
        self.assertEqual(len(results.red(self.folder)), 1)
        self.assertIn("changed src/a.cc", results.red(self.folder)[0])

    def test_results_are_no_part_of_the_tree(self):
        self.write(evidence.FILE, self.evidence())
        self.write("bench/peers/results/2026-01-02-gpu.json", "{}")
        self.assertEqual(results.red(self.folder), [])
        self.write("bench/peers/run.py", "x = 1\n")
        self.assertNotEqual(results.red(self.folder), [])

    def test_the_program_refuses(self):
        for program in (["bench/peers/run.py"], ["tools/gpu.py", "peers"]):
            done = subprocess.run([sys.executable, "-B", os.path.join(common.ROOT, program[0]), *program[1:], "--library",
                                   self.folder], capture_output=True, text=True, timeout=60)
            if results.red():
                self.assertEqual(done.returncode, 1)
                self.assertIn("refused: nothing is reported while the tests are red", done.stdout)
                self.assertIn(results.red()[0], done.stdout)
            else:
                self.assertEqual(done.returncode, 2)

    def test_trying_out_needs_a_library(self):
        done = subprocess.run([sys.executable, "-B", os.path.join(PEERS, "run.py"), "--unchecked", "--library",
                               self.folder], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"no libringfold.so.1 at {self.folder}", done.stdout)


class ResultsTest(Folder):
    def test_schema(self):
        self.assertEqual(results.problems(example()), [])
        for change, says in (
                (lambda d: d.pop("device"), "device: expected a text"),
                (lambda d: d["rows"][0].pop("note"), "rows[0]: expected peer"),
                (lambda d: d["rows"][0].update(more=1), "rows[0]: expected peer"),
                (lambda d: d["rows"][1].update(peer_us="5"), "rows[1].peer_us: expected float"),
                (lambda d: d["rows"][0].update(ratio=9.0), "rows[0].ratio: expected peer_us / ringfold_us"),
                (lambda d: d["rows"][0].update(peer="vllm"), "unknown peer 'vllm'"),
                (lambda d: d.update(missing=3), "missing: expected a list")):
            data = example()
            change(data)
            self.assertIn(says, "; ".join(results.problems(data)))
        self.assertIn("expected an object", results.problems([])[0])

    def test_the_file_is_valid_whenever_the_run_stops(self):
        head = {key: "x" for key in results.HEAD if key != "date"}
        out = results.Results(self.path("r.json"), head)
        for i in range(3):
            out.saved = 0.0
            out.add("rows", row(theirs=10.0 + i))
            data = json.loads(self.read("r.json"))
            self.assertEqual(len(data["rows"]), i + 1)
            self.assertEqual(results.problems(data), [])
        self.assertEqual(os.listdir(self.folder), ["r.json"])

    def test_names(self):
        out = results.Results(None, {"device": "Made-up GPU (2)"})
        self.assertRegex(os.path.basename(out.path), r"^\d{4}-\d\d-\d\d-made-up-gpu-2\.json$")

    def test_committed_files(self):
        for name in os.listdir(results.FOLDER) if os.path.isdir(results.FOLDER) else []:
            with open(os.path.join(results.FOLDER, name), encoding="utf-8") as file:
                self.assertEqual(results.problems(json.load(file)), [], name)


class TablesTest(Folder):
    def run_tool(self, data, readme="before\n<!-- peers: begin -->\nthe last one\n<!-- peers: end -->\nafter\n"):
        self.write("README.md", readme)
        return subprocess.run(
            [sys.executable, "-B", os.path.join(PEERS, "tables.py"), self.write("r.json", data), "--readme",
             self.path("README.md"), "--page", self.path("page.md"), "--plot", self.path("p.png")],
            capture_output=True, text=True, timeout=120)

    def test_tables(self):
        done = self.run_tool(example())
        self.assertEqual(done.returncode, 0, done.stderr)
        readme = self.read("README.md")
        self.assertTrue(readme.startswith("before\n") and readme.endswith("after\n"))
        self.assertNotIn("the last one", readme)
        for text in ("Made-up GPU, 2026-01-02, commit c0ffeec0ffee", "20.0 / 60.0 (3.00 sglang)",
                     "20.0 / 60.0 (3.00 sglang) |  | 20.0 / 60.0", "5.00 / 5.50 (1.10 fla)", "flashinfer (no compiler)",
                     "No ratio is below 1."):
            self.assertIn(text, readme)
        page = self.read("page.md")
        for text in ("4 rows, in 1 of which the peer is faster", "### step_fold", "80.0 (0.75)", "- sglang: a shim",
                     "### refused", "atom decode gdn_f32_t4_b1_h16x32: why not", "| 4100 | 1.0e-03 | 1.0e-07 |"):
            self.assertIn(text, page)
        if importlib.util.find_spec("matplotlib"):
            with open(self.path("p.png"), "rb") as file:
                self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")
            self.assertIn("](p.png)", page)
        else:
            self.assertIn("matplotlib is not installed", done.stdout)

    def test_where_ringfold_is_slower_is_said(self):
        data = example()
        data["rows"] = [row(theirs=10.0)]
        self.assertEqual(self.run_tool(data).returncode, 0)
        self.assertIn("(0.50 sglang)", self.read("README.md"))
        self.assertIn("1 of these ratios are below 1: there ringfold is slower.", self.read("README.md"))

    def test_refusals(self):
        self.assertIn("tests are green", self.run_tool({**example(), "unchecked": True}).stderr)
        self.assertIn("expected a text", self.run_tool({**example(), "commit": 3}).stderr)
        self.assertIn("expected the lines", self.run_tool(example(), "no place\n").stderr)
        self.assertEqual(self.run_tool("{").returncode, 2)

    def test_the_readme_has_its_place(self):
        with open(os.path.join(common.ROOT, "README.md"), encoding="utf-8") as file:
            self.assertIn("x", tables.between(file.read(), "x"))


class LoadingTest(Folder):
    def test_all_that_is_missing_is_listed(self):
        done = subprocess.run(
            [sys.executable, "-B", "-c", "import run, json; print(json.dumps(run.load_peers(None)[1]))"],
            capture_output=True, text=True, cwd=PEERS, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        missing = json.loads(done.stdout)
        self.assertTrue({entry["peer"] for entry in missing} <= set(results.PEERS))
        self.assertIn("replayssm", [entry["peer"] for entry in missing])
        self.assertTrue(all(entry["reason"] for entry in missing))

    def test_versions(self):
        self.write("a/VERSION", "1.2.3\n")
        self.assertEqual(loading.folder_of(self.folder, "a"), self.path("a"))
        self.assertIsNone(loading.folder_of(self.folder, "b"))
        self.assertEqual(loading.version_of("a", self.path("a")), "1.2.3")
        with self.assertRaisesRegex(loading.Missing, "no-such-package is neither"):
            loading.version_of("no-such-package", None)


class CapiTest(unittest.TestCase):
    def test_structs_are_those_of_the_header(self):
        fields = [name for name, _ in capi.STRUCTS["ringfold_verify_args"]._fields_]
        self.assertEqual(fields[:4], ["struct_size", "mixer", "window", "pool"])
        # tests/capi/header_c99.c fixes each struct's last field and its size.
        with open(os.path.join(common.ROOT, "tests", "capi", "header_c99.c"), encoding="utf-8") as file:
            ends = re.findall(r"^ENDS\((\w+), (\w+), (\d+), (\d+)\);", file.read(), re.MULTILINE)
        found = {name: (struct._fields_[-1][0], getattr(struct, struct._fields_[-1][0]).offset, ctypes.sizeof(struct))
                 for name, struct in capi.STRUCTS.items()}
        fixed = {name: (field, int(offset), int(size)) for name, field, offset, size in ends if name in found}
        self.assertGreater(len(fixed), 10)
        self.assertEqual({name: found[name] for name in fixed}, fixed)
        self.assertEqual((capi.constant("lazy"), capi.constant("kda"), capi.constant("pool_ring_u")), (2, 1, 13))
        self.assertEqual(ctypes.sizeof(capi.DLTensor), 48)

    def test_make(self):
        window = capi.make("window", max_window=4)
        args = capi.make("verify_args", window=window, impl=b"reference", numerics=1)
        self.assertEqual(args.struct_size, ctypes.sizeof(args))
        self.assertEqual(ctypes.cast(args.impl, ctypes.c_char_p).value, b"reference")
        self.assertEqual(ctypes.cast(args.window, ctypes.POINTER(type(window))).contents.max_window, 4)
        with self.assertRaises(KeyError):
            capi.make("window", rows=1)

    def test_no_library(self):
        self.assertIsNone(capi.find_library(os.path.join(PEERS, "nowhere")))


class CpuTest(unittest.TestCase):
    def test_typical(self):
        self.assertEqual(cpu.typical([3.0]), 3.0)
        self.assertEqual(cpu.typical([9.0, 9.0, 9.0, 2.0, 1.0, 3.0, 8.0, 8.0, 8.0]), 2.0)

    def test_arguments(self):
        self.assertEqual([str(s) for s in cpu.arguments([]).chosen], list(cpu.SHAPES))
        self.assertEqual([str(s) for s in cpu.arguments(["--shapes", "gdn_f32_t2_b2_h2x4"]).chosen],
                         ["gdn_f32_t2_b2_h2x4"])

    def test_missing(self):
        for tree, says in ((None, "no --ggml"), (PEERS, "no include/ggml.h")):
            with self.assertRaisesRegex(LookupError, says):
                cpu.Ggml(tree, 1)


@unittest.skipUnless(HAS_TORCH and capi.find_library(os.environ.get("RINGFOLD_LIBRARY")),
                     "needs torch and a libringfold.so.1")
class JobsTest(unittest.TestCase):
    """The harness on the CPU, at a small size, against its own oracle. Adapters where RINGFOLD_PEERS has peers."""

    def problem(self, kind, T):
        import torch
        from problem import Problem
        H, HV = {"gdn": (1, 2), "kda": (2, 2)}[kind]
        return Problem(shapes.Shape(kind, "f32", T, 2, H, HV), "cpu", layers=1, slots=5, cold_bytes=0,
                       dtype=torch.float32)

    def each(self, subject, skip=()):
        from jobs import Refused
        for kind in ("gdn", "kda"):
            works = subject.works(shapes.Shape(kind, "f32", 4, 2, 1, 2))
            for work in works:
                if (isinstance(works, dict) and works[work]) or work in skip:
                    continue
                with self.subTest(subject=subject.name, kind=kind, work=work):
                    try:
                        subject.job(work, self.problem(kind, 1 if work.startswith("decode") else 4)).checked()
                    except Refused as error:
                        self.fail(str(error))

    def test_ringfold(self):
        import side_ringfold
        self.each(side_ringfold.Ringfold(capi.find_library(os.environ.get("RINGFOLD_LIBRARY"))))

    def test_a_wrong_result_is_refused(self):
        import side_ringfold
        from jobs import Refused
        subject = side_ringfold.Ringfold(capi.find_library(os.environ.get("RINGFOLD_LIBRARY")))
        job = subject.job("verify_exact", self.problem("gdn", 4))
        call = job.call
        job.call = lambda i: call(i) * 1.01
        with self.assertRaisesRegex(Refused, "outputs of call 0: error 1.00e-02, tolerance 4e-03"):
            job.checked()
        job.call = lambda i: call(i) * float("nan")
        with self.assertRaises(Refused):
            job.checked()

    @unittest.skipUnless(os.environ.get("RINGFOLD_PEERS") and os.environ.get("TRITON_INTERPRET") == "1",
                         "needs RINGFOLD_PEERS and TRITON_INTERPRET=1")
    def test_adapters(self):
        # What the interpreter cannot run: loops over a count that was loaded, and a launch that asks for CUDA tensors.
        skip = {"sglang": ("fold", "step_fold", "step_states", "decode")}
        for peer in run.load_peers(os.environ["RINGFOLD_PEERS"])[0]:
            self.each(peer, skip.get(peer.name, ()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
