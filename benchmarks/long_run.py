"""Does a long run stay as small as it begins? 300 iterations in the toy corridor while a sampler watches.

    python -m benchmarks.long_run /tmp/long [--iterations 300] [--out long_run.json]

Every few seconds: memory and open files of the rank and its workers, temporary files, checkpoints, disk. Ends with the
slope of each over the second half of the run, a verdict (exit code 1 where something grows), and one more iteration,
which shows that the run can be resumed at its end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import psutil

from pipeline.run_directory import RunPaths

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {
    "env.rooms": 3, "env.tasks": 16, "env.max_turns": 3, "env.prompt_tokens": 64, "env.response_tokens": 4,
    "model.tiny_width": 16, "model.tiny_layers": 1, "model.tiny_heads": 2,
    "warm_start.demonstrations": 12, "warm_start.epochs": 1.0,
    "rollout.trajectories": 8, "rollout.slots": 8, "evaluate.every": 50, "evaluate.tasks": 6, "checkpoint.keep_last": 2,
    "logging.progress": False,
}  # fmt: skip
SAMPLE_S = 3.0
# What may grow, and how fast: a share of the level in the middle of the run, over 100 iterations.
FLAT = {"rank_mib": 0.02, "workers_mib": 0.02, "rank_files": 0.02, "temporary_files": 0.0}
STEADY = 1.2  # disk grows by what is kept of every iteration (rollouts, targets, manifests): never faster than at first
KEPT = {"engine": 3, "policy": 4}  # checkpoint.keep_last and the one that is being written; policy 0 stays


def command(run_dir: Path, iterations: int) -> list[str]:
    """The whole run, as a user starts it."""
    flags = [flag for key, value in SETTINGS.items() for flag in ("--set", f"{key}={json.dumps(value)}")]
    return [sys.executable, "-m", "pipeline", "--env", "tests.corridor:CorridorAdapter", "--run-dir", str(run_dir),
            "--iterations", str(iterations), *flags]  # fmt: skip


def sample(launcher: psutil.Process, paths: RunPaths) -> dict[str, float] | None:
    """One look at the run; None where a process ended while it was looked at, or no rank is there yet."""
    try:
        children = launcher.children(recursive=True)
        lines = {child: child.cmdline() for child in children}
        ranks = [child for child, line in lines.items() if any(part.endswith("driver.py") for part in line[1:3])]
        workers = [child for child, line in lines.items() if "runtime.environment_worker" in line]
        if not ranks or not workers:
            return None
        seen = {
            "rank_mib": sum(rank.memory_info().rss for rank in ranks) / 2**20,
            "workers_mib": sum(worker.memory_info().rss for worker in workers) / 2**20,
            "rank_files": float(sum(rank.num_fds() for rank in ranks)),
            "processes": float(len(children)),
        }
    except psutil.Error:
        return None
    checkpoints = paths.root / "checkpoints"
    return seen | {
        "iteration": float(sum(1 for _ in checkpoints.glob("[0-9]*/manifest.json"))),
        "temporary_files": float(old(paths.root.rglob(".*.tmp-*")) + old(temporaries(paths).iterdir())),
        "checkpoint_mib": megabytes(checkpoints),
        "other_mib": megabytes(paths.root) - megabytes(checkpoints),
        "engine": float(len(list(checkpoints.glob("*/engine")))),
        "policy": float(len(list(checkpoints.glob("*/policy")))),
    }


def temporaries(paths: RunPaths) -> Path:
    """A folder for temporary files that nobody else uses."""
    folder = paths.root.with_name(f"{paths.root.name}-tmp")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def old(files: Iterable[Path]) -> int:
    """How many of the files have been there for a minute: one that is being written is one for a moment."""
    return sum(1 for path in files if path.exists() and time.time() - path.lstat().st_ctime > 60)


def megabytes(folder: Path) -> float:
    """What lies below a folder, in MiB, temporaries and files that go meanwhile left out."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size if ".tmp-" not in root + name else 0
            except FileNotFoundError:
                continue
    return total / 2**20


def slopes(samples: list[dict[str, float]], first: float, last: float) -> dict[str, dict[str, float]]:
    """Of each quantity between two iterations: the level in the middle, the growth over 100 iterations."""
    part = [one for one in samples if first <= one["iteration"] <= last]
    x = np.array([one["iteration"] for one in part])
    found = {}
    for name in samples[0].keys() - {"iteration", "seconds"}:
        slope, _ = np.polyfit(x, [one[name] for one in part], 1)
        found[name] = {"level": float(np.median([one[name] for one in part])), "per_100": float(slope * 100)}
    return found


def verdict(samples: list[dict[str, float]]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Level and growth over the second half of the run; and everything that grows though it should not."""
    last = samples[-1]["iteration"]
    early, found = slopes(samples, last / 6, last / 2), slopes(samples, last / 2, last)
    grown = [
        f"{name} grows by {found[name]['per_100']:.2f} in 100 iterations, at a level of {found[name]['level']:.1f}"
        for name, share in FLAT.items()
        if found[name]["per_100"] > share * found[name]["level"] + 1e-6
    ]
    for name in ("checkpoint_mib", "other_mib"):
        if found[name]["per_100"] > STEADY * early[name]["per_100"]:
            grown.append(f"{name} grows by {found[name]['per_100']:.2f}, before by {early[name]['per_100']:.2f}")
    for name, most in KEPT.items():
        highest = max(one[name] for one in samples)
        if highest > most:
            grown.append(f"{highest:.0f} checkpoints with {name}, at most {most} should be kept")
    return found, grown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    paths, samples, begun = RunPaths(arguments.run_dir), [], time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(temporaries(paths))}
    run = subprocess.Popen(command(paths.root, arguments.iterations), cwd=ROOT, env=environment)
    launcher = psutil.Process(run.pid)
    while run.poll() is None:
        seen = sample(launcher, paths)
        if seen is not None:
            samples.append({"seconds": round(time.monotonic() - begun, 1), **seen})
        time.sleep(SAMPLE_S)
    if run.returncode != 0 or len(samples) < 10:
        sys.exit(f"the run ended with {run.returncode} and {len(samples)} samples: nothing to judge")
    found, grown = verdict(samples)
    for name, one in sorted(found.items()):
        print(f"{name:>16}  {one['level']:10.2f}  {one['per_100']:+8.3f} in 100 iterations")
    more = subprocess.run(command(paths.root, arguments.iterations + 1), cwd=ROOT, env=environment).returncode
    print(f"one more iteration after the end: exit code {more}")
    print("; ".join(grown) or "nothing grows")
    if arguments.out:
        record = {
            "iterations": arguments.iterations,
            "slopes": found,
            "grown": grown,
            "resumed": more,
            "samples": samples,
        }
        arguments.out.write_text(json.dumps(record) + "\n")
    sys.exit(int(bool(grown) or more != 0))


if __name__ == "__main__":
    main()
