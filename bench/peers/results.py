"""The results file: bench/peers/results/DATE-DEVICE.json, written row by row, and what has to be green before it is."""

import datetime
import json
import os
import re
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import evidence  # noqa: E402

FOLDER = os.path.join(ROOT, "bench", "peers", "results")
PEERS = ("sglang", "replayssm", "fla", "atom", "flashinfer")
CPU_PEERS = ("ggml", "torch")
ROW = {"peer": str, "version": str, "work": str, "shape": str, "peer_us": float, "ringfold_us": float, "ratio": float,
       "note": str}
ERROR = {"peer": str, "version": str, "work": str, "shape": str, "tokens": int, "out_error": float, "state_error": float,
         "note": str}
REFUSED = {"peer": str, "work": str, "shape": str, "error": str}
MISSING = {"peer": str, "reason": str}
LISTS = {"rows": ROW, "accuracy": ERROR, "refused": REFUSED, "missing": MISSING}
HEAD = ("date", "device", "ringfold", "commit", "tree_hash", "command")
SAVE_EVERY = 2.0  # seconds


def red(root=ROOT):
    """Why nothing may be reported, in words; empty if all is green."""
    path = os.path.join(root, evidence.FILE)
    try:
        data = evidence.load(path)
    except FileNotFoundError:
        return [f"there is no {evidence.FILE}: the tests have not run on a GPU (./dev gpu all)"]
    except (OSError, ValueError) as error:
        return [f"{evidence.FILE} cannot be read: {error}"]
    found = evidence.problems(data)
    if found:
        return [f"{evidence.FILE} is malformed: {line}" for line in found]
    hashes = evidence.hash_files(root)
    if data["tree_hash"] != evidence.tree_hash(hashes):
        changes = evidence.changes(data, hashes)
        found.append(f"the tests ran on other files; {len(changes)} differ, the first: {' '.join(changes[0].split())}"
                     if changes else "the tests ran on other files")
    for name in sorted(evidence.red_suites(data)):
        suite = data["suites"][name]
        found += [f"{name} is red: {line}" for line in suite.get("failures", [f"{suite['failed']} failed"])]
    return found


def problems(data):
    """What is malformed, in words; empty if nothing is."""
    if not isinstance(data, dict):
        return [f"expected an object, found {type(data).__name__}"]
    found = [f"{key}: expected a text" for key in HEAD if not isinstance(data.get(key), str)]
    for name, fields in LISTS.items():
        if not isinstance(data.get(name), list):
            found.append(f"{name}: expected a list")
            continue
        for i, entry in enumerate(data[name]):
            if not isinstance(entry, dict) or set(entry) != set(fields):
                found.append(f"{name}[{i}]: expected {', '.join(fields)}")
                continue
            for field, kind in fields.items():
                value = entry[field]
                if field == "state_error" and value is None:
                    continue
                good = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
                if not good:
                    found.append(f"{name}[{i}].{field}: expected {kind.__name__}, found {value!r}")
            if name == "rows" and not found and abs(entry["peer_us"] / entry["ringfold_us"] / entry["ratio"] - 1) > 0.01:
                found.append(f"{name}[{i}].ratio: expected peer_us / ringfold_us")
    known = {*PEERS, *CPU_PEERS, "ringfold"}
    for name in LISTS:
        for entry in data[name] if isinstance(data.get(name), list) else []:
            if isinstance(entry, dict) and entry.get("peer") not in known:
                found.append(f"{name}: unknown peer {entry.get('peer')!r}")
    return found


def row(peer, version, work, shape, peer_us, ringfold_us, note):
    return {"peer": peer, "version": version, "work": work, "shape": str(shape), "peer_us": round(peer_us, 3),
            "ringfold_us": round(ringfold_us, 3), "ratio": round(peer_us / ringfold_us, 4), "note": note}


def slug(text):
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


class Results:
    """Collects entries and writes the file every few seconds, whole and valid whenever the run is stopped."""

    def __init__(self, path, head):
        now = datetime.datetime.now(datetime.timezone.utc)
        self.data = {"date": now.strftime("%Y-%m-%dT%H:%M:%SZ"), **head, **{name: [] for name in LISTS}}
        self.path = path or os.path.join(FOLDER, f"{now:%Y-%m-%d}-{slug(head['device'])}.json")
        self.saved = 0.0

    def add(self, name, entry):
        self.data[name].append(entry)
        if time.monotonic() - self.saved > SAVE_EVERY:
            self.save()

    def save(self):
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            file.write(text_of(self.data))
        os.replace(self.path + ".new", self.path)
        self.saved = time.monotonic()


def text_of(data):
    """JSON with one entry a line, so that two runs can be compared."""
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items() if key not in LISTS]
    for name in LISTS:
        lines = ",\n  ".join(json.dumps(entry) for entry in data[name])
        parts.append(f' "{name}": [' + (f"\n  {lines}]" if lines else "]"))
    return "{\n" + ",\n".join(parts) + "\n}\n"
