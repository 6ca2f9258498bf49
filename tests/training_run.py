"""A run directory that is ready for stages/optimize.py: a tiny policy, made-up rollouts, scores and targets."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from pipeline.config import (
    Config,
    EnvConfig,
    ModelConfig,
    OptimizeConfig,
    RolloutConfig,
    RunConfig,
    ValueConfig,
    WarmStartConfig,
)
from pipeline.run_directory import RunPaths
from runtime.distributed import Distributed
from runtime.model import load_policy
from runtime.progress import Progress
from runtime.records import Targets, Trajectory, Turn
from runtime.scoring import score_trajectories, scores_path, write_scores
from runtime.shards import ShardWriter, shard_path, write_targets
from runtime.weight_files import policy_fingerprint
from stages.context import Context, Resident
from tests.tiny_policies import POSITIVE, causal_lm, save_policy

R_MAX = 10.0
TURNS = {1: (3, 1, 4, 2, 3, 2), 2: (1,), 3: (), 4: (2, 5)}  # turns of each trajectory, by iteration; 3 has errors only


OPTIMIZE = {
    "learning_rate": 1e-2,
    "warmup_steps": 3,
    "weight_decay": 0.1,
    "minibatch_size": 8,
    "microbatch_tokens": 40,
    "max_grad_norm": 0.5,
    "kl_coef": 0.05,
    "entropy_coef": 0.02,
}


def settings(zero_stage: int = 3, dtype: str = "float32", **optimize: float) -> Config:
    """15 turns make two minibatches of several micro-batches; sizes that do not divide by 2 ranks."""
    return Config(
        run=RunConfig(seed=5),
        model=ModelConfig(dtype=dtype),
        value=ValueConfig(r_max=R_MAX, temperature=1.0),
        rollout=RolloutConfig(temperature=0.7),
        optimize=OptimizeConfig(**(OPTIMIZE | {"zero_stage": zero_stage} | optimize)),
    )


def corridor_settings() -> Config:
    """A warm start in the corridor: three rooms at most, so a few steps learn to say `right`."""
    return Config(
        run=RunConfig(seed=5),
        model=ModelConfig(dtype="float32", chat_template=False),
        env=EnvConfig(
            name="tests.corridor:CorridorAdapter",
            max_turns=6,
            prompt_tokens=96,
            response_tokens=2,
            options={"tasks": 40},
        ),
        warm_start=WarmStartConfig(
            enabled=True, demonstrations=40, epochs=2.5, batch_size=16, learning_rate=1e-2, warmup_steps=2
        ),
        rollout=RolloutConfig(workers=2),
        optimize=OptimizeConfig(microbatch_tokens=200),
    )


def make_run(root: Path, tied: bool = True) -> RunPaths:
    """Write the model and iterations 1-4."""
    paths = RunPaths(root)
    save_policy(causal_lm(tied=tied), paths.model)
    for iteration, lengths in TURNS.items():
        write_iteration(paths, iteration, lengths)
    return paths


def write_iteration(paths: RunPaths, iteration: int, lengths: tuple[int, ...]) -> None:
    draw = random.Random(iteration)
    fingerprint = policy_fingerprint(paths.model)
    trajectories = [trajectory(draw, iteration, n, length, fingerprint) for n, length in enumerate(lengths)]
    with ShardWriter(shard_path(paths.rollouts(iteration), 0)) as shard:
        for one in trajectories or [broken(draw, iteration, fingerprint)]:
            shard.append(one)
    policy = load_policy(paths.model, dtype="float32", temperature=0.7).eval()
    scores = score_trajectories(policy, trajectories, 1000, "cpu") if trajectories else {}
    for key, one in scores.items():  # a reference that differs from the policy
        scores[key] = replace(one, ref_logprobs=tuple(x + draw.uniform(-0.5, 0.5) for x in one.old_logprobs))
    paths.advantages(iteration).mkdir(parents=True)
    write_scores(scores_path(paths.advantages(iteration), 0), list(scores.values()))
    targets = [made_up_targets(draw, one) for one in scores.values()]
    write_targets(paths.advantages(iteration) / "targets.jsonl", targets)


def trajectory(draw: random.Random, iteration: int, number: int, num_turns: int, fingerprint: str) -> Trajectory:
    turns = []
    for _ in range(num_turns):
        prompt = tuple(draw.randrange(2, POSITIVE) for _ in range(draw.randint(2, 12)))
        response = tuple(draw.randrange(2, POSITIVE) for _ in range(draw.randint(1, 4))) + (1,)
        turns.append(Turn("o", None, prompt, "r", response, (-1.0,) * len(response), "a", True, 0.0, 0.0, 0.0))
    return Trajectory(
        f"train/t-{number}", 0, "train", "x", "g", iteration, 0, fingerprint, 0.7, "terminated", True, 1.0, tuple(turns)
    )


def broken(draw: random.Random, iteration: int, fingerprint: str) -> Trajectory:
    one = trajectory(draw, iteration, 0, 1, fingerprint)
    return replace(one, status="error", success=False, turns=(), error="lost")


def made_up_targets(draw: random.Random, scores) -> Targets:
    def numbers(low: float, high: float) -> tuple[float, ...]:
        return tuple(draw.uniform(low, high) for _ in scores.values)

    return Targets(
        scores.key, scores.values, scores.q_values, numbers(-1, 1), numbers(-2, 2), numbers(-9, 9), numbers(-9, 9)
    )


def context(paths: RunPaths, config: Config, iteration: int, distributed: Distributed, resident: Resident) -> Context:
    return Context(config, paths, iteration, distributed, None, resident, Progress(False))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Exported weights by name."""
    return load_file(folder / "model.safetensors")


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """max |a - b| over all tensors; infinite where the names differ."""
    if a.keys() != b.keys():
        return float("inf")
    return max((a[name].double() - b[name].double()).abs().max().item() for name in a)
