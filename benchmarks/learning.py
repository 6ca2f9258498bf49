"""What finished runs learned: a table of success before and after, and the curve of each seed.

    python -m benchmarks.learning runs/tiny-alfworld-seed0 runs/tiny-alfworld-seed1 … --figure docs/learning.png

Reads metrics.jsonl and evaluations/*/results.json of each run; prints Markdown. The figure needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STYLES = ("^-.", "o--", "s:")  # of the held-out splits, by name


def read_metrics(run: Path) -> dict[int, dict[str, float]]:
    """Iteration -> all metrics of its stages; `seconds/<stage>` is the stage's time."""
    rows: dict[int, dict[str, float]] = defaultdict(dict)
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        iteration, stage = record.pop("iteration"), record.pop("stage")
        rows[iteration][f"seconds/{stage}"] = record.pop("seconds")
        rows[iteration] |= record
    return dict(rows)


def read_sweeps(run: Path) -> dict[int, dict[tuple[str, float], dict[str, Any]]]:
    """Policy version -> (split, temperature) -> the numbers of that sweep, as stages.evaluate wrote them."""
    found = {}
    for path in sorted((run / "evaluations").glob("*/results.json")):
        results = json.loads(path.read_text(encoding="utf-8"))
        found[results["iteration"]] = {(s["split"], s["temperature"]): s for s in results["sweeps"]}
    return found


def success_table(runs: Sequence[Path]) -> str:
    """Markdown: success of the first and the last policy of each run, by split and temperature, with their mean."""
    lines = ["| run | split | T | n | before % | after % | 95 % after | turns before | turns after |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    pairs: dict[tuple[str, float], list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        sweeps = read_sweeps(run)
        first, last = sweeps[min(sweeps)], sweeps[max(sweeps)]
        for key in sorted(first.keys() & last.keys()):
            before, after = first[key]["all"], last[key]["all"]
            pairs[key].append((before["success"], after["success"]))
            lines.append(
                f"| {run.name} | {key[0]} | {key[1]:g} | {after['n']} | {100 * before['success']:.1f} | "
                f"{100 * after['success']:.1f} | {100 * after['success_low']:.1f}-{100 * after['success_high']:.1f} | "
                f"{before['turns']:.1f} | {after['turns']:.1f} |"
            )
    for key, values in sorted(pairs.items()):
        before, after = (statistics.fmean(column) for column in zip(*values, strict=True))
        lines.append(
            f"| **mean of {len(values)}** | {key[0]} | {key[1]:g} | | **{100 * before:.1f}** | "
            f"**{100 * after:.1f}** | | | |"
        )
    return "\n".join(lines)


def type_table(runs: Sequence[Path], split: str, temperature: float) -> str:
    """Markdown: success by task type on one split, first and last policy, mean over the runs."""
    columns: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        sweeps = read_sweeps(run)
        first, last = (sweeps[at(sweeps)][split, temperature]["types"] for at in (min, max))
        for kind in first:
            columns[kind].append((first[kind]["success"], last[kind]["success"]))
    lines = [f"| task type ({split}, T = {temperature:g}) | before % | after % |", "|---|---|---|"]
    for kind, values in columns.items():
        before, after = (statistics.fmean(column) for column in zip(*values, strict=True))
        lines.append(f"| {kind} | {100 * before:.1f} | {100 * after:.1f} |")
    return "\n".join(lines)


def training_table(runs: Sequence[Path], last: int = 10) -> str:
    """Markdown: means over each run's last iterations, and its time."""
    names = {
        "train success %": ("rollout/success", 100.0),
        "V explained variance": ("advantage/explained_variance_v", 1.0),
        "Q explained variance": ("advantage/explained_variance_q", 1.0),
        "V correlation": ("advantage/correlation_v", 1.0),
        "V at ±1 %": ("advantage/saturated_v", 100.0),
        "Q at ±1 %": ("advantage/saturated_q", 100.0),
        "entropy": ("sapo/entropy", 1.0),
        "inadmissible %": ("rollout/invalid_share", 100.0),
    }
    lines = [f"| run (last {last} iterations) | " + " | ".join(names) + " | minutes |"]
    lines.append("|---" * (len(names) + 2) + "|")
    for run in runs:
        rows = read_metrics(run)
        tail = [rows[i] for i in sorted(rows) if "rollout/success" in rows[i]][-last:]
        cells = [
            f"{scale * statistics.fmean(row[name] for row in tail if name in row):.2f}"
            if any(name in row for row in tail)
            else "-"
            for name, scale in names.values()
        ]
        minutes = sum(v for row in rows.values() for k, v in row.items() if k.startswith("seconds/")) / 60
        lines.append(f"| {run.name} | " + " | ".join(cells) + f" | {minutes:.1f} |")
    return "\n".join(lines)


def draw(runs: Sequence[Path], path: Path, window: int = 5) -> None:
    """Success of the training rollouts (mean of `window` iterations), held-out success and V's explained variance."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for number, run in enumerate(runs):
        color, rows = f"C{number}", read_metrics(run)
        iterations = [i for i in sorted(rows) if "rollout/success" in rows[i]]
        left.plot(*smooth(iterations, [rows[i]["rollout/success"] for i in iterations], window), color=color, lw=1.2)
        splits = sorted({split for sweeps in read_sweeps(run).values() for split, _ in sweeps})
        for split, style in zip(splits, STYLES, strict=False):
            points = [(i, rows[i][f"evaluate/{split}/success"]) for i in rows if f"evaluate/{split}/success" in rows[i]]
            left.plot(
                *zip(*sorted(points), strict=True), style, color=color, ms=4, lw=0.8, label=f"{run.name}, {split}"
            )
        name = "advantage/explained_variance_v"
        known = [i for i in iterations if name in rows[i]]
        right.plot(*smooth(known, [rows[i][name] for i in known], window), color=color, lw=1.2, label=run.name)
    left.set(
        xlabel="iteration", ylabel="success, sampled", ylim=(0, 1), title="solid: training rollouts; dots: held out"
    )
    right.set(xlabel="iteration", ylabel="explained variance of V", ylim=(-0.5, 1), title="V against the λ-return")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def smooth(x: Sequence[int], y: Sequence[float], window: int) -> tuple[list[int], list[float]]:
    """The mean of each point and the up to `window - 1` before it."""
    return list(x), [statistics.fmean(y[max(0, i - window + 1) : i + 1]) for i in range(len(y))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run directories")
    parser.add_argument("--figure", type=Path, help="where to draw the curves (PNG)")
    arguments = parser.parse_args()
    sweeps = read_sweeps(arguments.runs[0])
    split, temperature = max(sweeps[max(sweeps)])  # "unseen" and "test" sort last
    print(success_table(arguments.runs), type_table(arguments.runs, split, temperature), sep="\n\n", end="\n\n")
    print(training_table(arguments.runs))
    if arguments.figure:
        draw(arguments.runs, arguments.figure)


if __name__ == "__main__":
    main()
