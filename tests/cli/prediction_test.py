#!/usr/bin/env python3
"""What `ringfold explain --machine h200` predicts of a step against what the committed run on a GPU measured."""

import json
import os
import re
import unittest

import common

EVIDENCE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gpu", "evidence.json")
KEY = re.compile(r"step_(on_commit|on_next_verify|lazy)_(gdn|kda)_(f32|bf16)_t(4|8)_b(\d+)")
BOUND = 0.20  # of the measured time
LAYERS = 8  # of the benchmark's pools


def ring_rows(policy, tokens):
    """As bench/cases.cc has them."""
    if policy == "lazy":
        return {4: 16, 8: 24}[tokens]
    return tokens if policy == "on_commit" else 2 * tokens


class PredictionTest(unittest.TestCase):
    def predicted(self, policy, mixer, state, tokens, rows):
        by_u = policy == "lazy"
        numerics = "fast" if policy == "on_commit" or by_u else "exact"
        done = common.run("explain", "--machine", "h200", "--mixer", mixer, "--state", state, "--window", str(tokens),
                          "--shape", "16,32,128,128" if mixer == "gdn" else "32,32,128,128", "--rows", str(rows),
                          "--layers", str(LAYERS), "--numerics", numerics, "--accepted", "3" if tokens == 4 else "5",
                          "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        ways = [way for way in json.loads(done.stdout)["steps"]["ways"]
                if (way["policy"], way["ring_rows"], way["ring_u"], way["numerics"]) ==
                (policy, ring_rows(policy, tokens), by_u, numerics)]
        self.assertEqual(len(ways), 1)
        return ways[0]["us"]

    def test_steps_take_what_was_predicted(self):
        with open(EVIDENCE, encoding="utf-8") as file:
            evidence = json.load(file)
        if "H200" not in evidence["device"]:
            self.skipTest(f"the evidence is of {evidence['device']}, and the model was fitted to an H200")
        rows = [(KEY.fullmatch(key), key) for key in sorted(evidence["bench"])]
        rows = [(match.groups(), key) for match, key in rows if match]
        self.assertGreaterEqual(len(rows), 60)
        for (policy, mixer, state, tokens, batch), key in rows:
            measured = evidence["bench"][f"{key}_us"]
            predicted = self.predicted(policy, mixer, state, int(tokens), int(batch))
            with self.subTest(key=key):
                self.assertLessEqual(abs(predicted - measured), BOUND * measured,
                                     f"predicted {predicted:.1f} us, measured {measured:.1f} us")


if __name__ == "__main__":
    common.main()
