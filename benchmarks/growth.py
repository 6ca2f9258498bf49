"""How cost grows with the work: 8 times the tasks, the turns, and the width of the model.

    python -m benchmarks.growth [--iterations 6] [--out benchmarks/results/growth.json]

The real driver in `benchmarks.talk`, transcripts, responses of 8 tokens; the base has 16 trajectories of 5 turns and a
model of the tiny preset's shape. The batch of the decode loop (16) and the micro-batches (2,048 tokens, which the base
fills) stay what they are, so memory must not grow with tasks, and with turns only by what a row holds. CPU seconds an
iteration, medians of the iterations after the first; the peak is that of the whole process above what it had before
there was a model.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine, write
from benchmarks.models import SHAPES, Shape
from benchmarks.talk_runs import make_folder, run_talk

BASE = replace(SHAPES["tiny"], vocabulary=1024)
WIDE = replace(BASE, width=8 * BASE.width, inner=8 * BASE.inner, heads=16, key_heads=16)
TRAJECTORIES, TURNS, FACTOR, MICROBATCH = 16, 5, 8, 2048
CASES: dict[str, tuple[Shape, int, int]] = {
    "base": (BASE, TRAJECTORIES, TURNS),
    "8x tasks": (BASE, FACTOR * TRAJECTORIES, TURNS),
    "8x turns": (BASE, TRAJECTORIES, FACTOR * TURNS),
    "8x width": (WIDE, TRAJECTORIES, TURNS),
}
PARTS = ("collect_cpu_s", "score_cpu_s", "update_cpu_s", "cpu_s")


def measure(shape: Shape, trajectories: int, turns: int, iterations: int) -> dict[str, Any]:
    scratch = Path(tempfile.mkdtemp(prefix="sapo-growth-"))
    settings = {
        "run.iterations": iterations,
        "env.prompt_form": "transcript",
        "env.tasks": FACTOR * TRAJECTORIES,
        "env.max_turns": turns,
        "env.prompt_tokens": 2048,
        "env.response_tokens": 8,
        "rollout.trajectories": trajectories,
        "rollout.slots": TRAJECTORIES,
        "optimize.minibatch_size": turns * trajectories,
        "optimize.microbatch_tokens": MICROBATCH,
        "advantage.score_tokens": MICROBATCH,
    }
    try:
        make_folder(scratch / "model", shape)
        run = run_talk(scratch / "model", settings, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    measured = run["iterations"][1:]
    result = {key: statistics.median(one[key] for one in measured) for key in measured[0]}
    return {**result, "peak_mib": run["peak_mib"] - run["baseline_mib"], "iterations": iterations}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--out", type=Path, help="write the numbers there, as JSON")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    print(
        f"{'CPU s an iteration':20}{'collect':>9}{'score':>8}{'update':>8}{'all':>8}{'times':>7}{'tokens':>9}{'MiB':>7}"
    )
    results: dict[str, Any] = {}
    for name, (shape, trajectories, turns) in CASES.items():
        one = results[name] = measure(shape, trajectories, turns, options.iterations)
        one["times"] = one["cpu_s"] / results["base"]["cpu_s"]
        seconds = [f"{one[part]:{width}.2f}" for part, width in zip(PARTS, (9, 8, 8, 8), strict=True)]
        print(
            f"{name:20}{''.join(seconds)}{one['times']:7.1f}{one['final_tokens']:9.0f}{one['peak_mib']:7.0f}",
            flush=True,
        )
        write(options.out, name, one)
    write(options.out, "machine", machine())


if __name__ == "__main__":
    main()
