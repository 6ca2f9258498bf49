"""How long looking at a large run takes: a made-up run of 100,000 trajectories, and the commands on it.

    python -m benchmarks.large_run /tmp/large [--trajectories 100000] [--iterations 100] [--out large_run.json]

The run is made where it is not there yet (2 GB: 16 turns of 1 kB each, like those of the tiny preset in ALFWorld). Each
command runs in a process of its own; CPU seconds, wall seconds, peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from pipeline.config import Config, RolloutConfig, RunConfig
from pipeline.config_loading import fingerprint, save_config
from pipeline.manifests import Manifest, write_manifest
from pipeline.run_directory import RunPaths
from runtime.records import Targets, Trajectory, Turn, to_json
from runtime.shards import shard_path, to_line

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("heat", "cool", "clean", "look", "pick", "pick_two")
VARIETY = 200  # different episodes; each is written many times under other names
NAME = "TASK-NAME"  # stands for the task's id in a prepared line
COMMANDS = {
    "overview": [],
    "filtered table": ["trajectories", "--iteration", "all", "--failed", "--task-type", "heat", "--sort", "value_drop"],
    "text search": ["trajectories", "--iteration", "all", "--text", "mug 7", "--sort", "turns"],
    "all as csv": ["trajectories", "--iteration", "all", "--format", "csv"],
    "one episode": ["show", "1:heat-000000"],
}


def make_episode(draw: random.Random, config: Config) -> tuple[bytes, bytes]:
    """The lines of one trajectory and its targets, NAME for its task."""
    success, count = draw.random() < 0.4, draw.randint(4, config.env.max_turns)
    words = ["mug", "shelf", "cabinet", "drawer", "plate", "sink", "lamp"]
    things = [f"{word} {number}" for word in words for number in range(1, 9)]
    turns = []
    for index in range(count):
        seen, last = draw.sample(things, 6), index == count - 1
        response = tuple(draw.randrange(150) for _ in range(9))
        turns.append(
            Turn(
                observation=f"You arrive at {seen[0]}. On it you see {', '.join(seen[1:])}.",
                admissible_actions=tuple(f"go to {thing}" for thing in seen),
                prompt_ids=tuple(draw.randrange(150) for _ in range(90)),
                response=f"<think></think><action>go to {seen[1]}</action>",
                response_ids=response,
                sampling_logprobs=tuple(-draw.random() for _ in response),
                action=f"go to {seen[1]}",
                valid=draw.random() < 0.9,
                reward=10.0 if success and last else 0.0,
                generation_s=draw.random(),
                environment_s=draw.random() / 100,
                terminated=success and last,
                truncated=last and not success,
            )
        )
    one = Trajectory(NAME, 0, "train", draw.choice(KINDS), f"look at {draw.choice(things)}", 1, 7, "p", 1.0,
                     "terminated" if success else "truncated", success, float(success), tuple(turns))  # fmt: skip
    series = [tuple(draw.uniform(-1, 9) for _ in turns) for _ in range(6)]
    return to_line(to_json(one), "episode"), to_line(asdict(Targets(one.key, *series)), "targets")


def make_run(root: Path, trajectories: int, iterations: int) -> None:
    """Write config.yaml, rollouts, targets, manifests and metrics.jsonl."""
    each = trajectories // iterations
    config = Config(run=RunConfig(iterations=iterations), rollout=RolloutConfig(trajectories=each))
    config = replace(config, env=replace(config.env, max_turns=28))
    paths, draw = RunPaths(root), random.Random(0)
    prepared = [make_episode(draw, config) for _ in range(VARIETY)]
    metrics = []
    for iteration in range(1, iterations + 1):
        paths.rollouts(iteration).mkdir(parents=True, exist_ok=True)
        paths.advantages(iteration).mkdir(parents=True, exist_ok=True)
        with (
            open(shard_path(paths.rollouts(iteration), 0), "wb") as shard,
            open(paths.advantages(iteration) / "targets.jsonl", "wb") as targets,
        ):
            for number in range(each):
                name = f"train/{KINDS[number % len(KINDS)]}-{number:06d}".encode()
                line, target = prepared[(number * 7 + iteration) % VARIETY]
                line = line.replace(NAME.encode(), name, 1).replace(
                    b'"iteration": 1,', b'"iteration": %d,' % iteration, 1
                )
                shard.write(line)
                targets.write(target.replace(NAME.encode(), name, 1))
        for stage in ("collect_rollouts", "compute_advantages", "optimize"):
            numbers = {"rollout/success": draw.uniform(0.3, 0.5), "rollout/turns": 16.0, "sapo/entropy": draw.random()}
            manifest = Manifest(stage, iteration, fingerprint(config), {}, {}, metrics=numbers, seconds={"total": 3.0})
            write_manifest(manifest, paths.manifest(stage, iteration))
            metrics.append({"stage": stage, "iteration": iteration, "seconds": 3.0, **numbers})
    paths.metrics.write_text("".join(json.dumps(line) + "\n" for line in metrics))
    save_config(config, paths.config)  # last: a folder with it is a run


def measure(arguments: list[str]) -> dict[str, float]:
    """One command in a process of its own."""
    start = time.monotonic()
    child = subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(arguments)}: exit status {status}")
    return {
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "wall_s": round(time.monotonic() - start, 2),
        "peak_memory_mib": round(usage.ru_maxrss / 1024, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    arguments = parser.parse_args()
    run_dir = arguments.run_dir.resolve()
    if not (run_dir / "config.yaml").exists():
        make_run(run_dir, arguments.trajectories, arguments.iterations)
    num_bytes = sum(path.stat().st_size for path in run_dir.rglob("*.jsonl"))
    results = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "trajectories": arguments.trajectories,
        "iterations": arguments.iterations,
        "gigabytes": round(num_bytes / 1e9, 2),
        "commands": {},
    }
    for name, command in COMMANDS.items():
        results["commands"][name] = measure(["pipeline.inspect", str(run_dir), *command])
        print(f"{name:<16}{results['commands'][name]}", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
