"""A run directory out of made-up records, in a fraction of a second: for tests of what looks at runs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.manifests import Manifest, write_manifest
from pipeline.run_directory import RunPaths
from runtime.intervals import wilson_interval
from runtime.records import Targets, Trajectory, Turn
from runtime.shards import ShardWriter, shard_path, write_targets

CONFIG = {
    "run": {"seed": 3, "iterations": 6},
    "model": {"name": "tiny"},
    "env": {"name": "corridor", "success_reward_scale": 1.0},
    "advantage": {"gamma": 0.5},
}


def episode(
    iteration: int,
    task: str,
    rewards: Sequence[float] = (0.0, 1.0),
    *,
    invalid: Sequence[int] = (),
    split: str = "train",
    status: str = "terminated",
    texts: Sequence[str] = (),
    **parts: Any,
) -> Trajectory:
    """An episode with these rewards; turn t has texts[t] as its observation where that is given."""
    turns = tuple(
        Turn(
            observation=texts[t] if t < len(texts) else f"room {t} of {task}",
            admissible_actions=("left", "right"),
            prompt_ids=(3, 4),
            response="right",
            response_ids=(5, 1),
            sampling_logprobs=(-0.5, -0.1),
            action="" if t in invalid else "right",
            valid=t not in invalid,
            reward=reward,
            generation_s=0.01,
            environment_s=0.01,
        )
        for t, reward in enumerate(rewards)
    )
    fields = {
        "task_id": task, "sample": 0, "split": split, "task_type": "rooms", "goal": f"find the door of {task}",
        "iteration": iteration, "seed": 1, "policy": "abc", "temperature": 1.0, "status": status,
        "success": rewards[-1:] == (1.0,), "score": 0.0, "turns": turns,
    }  # fmt: skip
    return Trajectory(**(fields | parts))


def targets_of(one: Trajectory, values: Sequence[float], q_values: Sequence[float] | None = None) -> Targets:
    """Targets with these readouts; the other series are zeros."""
    zeros = (0.0,) * len(one.turns)
    return Targets(one.key, tuple(values), tuple(q_values or values), zeros, zeros, zeros, zeros)


def add_iteration(paths: RunPaths, iteration: int, trajectories: Sequence[Trajectory], values: Any = None) -> None:
    """Write rollouts, targets, manifests and the metrics of one iteration."""
    with ShardWriter(shard_path(paths.rollouts(iteration), 0)) as shard:
        for one in trajectories:
            shard.append(one)
    draw = random.Random(iteration)
    readouts = {one.key: [draw.uniform(-1, 1) for _ in one.turns] for one in trajectories} | (values or {})
    good = [one for one in trajectories if one.status != "error"]
    paths.advantages(iteration).mkdir(parents=True, exist_ok=True)
    write_targets(paths.advantages(iteration) / "targets.jsonl", [targets_of(one, readouts[one.key]) for one in good])
    metrics = {
        "collect_rollouts": {"rollout/success": 0.5, "rollout/tokens_per_s": 100.0},
        "compute_advantages": {"advantage/explained_variance_v_plain": -3.0 + iteration, "advantage/saturated_v": 0.0},
        "optimize": {"sapo/policy_loss": 0.1 * iteration, "sapo/approx_kl": 0.001, "sapo/entropy": 1.0 / iteration},
    }
    for stage, numbers in metrics.items():
        add_stage(paths, stage, iteration, numbers)


def add_stage(paths: RunPaths, stage: str, iteration: int, metrics: dict[str, float]) -> None:
    """The manifest of a stage and its line of metrics.jsonl."""
    folder = paths.stage(stage, iteration)
    folder.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(
        stage, iteration, "c", {}, {}, metrics=metrics, seconds={"total": 2.0}, peak_memory_mib={"cpu": 512.0}
    )
    write_manifest(manifest, paths.manifest(stage, iteration))
    with open(paths.metrics, "a", encoding="utf-8") as file:
        file.write(json.dumps({"stage": stage, "iteration": iteration, "seconds": 2.0, **metrics}) + "\n")


def add_evaluation(paths: RunPaths, iteration: int, trajectories: Sequence[Trajectory]) -> None:
    """Write the episodes of an evaluation, by split, and its results."""
    sweeps = []
    for split in dict.fromkeys(one.split for one in trajectories):
        own = [one for one in trajectories if one.split == split]
        with ShardWriter(shard_path(paths.evaluation(iteration), 0, f"{split}-t1-")) as shard:
            for one in own:
                shard.append(one)
        won = sum(one.success for one in own)
        low, high = wilson_interval(won, len(own))
        row = {"n": len(own), "success": won / len(own), "success_low": low, "success_high": high}
        sweeps.append({"split": split, "temperature": 1.0, "all": row, "types": {"rooms": row}})
    results = {"iteration": iteration, "sweeps": sweeps}
    (paths.evaluation(iteration) / "results.json").write_text(json.dumps(results))
    add_stage(paths, "evaluate", iteration, {})


def make_run(root: Path, iterations: int = 6, tasks: int = 8, texts: Sequence[str] = ()) -> RunPaths:
    """A run with two evaluations; every other episode of an iteration fails, `texts` are what its first one saw."""
    paths = RunPaths(root)
    root.mkdir(parents=True, exist_ok=True)
    paths.config.write_text(yaml.safe_dump(CONFIG))
    for iteration in range(1, iterations + 1):
        add_iteration(paths, iteration, [
            episode(iteration, f"train/t-{n}", (0.0,) * len(texts) + (0.0, float(n % 2)),
                    invalid=(0,) if n == 2 else (), texts=texts if n == 0 else ())
            for n in range(tasks)
        ])  # fmt: skip
    for iteration in (0, iterations):
        add_evaluation(paths, iteration, [
            episode(iteration, f"{split}/t-{n}", (0.0, float(n < 1 + iteration)), split=split)
            for split in ("seen", "unseen") for n in range(tasks)
        ])  # fmt: skip
    return paths
