#!/usr/bin/env python3
"""Tables and a plot of benchmark rows beside their twins: docs/benchmarks.md and docs/benchmarks.svg.

    tools/plot_bench.py [FILE...]    tests/gpu/evidence.json, or outputs of ringfold bench --json; later files win
"""

import argparse
import math
import os
import re
import sys
from collections import namedtuple
from html import escape

import evidence as ev

INTRODUCTION = """us / us of the twin (ratio twin : ringfold), over the batch size B. The twin is a kernel that moves
the same bytes and does nothing else, in its fastest launch shape, timed in turns with ringfold in the same run (on the
CPU, the slower of that and of one that does the same multiply-adds from registers). 1.00 means that nothing is left to
gain. Caches are cold: every call takes other slots. On CUDA, times are those of graph replay, and a whole step is one
layer's verify and its share of the commit."""

Key = namedtuple("Key", "operation kind state tokens batch shape")
Row = namedtuple("Row", "us twin ratio")

KEY = re.compile(r"(verify_fast|verify_exact|foldall|fold|decode|step_on_commit|step_on_next_verify|step_lazy)_(gdn|kda)_(f32|bf16|f16)"
                 r"(?:_t(\d+))?_b(\d+)(?:_h(\d+x\d+))?")
TITLES = {"verify_fast": "verify, fast", "verify_exact": "verify, exact", "fold": "fold, one layer",
          "foldall": "fold, eight layers at once", "decode": "decode", "step_on_commit": "whole step, on commit",
          "step_on_next_verify": "whole step, on next verify (exact)", "step_lazy": "whole step, lazy"}


def parse(key):
    """The parts of a row's key, or None."""
    found = KEY.fullmatch(key)
    if not found:
        return None
    operation, kind, state, tokens, batch, shape = found.groups()
    return Key(operation, kind, state, int(tokens or 0), int(batch), shape or "")


def rows_of(data):
    """({Key: Row}, a line on where they come from) of evidence or of the output of ringfold bench --json."""
    rows = {}
    if "rows" in data:
        for row in data["rows"]:
            key = parse(row["key"])
            if key and row.get("us") and "skipped" not in row and "failed" not in row:
                rows[key] = Row(row["us"], row["us"] * row["ratio"], row["ratio"])
        return rows, f"ringfold bench, version {data.get('version', 'unknown')}"
    for name, ratio in data["bench"].items():
        key = parse(name)
        if key:
            us = data["bench"][f"{name}_us"]
            rows[key] = Row(us, us * ratio, ratio)
    return rows, (f"{data['device']}, driver {data['driver']}, CUDA {data['toolkit']}, {data['date'][:10]}, "
                  f"commit {data['commit'][:12]}")


def group(rows):
    """{(operation, shape): {(kind, state): {tokens: {batch: Row}}}}, in the order of TITLES."""
    groups = {}
    for key in sorted(rows, key=lambda k: (list(TITLES).index(k.operation), k.shape, k.kind, k.state == "bf16", k)):
        panel = groups.setdefault((key.operation, key.shape), {}).setdefault((key.kind, key.state), {})
        panel.setdefault(key.tokens, {})[key.batch] = rows[key]
    return groups


def title(operation, shape):
    return TITLES[operation] + (f", {shape.replace('x', '/')} heads" if shape else "")


def number(value):
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def tables(groups, origins):
    lines = ["# Benchmarks", "", "Written by `tools/plot_bench.py`; do not edit.", ""]
    lines += [f"- {origin}" for origin in origins]
    lines += ["", INTRODUCTION, "", "![us over B](benchmarks.svg)", ""]
    for (operation, shape), panels in groups.items():
        batches = sorted({b for lines_ in panels.values() for points in lines_.values() for b in points})
        lines += [f"## {title(operation, shape)}", "",
                  "| mixer | state | T | " + " | ".join(f"B={b}" for b in batches) + " |",
                  "|---|---|---|" + "---|" * len(batches)]
        for (kind, state), by_tokens in panels.items():
            for tokens, points in sorted(by_tokens.items()):
                cells = [f"{number(p.us)} / {number(p.twin)} ({p.ratio:.2f})" if (p := points.get(b)) else ""
                         for b in batches]
                lines.append(f"| {kind.upper()} | {state} | {tokens or ''} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------------------
# The plot: a row of panels for each operation, a panel for each mixer and state dtype. Both axes are logarithmic.

WIDTH, HEIGHT = 230, 150  # of a panel
LEFT, TOP, GAP_X, GAP_Y = 60, 60, 44, 66
COLOURS = ("#3b82f6", "#f97316", "#10b981", "#a855f7", "#ef4444")  # legible on white and on black

STYLE = """
text { font: 11px sans-serif; fill: #24292f; } .title { font-weight: bold; font-size: 13px; }
.frame { fill: none; stroke: #8c959f; } .grid { stroke: #8c959f; stroke-opacity: 0.25; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } }
"""


def ticks(low, high):
    """1, 10, 100, .. and, where there are few of them, 2 and 5 times those."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5)):
        found = [step * 10.0 ** power for power in powers for step in steps if low <= step * 10.0 ** power <= high]
        if len(found) >= 2:
            break
    return found


class Scale:
    """Logarithmic, from values to pixels."""

    def __init__(self, low, high, start, end):
        self.low, self.high, self.start, self.end = low, max(high, low * 1.01), start, end

    def __call__(self, value):
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)


def text(x, y, words, anchor="middle", kind=""):
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{style}>{escape(words)}</text>'


def curve(points, x, y, colour, dashed, value):
    ends = [(x(batch), y(value(row))) for batch, row in sorted(points.items())]
    path = " ".join(f"{a},{b}" for a, b in ends)
    dash = ' stroke-dasharray="4 3" stroke-opacity="0.8"' if dashed else ""
    lines = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>']
    if not dashed:
        lines += [f'<circle cx="{a}" cy="{b}" r="2.2" fill="{colour}"/>' for a, b in ends]
    return lines


def panel(left, top, name, by_tokens, x_range, y_range, colours):
    x = Scale(*x_range, left, left + WIDTH)
    y = Scale(*y_range, top + HEIGHT, top)
    lines = [text(left + WIDTH / 2, top - 6, name)]
    for tick in ticks(*y_range):
        lines.append(f'<line class="grid" x1="{left}" x2="{left + WIDTH}" y1="{y(tick)}" y2="{y(tick)}"/>')
        lines.append(text(left - 5, y(tick) + 4, f"{tick:g}", "end"))
    for batch in sorted({b for points in by_tokens.values() for b in points}):
        lines.append(f'<line class="grid" x1="{x(batch)}" x2="{x(batch)}" y1="{top}" y2="{top + HEIGHT}"/>')
        lines.append(text(x(batch), top + HEIGHT + 14, str(batch)))
    lines.append(f'<rect class="frame" x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}"/>')
    for tokens, points in sorted(by_tokens.items()):
        lines += curve(points, x, y, colours[tokens], False, lambda row: row.us)
        lines += curve(points, x, y, colours[tokens], True, lambda row: row.twin)
    return lines


def plot(groups):
    lines, top = [], TOP
    columns = max(len(panels) for panels in groups.values())
    width = LEFT + columns * (WIDTH + GAP_X)
    for (operation, shape), panels in groups.items():
        rows = [row for by_tokens in panels.values() for points in by_tokens.values() for row in points.values()]
        y_range = (min(min(r.us, r.twin) for r in rows) / 1.2, max(max(r.us, r.twin) for r in rows) * 1.2)
        batches = [b for by_tokens in panels.values() for points in by_tokens.values() for b in points]
        x_range = (min(batches) / 1.15, max(batches) * 1.15)
        all_tokens = sorted({tokens for by_tokens in panels.values() for tokens in by_tokens})
        colours = {tokens: COLOURS[i % len(COLOURS)] for i, tokens in enumerate(all_tokens)}
        lines.append(text(LEFT, top - 26, title(operation, shape) + ": us over B", "start", "title"))
        at = LEFT + 330
        for tokens in all_tokens:
            lines.append(f'<line x1="{at}" x2="{at + 18}" y1="{top - 30}" y2="{top - 30}" stroke="{colours[tokens]}" '
                         'stroke-width="2"/>')
            lines.append(text(at + 23, top - 26, f"T={tokens}" if tokens else "ringfold", "start"))
            at += 75
        lines.append(text(at, top - 26, "dashed: the twin", "start"))
        for i, ((kind, state), by_tokens) in enumerate(panels.items()):
            name = f"{kind.upper()}, {state} state"
            lines += panel(LEFT + i * (WIDTH + GAP_X), top, name, by_tokens, x_range, y_range, colours)
        top += HEIGHT + GAP_Y
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top - 20}" '
            f'viewBox="0 0 {width} {top - 20}">\n<style>{STYLE}</style>\n' + "\n".join(lines) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=[os.path.join(ev.ROOT, ev.FILE)])
    parser.add_argument("--out", default=os.path.join(ev.ROOT, "docs"), help="the folder to write to; default docs")
    options = parser.parse_args()
    rows, origins = {}, []
    for path in options.files:
        try:
            found, origin = rows_of(ev.load(path))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            print(f"plot_bench: {path}: expected evidence or the JSON of ringfold bench ({error!r})", file=sys.stderr)
            return 2
        rows.update(found)
        origins.append(origin)
    if not rows:
        print("plot_bench: no benchmark rows in these files", file=sys.stderr)
        return 2
    groups = group(rows)
    for name, content in (("benchmarks.md", tables(groups, origins)), ("benchmarks.svg", plot(groups))):
        with open(os.path.join(options.out, name), "w", encoding="utf-8") as file:
            file.write(content)
    print(f"plot_bench: {len(rows)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
