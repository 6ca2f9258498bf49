"""A run directory of any size without a model: config.yaml, rollouts and targets that are made up. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.config import Config
from pipeline.config_loading import save_config
from pipeline.run_directory import RunPaths
from runtime.records import Targets, Trajectory, Turn
from runtime.shards import ShardWriter, shard_path, write_targets


def made_up_turn(observation: str = "a room", response: str = "go", reward: float = 0.0, **fields) -> Turn:
    known = {
        "admissible_actions": None,
        "prompt_ids": (5, 6),
        "response_ids": (7, 1),
        "sampling_logprobs": (-0.5, -0.1),
        "action": response,
        "valid": True,
        "generation_s": 0.5,
        "environment_s": 0.25,
    }
    return Turn(observation=observation, response=response, reward=reward, **(known | fields))


def made_up_trajectory(task_id: str, turns: Sequence[Turn], **fields) -> Trajectory:
    known = {
        "sample": 0,
        "split": "train",
        "task_type": "heat",
        "goal": "heat a mug",
        "iteration": 1,
        "seed": 0,
        "policy": "p",
        "temperature": 1.0,
        "status": "terminated",
        "success": False,
        "score": 0.0,
    }
    return Trajectory(task_id=task_id, turns=tuple(turns), **(known | fields))


def made_up_targets(key: str, values: Sequence[float]) -> Targets:
    """V as given; the other numbers are told from it."""
    values = tuple(values)
    return Targets(key, values, *(tuple(x + shift for x in values) for shift in (0.1, 0.2, 0.3, 0.4, 0.5)))


def write_made_up_run(root: Path, iterations: dict[int, Sequence[tuple[Trajectory, Sequence[float] | None]]]) -> Path:
    """`iterations`: number -> (trajectory, V of its turns or None: no targets)."""
    save_config(Config(), root / "config.yaml")
    paths = RunPaths(root)
    for number, episodes in iterations.items():
        with ShardWriter(shard_path(paths.rollouts(number), 0)) as shard:
            for one, _ in episodes:
                shard.append(one)
        targets = [made_up_targets(one.key, values) for one, values in episodes if values is not None]
        if targets:
            write_targets(paths.advantages(number) / "targets.jsonl", sorted(targets, key=lambda one: one.key))
    return root
