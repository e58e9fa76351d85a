"""ringfold run refuses malformed files: exit code 2, one line that names the tensor or key."""

import json
import os
import struct

import casefile
import common
from casefile import Tensor

# (what, the spoiled description or an edit of it, texts that the message must have)
DESCRIPTIONS = [
    ("no JSON", "{", ["ringfold_case", "JSON"]),
    ("an array", "[]", ["ringfold_case", "object"]),
    ("a key twice", '{"version":1,"version":1,"mixer":"gdn","steps":[]}', ["'version' twice"]),
    ("deep nesting", "[" * 50000, ["ringfold_case"]),
    ("huge number", '{"version":1,"mixer":"gdn","scale":1e999,"steps":[]}', ["ringfold_case"]),
    ("no version", {"version": None}, ["'version'", "found none"]),
    ("version 2", {"version": 2}, ["'version'", "expected 1", "found 2"]),
    ("version text", {"version": "1"}, ["'version'"]),
    ("no mixer", {"mixer": None}, ["'mixer'"]),
    ("unknown mixer", {"mixer": "mamba"}, ["'mixer'", "gdn or kda", "mamba"]),
    ("mixer number", {"mixer": 3}, ["'mixer'"]),
    ("unknown key", {"softplus_betta": 1}, ["softplus_betta", "unknown key"]),
    ("beta text", {"softplus_beta": "1"}, ["'softplus_beta'", "a number"]),
    ("beta zero", {"softplus_beta": 0}, ["softplus_beta"]),
    ("beta negative", {"softplus_beta": -1}, ["softplus_beta"]),
    ("beta too large for float", {"softplus_beta": 1e300}, ["'softplus_beta'"]),
    ("threshold array", {"softplus_threshold": []}, ["'softplus_threshold'"]),
    ("threshold past the limit", {"softplus_threshold": 1000}, ["softplus_threshold"]),
    ("lower bound positive", {"mixer": "kda", "lower_bound": 5.0}, ["lower_bound"]),
    ("lower bound with gdn", {"lower_bound": -5.0}, ["lower_bound"]),
    ("scale bool", {"scale": True}, ["'scale'"]),
    ("l2norm number", {"qk_l2norm": 1}, ["'qk_l2norm'", "true or false"]),
    ("numerics unknown", {"numerics": "sloppy"}, ["'numerics'", "exact or fast"]),
    ("rounding unknown", {"state_rounding": "never"}, ["'state_rounding'"]),
    ("policy unknown", {"fold_policy": "later"}, ["'fold_policy'"]),
    ("ring of one row, on_next_verify", {"fold_policy": "on_next_verify", "ring_rows": 1}, ["'ring_rows'", "on_next_verify"]),
    ("ring of one row, lazy", {"fold_policy": "lazy", "ring_rows": 1}, ["'ring_rows'", "lazy", "found 1"]),
    ("ring rows zero", {"ring_rows": 0}, ["'ring_rows'", "found 0"]),
    ("ring rows negative", {"ring_rows": -4}, ["'ring_rows'", "found -4"]),
    ("ring rows 33", {"ring_rows": 33}, ["'ring_rows'", "32"]),
    ("ring rows huge", {"ring_rows": 2**64 - 1}, ["'ring_rows'"]),
    ("ring rows fraction", {"ring_rows": 2.5}, ["'ring_rows'"]),
    ("no steps", {"steps": None}, ["'steps'"]),
    ("steps object", {"steps": {}}, ["'steps'", "array"]),
    ("step text", {"steps": ["verify"]}, ["steps[0]"]),
    ("step without op", {"steps": [{}]}, ["steps[0]"]),
    ("step with more", {"steps": [{"op": "verify", "rows": 3}]}, ["steps[0]"]),
    ("unknown op", {"steps": [{"op": "verify"}, {"op": "fold"}]}, ["steps[1].op", "fold", "verify_snapshot"]),
]

# (what, tensor, its replacement (None: gone), texts that the message must have)
TENSORS = [
    ("no state", "state", None, ["'state'", "no such tensor"]),
    ("state of rank 3", "state", Tensor("F32", [2, 2, 4]), ["'state'", "[2,2,4]"]),
    ("state of rank 6", "state", Tensor("F32", [1] * 6), ["'state'"]),
    ("state of integers", "state", Tensor("I32", [3, 2, 3, 4]), ["'state'", "BF16", "I32"]),
    ("state of doubles", "state", Tensor("F64", [3, 2, 3, 4]), ["'state'", "F64"]),
    ("state without slots", "state", Tensor("F32", [0, 2, 3, 4]), ["'state'", "empty"]),
    ("state with K 0", "state", Tensor("F32", [3, 2, 3, 0]), ["'state'", "empty"]),
    ("state with K 5", "state", Tensor("F32", [3, 2, 3, 5]), ["'0.q'", "K=5", "4"]),
    ("state with K 257", "state", Tensor("F32", [1, 2, 1, 257]), ["257"]),
    ("state with layers, rest without", "state", Tensor("F32", [1, 3, 2, 3, 4]), ["'A_log'", "layers=1"]),
    ("no A_log", "A_log", None, ["'A_log'", "no such tensor"]),
    ("A_log in bf16", "A_log", Tensor("BF16", [2]), ["'A_log'", "F32", "BF16"]),
    ("A_log too long", "A_log", Tensor("F32", [3]), ["'A_log'", "HV=2", "[3]"]),
    ("no dt_bias", "dt_bias", None, ["'dt_bias'"]),
    ("dt_bias per channel", "dt_bias", Tensor("F32", [2, 4]), ["'dt_bias'", "[2,4]"]),
    ("no q", "0.q", None, ["'0.q'", "no such tensor"]),
    ("q of rank 2", "0.q", Tensor("F32", [4, 4]), ["'0.q'", "[4,4]"]),
    ("q with H 3", "0.q", Tensor("F32", [4, 3, 4]), ["'0.q'", "H=3"]),
    ("q with H 0", "0.q", Tensor("F32", [4, 0, 4]), ["'0.q'", "H=0"]),
    ("q with 5 tokens for 2 rows", "0.q", Tensor("F32", [5, 1, 4]), ["'0.k'", "tokens=5"]),
    ("no k", "0.k", None, ["'0.k'"]),
    ("k in bf16", "0.k", Tensor("BF16", [4, 1, 4]), ["'0.k'", "f32", "bf16"]),
    ("k with other H", "0.k", Tensor("F32", [4, 2, 4]), ["'0.k'", "H=1"]),
    ("no v", "0.v", None, ["'0.v'"]),
    ("v with other V", "0.v", Tensor("F32", [4, 2, 4]), ["'0.v'", "V=3"]),
    ("no a", "0.a", None, ["'0.a'"]),
    ("a per channel", "0.a", Tensor("F32", [4, 2, 4]), ["'0.a'"]),
    ("a of integers", "0.a", Tensor("I32", [4, 2]), ["'0.a'", "I32"]),
    ("no b", "0.b", None, ["'0.b'"]),
    ("b too short", "0.b", Tensor("F32", [3, 2]), ["'0.b'", "tokens=4"]),
    ("no slot_ids", "0.slot_ids", None, ["'0.slot_ids'"]),
    ("slot_ids in 64 bits", "0.slot_ids", Tensor("I64", [2]), ["'0.slot_ids'", "I32", "I64"]),
    ("slot_ids of rank 2", "0.slot_ids", Tensor("I32", [2, 1]), ["'0.slot_ids'"]),
    ("slot_ids of no rank", "0.slot_ids", Tensor("I32", [], [0]), ["'0.slot_ids'"]),
    ("three rows for four tokens", "0.slot_ids", Tensor("I32", [3]), ["'0.q'", "B=3", "4 tokens"]),
    ("no rows", "0.slot_ids", Tensor("I32", [0]), ["'0.q'", "B=0"]),
    ("cu_seqlens too short", "0.cu_seqlens", Tensor("I32", [2]), ["'0.cu_seqlens'", "B+1=3"]),
    ("cu_seqlens of floats", "0.cu_seqlens", Tensor("F32", [3]), ["'0.cu_seqlens'", "I32"]),
    ("no accept", "1.accept", None, ["'1.accept'"]),
    ("accept too long", "1.accept", Tensor("I32", [3]), ["'1.accept'", "B=2"]),
    ("track_slots alone", "1.track_slots", Tensor("I32", [2]), ["'1.track_steps'", "no such tensor"]),
    ("track_steps alone", "1.track_steps", Tensor("I32", [2]), ["'1.track_slots'", "no such tensor"]),
    ("no src", "2.src", None, ["'2.src'"]),
    ("dst longer than src", "2.dst", Tensor("I32", [2]), ["'2.dst'", "B=1"]),
    ("no slot_ids to reset", "3.slot_ids", None, ["'3.slot_ids'"]),
    ("two tokens to decode", "4.slot_ids", Tensor("I32", [1]), ["'4.q'", "one token per row"]),
    ("a row of two tokens to decode", "4.cu_seqlens", Tensor("I32", [3], [0, 2, 2]), ["'4.q'", "one token per row"]),
]


def good_case():
    steps = ["verify", "commit", "copy", "reset", "decode"]
    case = {"version": 1, "mixer": "gdn", "steps": [{"op": op} for op in steps]}
    tensors = {"state": Tensor("F32", [3, 2, 3, 4]), "A_log": Tensor("F32", [2]), "dt_bias": Tensor("F32", [2]),
               "0.slot_ids": Tensor("I32", [2], [0, 2]), "1.slot_ids": Tensor("I32", [2], [0, 2]),
               "1.accept": Tensor("I32", [2], [1, 2]), "2.src": Tensor("I32", [1], [0]),
               "2.dst": Tensor("I32", [1], [1]), "3.slot_ids": Tensor("I32", [1], [0]),
               "4.slot_ids": Tensor("I32", [2], [1, 2])}
    for step, tokens in ((0, 4), (4, 2)):
        tensors[f"{step}.q"] = tensors[f"{step}.k"] = Tensor("F32", [tokens, 1, 4])
        tensors[f"{step}.v"] = Tensor("F32", [tokens, 2, 3])
        tensors[f"{step}.a"] = tensors[f"{step}.b"] = Tensor("F32", [tokens, 2])
    return case, tensors


class MalformedTest(common.CliTest):
    def refuse_bytes(self, data, says, what):
        with open(self.path("case"), "wb") as file:
            file.write(data)
        with self.subTest(what):
            line = self.refused("run", self.path("case"), "-o", self.path("out"), says=says)
            self.assertFalse(os.path.exists(self.path("out")), "no output file")
            if "twice" not in line:
                self.assertIn("expected", line)

    def case_bytes(self, case, tensors, edit=None):
        return casefile.assemble(tensors, {"ringfold_case": case if isinstance(case, str) else json.dumps(case)}, edit)

    def test_the_good_case_runs(self):
        case, tensors = good_case()
        casefile.write_case(self.path("case"), case, tensors)
        self.ok("run", self.path("case"), "-o", self.path("out"))

    def test_descriptions(self):
        for what, change, says in DESCRIPTIONS:
            case, tensors = good_case()
            if isinstance(change, str):
                case = change
            else:
                case = {key: value for key, value in {**case, **change}.items()
                        if not (key in change and value is None)}
                if case.get("mixer") == "kda":
                    tensors["dt_bias"] = Tensor("F32", [2, 4])
                    tensors["0.a"], tensors["4.a"] = Tensor("F32", [4, 2, 4]), Tensor("F32", [2, 2, 4])
            with open(self.path("case"), "wb") as file:
                file.write(self.case_bytes(case, tensors))
            with self.subTest(what):
                self.refused("run", self.path("case"), "-o", self.path("out"), says=says)
                self.assertFalse(os.path.exists(self.path("out")), "no output file")

    def test_tensors(self):
        for what, name, tensor, says in TENSORS:
            case, tensors = good_case()
            tensors.pop(name, None)
            if tensor is not None:
                tensors[name] = tensor
            with open(self.path("case"), "wb") as file:
                file.write(self.case_bytes(case, tensors))
            with self.subTest(what):
                line = self.refused("run", self.path("case"), "-o", self.path("out"), says=says)
                self.assertIn("expected", line)
                self.assertIn("found", line)
                self.assertFalse(os.path.exists(self.path("out")), "no output file")

    def test_a_commit_before_any_verify_needs_slot_ids(self):
        case, tensors = good_case()
        case["steps"] = [{"op": "commit"}]
        tensors["0.accept"] = Tensor("I32", [2])
        del tensors["0.slot_ids"]
        self.refuse_bytes(self.case_bytes(case, tensors), ["'0.slot_ids'"], "no slot_ids")

    def test_a_window_past_the_limit(self):
        case, tensors = good_case()
        case["steps"] = [{"op": "verify"}]
        tensors["0.slot_ids"] = Tensor("I32", [1])
        tensors["0.q"] = tensors["0.k"] = Tensor("F32", [33, 1, 4])
        tensors["0.v"], tensors["0.a"] = Tensor("F32", [33, 2, 3]), Tensor("F32", [33, 2])
        tensors["0.b"] = tensors["0.a"]
        self.refuse_bytes(self.case_bytes(case, tensors), ["33"], "33 tokens")

    def test_containers(self):
        case, tensors = good_case()
        good = self.case_bytes(case, tensors)
        size = struct.unpack("<Q", good[:8])[0]

        def edited(edit):
            return self.case_bytes(case, tensors, edit)

        self.refuse_bytes(b"", ["found 0"], "empty")
        self.refuse_bytes(good[:7], ["found 7"], "seven bytes")
        self.refuse_bytes(struct.pack("<Q", 2**63) + good[8:], ["header length"], "huge header")
        self.refuse_bytes(struct.pack("<Q", size - 9) + good[8:], ["header"], "short header")
        self.refuse_bytes(b"\x89PNG\r\n\x1a\n" * 40, ["header length"], "another format")
        self.refuse_bytes(good[:-1], ["data"], "one byte short")
        self.refuse_bytes(good + b"\0", ["data"], "one byte long")
        self.refuse_bytes(casefile.assemble(tensors, None), ["ringfold_case"], "no metadata")
        self.refuse_bytes(casefile.assemble(tensors, {"other": "x"}), ["ringfold_case"], "other metadata")
        self.refuse_bytes(casefile.assemble(tensors, {"ringfold_case": {}}), ["ringfold_case"], "metadata not text")
        self.refuse_bytes(edited(lambda h: h["0.q"].update(dtype="F7")), ["'0.q'", "F7"], "unknown dtype")
        self.refuse_bytes(edited(lambda h: h["0.q"].update(shape=[-4, 1, 4])), ["'0.q'", "shape"], "negative size")
        self.refuse_bytes(edited(lambda h: h["0.q"].update(shape=[2**62, 2**62, 4])), ["'0.q'"], "overflowing size")
        self.refuse_bytes(edited(lambda h: h["0.q"].update(data_offsets=[0, 64])), ["data_offsets", "no overlap"], "overlap")
        self.refuse_bytes(edited(lambda h: h["0.q"].update(data_offsets=[0, 2**40])), ["'0.q'"], "past the end")
        self.refuse_bytes(edited(lambda h: h["0.q"].pop("shape")), ["'0.q'", "shape"], "no shape")

    def test_every_cut_is_refused(self):
        good = self.case_bytes(*good_case())
        for cut in range(0, len(good), 37):
            with open(self.path("case"), "wb") as file:
                file.write(good[:cut])
            self.refused("run", self.path("case"), "-o", self.path("out"))

    def test_flipped_header_bytes_never_crash(self):
        good = bytearray(self.case_bytes(*good_case()))
        size = struct.unpack("<Q", good[:8])[0]
        for at in range(0, 8 + size, 11):
            spoiled = bytearray(good)
            spoiled[at] ^= 0x15
            with open(self.path("case"), "wb") as file:
                file.write(spoiled)
            result = common.run("run", self.path("case"), "-o", self.path("out"))
            self.assertIn(result.returncode, (0, 2), f"byte {at}: {result.stderr}")
            if result.returncode == 2:
                self.assertEqual(len(result.stderr.strip().split("\n")), 1, result.stderr)


if __name__ == "__main__":
    common.main()
