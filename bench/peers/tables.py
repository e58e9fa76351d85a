#!/usr/bin/env python3
"""Tables and plots of results files.

    bench/peers/tables.py [FILE..] [--readme README.md] [--page docs/peers-results.md] [--plot docs/peers.png]

Without arguments the newest file of bench/peers/results of each device. README.md's table stands between two comments.
The plot needs matplotlib, and is left as it is without it.
"""

import argparse
import glob
import json
import os
import sys

import results
import shapes

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
# README: whole steps at windows of 4, each peer's in the protocol that suits it best.
README_SHAPES = [f"{kind}_{state}_t4_b{B}_{heads}" for kind, heads in (("gdn", "h16x32"), ("kda", "h32x32"))
                 for state in ("f32", "bf16") for B in (1, 32, 256)]
README_WORKS = (("verify_states", "verify, a state per draft"), ("verify_ring", "verify with a ring"),
                ("fold", "fold"), ("step", "whole step"), ("decode", "decode"))
GREY, OWN = "#808080", "#2f81f7"
COLOURS = {"sglang": "#f97316", "replayssm": "#10b981", "fla": "#a855f7", "atom": "#ef4444", "flashinfer": "#eab308",
           "ggml": "#f97316", "torch": "#a855f7"}


def load(path):
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    found = results.problems(data)
    if found:
        raise ValueError("; ".join(found[:3]))
    if data.get("unchecked"):
        raise ValueError("it was taken without asking whether the tests are green")
    return data


def newest():
    """{device: path} of the committed files."""
    found = {}
    for path in sorted(glob.glob(os.path.join(results.FOLDER, "*.json"))):
        name = os.path.basename(path)[:-5]
        found[name[11:]] = path  # after the date
    return list(found.values())


def number(us):
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:.0f}"


def split(work):
    """("step_fold:step_lazy") -> ("step_fold", "step_lazy")"""
    theirs, _, ours = work.partition(":")
    return theirs, ours


def best_of(rows, shape, work):
    """(row of the fastest peer, fastest us of ringfold) among a shape's rows whose work begins with `work`."""
    found = [row for row in rows if row["shape"] == shape and split(row["work"])[0].startswith(work)]
    if not found:
        return None
    return min(found, key=lambda row: row["peer_us"]), min(found, key=lambda row: row["ringfold_us"])


def origin(data):
    versions = sorted({f"{row['peer']} {row['version']}" for row in data["rows"]})
    return (f"{data['device']}, {data['date'][:10]}, commit {data['commit'][:12]}; " + ", ".join(versions) +
            f" (`{data['command'].split()[0]}`)" +
            (f"; the machine's load average was {data['load']} at the start" if data.get("load", 0) > 1 else ""))


def readme_table(data):
    """The fastest peer of each work beside ringfold's fastest way to do it; ratios over 1 are ringfold's lead."""
    lines = [f"{origin(data)}. us for a layer, ringfold's beside the fastest peer's (ratio peer : ringfold, peer):", ""]
    lines += ["| shape | " + " | ".join(title for _, title in README_WORKS) + " |",
              "|---|" + "---|" * len(README_WORKS)]
    behind = 0
    for shape in README_SHAPES:
        cells = []
        for work, _ in README_WORKS:
            best = best_of(data["rows"], shape, work)
            if best is None:
                cells.append("")
                continue
            theirs, ours = best
            ratio = theirs["peer_us"] / ours["ringfold_us"]
            behind += ratio < 1
            cells.append(f"{number(ours['ringfold_us'])} / {number(theirs['peer_us'])} ({ratio:.2f} {theirs['peer']})")
        if any(cells):
            lines.append(f"| `{shape}` | " + " | ".join(cells) + " |")
    lines += ["", f"{behind} of these ratios are below 1: there ringfold is slower." if behind else
              "No ratio is below 1."]
    missing = ", ".join(f"{entry['peer']} ({entry['reason']})" for entry in data["missing"])
    return "\n".join(lines + ([f"Not measured: {missing}."] if missing else []))


def page(files, picture=None):
    """Everything; `picture` is the plot's name in the same folder."""
    lines = ["# Peers, measured", "", "Written by `bench/peers/tables.py`; do not edit. [peers.md](peers.md) says what "
             "each work is and how it was measured.", ""]
    lines += [f"![us for a layer over the batch]({picture})", ""] if picture else []
    for data in files:
        lines += [f"## {data['device']}", "", f"{origin(data)}.", ""]
        slower = [row for row in data["rows"] if row["ratio"] < 1]
        lines += [f"{len(data['rows'])} rows, in {len(slower)} of which the peer is faster.", ""]
        works = list(dict.fromkeys(split(row["work"])[0] for row in data["rows"]))
        for work in works:
            rows = [row for row in data["rows"] if split(row["work"])[0] == work]
            ours = list(dict.fromkeys(split(row["work"])[1] for row in rows))
            lines += [f"### {work}", "", "us, and in brackets the ratio peer : ringfold.", "",
                      "| shape | peer | us | " + " | ".join(f"ringfold {name}" for name in ours) + " |",
                      "|---|---|---|" + "---|" * len(ours)]
            groups = {}
            for row in rows:
                groups.setdefault((row["shape"], row["peer"]), {})[split(row["work"])[1]] = row
            for (shape, peer), by in groups.items():
                cells = [f"{number(by[name]['ringfold_us'])} ({by[name]['ratio']:.2f})" if name in by else ""
                         for name in ours]
                lines.append(f"| `{shape}` | {peer} | {number(next(iter(by.values()))['peer_us'])} | " +
                             " | ".join(cells) + " |")
            lines += ["", *dict.fromkeys(f"- {row['peer']}: {row['note'].split('; ringfold')[0]}" for row in rows), ""]
        lines += accuracy_table(data)
        for name in ("missing", "refused"):
            if data[name]:
                lines += [f"### {name}", ""]
                lines += [f"- {entry['peer']}{' ' + entry['work'] + ' ' + entry['shape'] if name == 'refused' else ''}: "
                          f"{entry.get('reason') or entry['error']}" for entry in data[name]] + [""]
    return "\n".join(lines).rstrip() + "\n"


def accuracy_table(data):
    if not data["accuracy"]:
        return []
    lines = ["### accuracy", "", "Error against fp64, relative to its norm, of all outputs and of the last states.", "",
             "| shape | who | work | tokens | outputs | states | |", "|---|---|---|---|---|---|---|"]
    for entry in data["accuracy"]:
        lines.append(f"| `{entry['shape']}` | {entry['peer']} | {entry['work']} | {entry['tokens']} | "
                     f"{entry['out_error']:.1e} | {entry['state_error']:.1e} | {entry['note']} |")
    return lines + [""]


def between(text, table):
    if BEGIN not in text or END not in text:
        raise ValueError(f"expected the lines {BEGIN} and {END}")
    head, rest = text.split(BEGIN, 1)
    return f"{head}{BEGIN}\n{table}\n{END}{rest.split(END, 1)[1]}"


def series_of(data, kind, state, heads, work, T=4):
    """{who: {B: us}}: each peer's fastest way, and ringfold's."""
    found = {}
    for row in data["rows"]:
        shape = shapes.parse(row["shape"])
        if (shape.kind, shape.state, shape.T, f"{shape.H}x{shape.HV}") != (kind, state, T, heads) or \
                not split(row["work"])[0].startswith(work):
            continue
        for who, us in ((row["peer"], row["peer_us"]), ("ringfold", row["ringfold_us"])):
            by = found.setdefault(who, {})
            by[shape.B] = min(us, by.get(shape.B, us))
    return found


def plot(data, path):
    """False without matplotlib. Transparent, in colours that can be read on white and on black."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot, ticker
    except ImportError:
        return False
    works = (("verify_states", "verify, a state per draft"), ("step", "whole step"), ("decode", "decode"))
    panels = [("gdn", "f32", "16x32"), ("gdn", "bf16", "16x32"), ("kda", "f32", "32x32"), ("kda", "bf16", "32x32")]
    with pyplot.rc_context({"text.color": GREY, "axes.labelcolor": GREY, "axes.edgecolor": GREY, "xtick.color": GREY,
                            "ytick.color": GREY, "font.size": 8, "legend.frameon": False}):
        figure, axes = pyplot.subplots(len(works), len(panels), figsize=(13, 8.4), squeeze=False)
        for row, (work, title) in zip(axes, works):
            for axis, (kind, state, heads) in zip(row, panels):
                axis.patch.set_alpha(0)
                series = series_of(data, kind, state, heads, work)
                if not series:
                    axis.set_visible(False)
                    continue
                for who, points in sorted(series.items()):
                    batches = sorted(points)
                    axis.plot(batches, [points[b] for b in batches], marker="o", markersize=3, label=who,
                              color=COLOURS.get(who, OWN), linewidth=2.4 if who == "ringfold" else 1.2)
                axis.set_xscale("log", base=2)
                axis.set_yscale("log")
                axis.set_xticks(sorted({b for points in series.values() for b in points}))
                for scale in (axis.xaxis, axis.yaxis):
                    scale.set_major_formatter(ticker.FormatStrFormatter("%g"))
                    scale.set_minor_formatter(ticker.NullFormatter())
                axis.grid(True, color=GREY, alpha=0.25)
                axis.set_title(f"{kind.upper()} {heads.replace('x', '/')}, {state} state: {title}", fontsize=8)
                axis.legend(fontsize=7)
        for axis in axes[-1]:
            axis.set_xlabel("B, windows of 4 tokens")
        for row in axes:
            row[0].set_ylabel("us for a layer")
        figure.tight_layout()
        figure.savefig(path, dpi=110, transparent=True)
        pyplot.close(figure)
    return True


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    docs = os.path.join(results.ROOT, "docs")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--readme", default=os.path.join(results.ROOT, "README.md"))
    parser.add_argument("--page", default=os.path.join(docs, "peers-results.md"))
    parser.add_argument("--plot", default=os.path.join(docs, "peers.png"))
    options = parser.parse_args(argv)
    files = []
    for path in options.files or newest():
        try:
            files.append(load(path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"tables: {path}: {error}", file=sys.stderr)
            return 2
    if not files:
        print("tables: no results files", file=sys.stderr)
        return 2
    measured = [data for data in files if any(row["shape"] in README_SHAPES and row["peer"] in results.PEERS
                                              for row in data["rows"])]
    if measured:
        try:
            with open(options.readme, encoding="utf-8") as file:
                write_to = between(file.read(), readme_table(measured[-1]))
        except ValueError as error:
            print(f"tables: {options.readme}: {error}", file=sys.stderr)
            return 2
        write(options.readme, write_to)
        drawn = plot(measured[-1], options.plot)
        print(f"tables: {'plot written' if drawn else 'no plot: matplotlib is not installed'}")
    picture = os.path.basename(options.plot) if os.path.exists(options.plot) else None
    write(options.page, page(files, picture))
    print(f"tables: {sum(len(data['rows']) for data in files)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
