"""tools/plot_bench.py on made-up rows."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

import common
import plot_bench

EVIDENCE = {"device": "Made-up GPU", "driver": "1.2", "toolkit": "13.0.1", "date": "2026-01-02T03:04:05Z",
            "commit": "c0ffee", "bench": {"fold_gdn_f32_b1": 0.5, "fold_gdn_f32_b1_us": 4.0,
                                          "fold_gdn_f32_b8": 0.8, "fold_gdn_f32_b8_us": 20.0,
                                          "verify_fast_kda_bf16_t4_b8_h12x12": 0.9,
                                          "verify_fast_kda_bf16_t4_b8_h12x12_us": 10.0}}
BENCH = {"version": "0.1.0", "rows": [
    {"key": "verify_exact_gdn_f32_t4_b16_h16x32", "us": 3738.0, "ratio": 0.36},
    {"key": "decode_gdn_f32_b1", "us": 0, "ratio": 0, "skipped": "why"},
    {"key": "decode_gdn_f32_b8", "us": 5.0, "ratio": 1, "failed": "why"}]}


class PlotTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ringfold_plot_")
        self.addCleanup(shutil.rmtree, self.folder)

    def run_tool(self, *contents):
        paths = []
        for i, content in enumerate(contents):
            paths.append(os.path.join(self.folder, f"{i}.json"))
            with open(paths[-1], "w", encoding="utf-8") as file:
                file.write(content if isinstance(content, str) else json.dumps(content))
        return subprocess.run([sys.executable, "-B", os.path.join(common.TOOLS, "plot_bench.py"), *paths, "--out",
                               self.folder], capture_output=True, text=True, timeout=60)

    def written(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as file:
            return file.read()

    def test_keys(self):
        self.assertEqual(plot_bench.parse("verify_exact_kda_bf16_t8_b128_h12x12"),
                         ("verify_exact", "kda", "bf16", 8, 128, "12x12"))
        self.assertEqual(plot_bench.parse("foldall_gdn_f32_b1"), ("foldall", "gdn", "f32", 0, 1, ""))
        for policy in ("on_commit", "on_next_verify", "lazy"):
            self.assertEqual(plot_bench.parse(f"step_{policy}_gdn_f32_t4_b1"), (f"step_{policy}", "gdn", "f32", 4, 1, ""))
        self.assertIsNone(plot_bench.parse("fold_gdn_f32_b1_us"))

    def test_tables_and_plot(self):
        done = self.run_tool(EVIDENCE, BENCH)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("4 rows", done.stdout)
        page = self.written("benchmarks.md")
        for text in ("Made-up GPU", "c0ffee", "version 0.1.0", "## fold, one layer", "4.0 / 2.0 (0.50)",
                     "20.0 / 16.0 (0.80)", "12/12 heads", "10.0 / 9.0 (0.90)", "3738 / 1346 (0.36)", "benchmarks.svg"):
            self.assertIn(text, page)
        self.assertNotIn("decode", page)
        root = xml.fromstring(self.written("benchmarks.svg"))
        curves = root.findall("{http://www.w3.org/2000/svg}polyline")
        self.assertEqual(len(curves), 6)  # three series, each with its twin

    def test_refusals(self):
        self.assertEqual(self.run_tool("{").returncode, 2)
        self.assertEqual(self.run_tool([]).returncode, 2)
        self.assertIn("no benchmark rows", self.run_tool({"rows": []}).stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
