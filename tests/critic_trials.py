"""What the launcher runs for tests/stages/test_critic_training.py: `critic_trials.py MODE ROOT` writes ROOT/MODE.json.

The runs are those of tests/training_run.py, with targets as PPO makes them and a first critic.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.config import AlgorithmConfig, Config
from pipeline.run_directory import RunPaths
from runtime.critic import make_first_critic
from runtime.distributed import Distributed, leave
from runtime.engine import init_distributed
from runtime.records import Targets
from runtime.scoring import read_scores
from runtime.shards import read_targets, write_targets
from stages import optimize
from stages.context import Resident
from tests.training_run import TURNS, context, make_run, settings

ITERATIONS = {"turn": (1, 2, 3, 4), "token": (1, 2)}  # by credit; 2 has one turn, 3 none


def ppo_settings(**optimize_settings: Any) -> Config:
    options = {"credit": "turn", "critic_learning_rate": 2e-2}  # the targets of a run say what a step is
    return replace(settings(**optimize_settings), algorithm=AlgorithmConfig("ppo", options))


def make_critic_runs(root: Path) -> None:
    """Write ROOT/turn and ROOT/token."""
    for credit in ITERATIONS:
        paths = make_run(root / credit)
        draw = random.Random(7)
        for iteration in TURNS:
            path = paths.advantages(iteration) / "targets.jsonl"
            lengths = {key: len(one.old_logprobs) for key, one in read_scores(paths.advantages(iteration)).items()}
            write_targets(path, [ppo_targets(draw, one, lengths[one.key], credit) for one in read_targets(path)])
        make_first_critic(paths.model, paths.critic(0))


def ppo_targets(draw: random.Random, one: Targets, num_tokens: int, credit: str) -> Targets:
    """Without Q; old values of 0, as the first critic has them; returns far beyond the clip range among them."""
    turns = {"values": (0.0,) * len(one.values), "q_values": (), "q_targets": ()}
    if credit == "turn":
        return replace(one, **turns)
    numbers = tuple(draw.uniform(-9, 9) for _ in range(num_tokens))
    return replace(one, **turns, token_values=(0.0,) * num_tokens, token_returns=numbers, token_advantages=numbers)


def train(
    root: Path, source: str, name: str, distributed: Distributed, iterations: Sequence[int], config: Config,
    keep_resident: bool = True,
) -> list[dict[str, float]]:  # fmt: skip
    """Run the stage for each iteration on a copy; returns the metrics."""
    if distributed.is_main:
        shutil.copytree(root / source, root / name)
    distributed.barrier(f"the copy {name}")
    paths, resident, metrics = RunPaths(root / name), Resident(), []
    for iteration in iterations:
        if not keep_resident:
            close(resident)
            resident = Resident()
        result = optimize.run(context(paths, config, iteration, distributed, resident))
        metrics.append(result.metrics)
    close(resident)
    return metrics


def close(resident: Resident) -> None:
    for engine in (resident.engine, resident.critic_engine):
        if engine is not None:
            engine.close()


def killed(root: Path, distributed: Distributed) -> list[dict[str, float]]:
    """Iteration 1 ends after its first minibatch; what is left on disk is started from anew."""
    steps = []

    def one_step(*arguments: Any) -> None:
        if steps:
            raise KeyboardInterrupt
        steps.append(optimize_step(*arguments))

    optimize_step = optimize.optimizer_step
    shutil.copytree(root / "turn", root / "begun")
    resident = Resident()
    with patch.object(optimize, "optimizer_step", one_step):
        try:
            optimize.run(context(RunPaths(root / "begun"), ppo_settings(), 1, distributed, resident))
        except KeyboardInterrupt:
            close(resident)
    return train(root, "begun", "killed", distributed, [1], ppo_settings())


def single(root: Path) -> dict[str, Any]:
    distributed = init_distributed(60.0)
    whole, results = ppo_settings(microbatch_tokens=1000), {}
    for credit, iterations in ITERATIONS.items():
        results[credit] = train(root, credit, f"{credit}-single", distributed, iterations, ppo_settings())
        results[f"{credit} split"] = train(root, credit, f"{credit}-split", distributed, [1], whole)
    results["fresh"] = train(
        root, "turn", "fresh", distributed, ITERATIONS["turn"], ppo_settings(), keep_resident=False
    )
    results["killed"] = killed(root, distributed)
    results["warming"] = train(root, "turn", "warming", distributed, [1], ppo_settings(value_warmup_iterations=1))
    # one batch over and over: the targets are random numbers, so only learning them by heart explains them
    still = {"warmup_steps": 0, "weight_decay": 0.0, "value_clip": 10.0, "minibatch_size": 100,
             "microbatch_tokens": 1000}  # fmt: skip
    for epochs in (1, 30):
        learning = ppo_settings(epochs=epochs, **still)
        results[f"{epochs} epochs"] = train(root, "turn", f"epochs-{epochs}", distributed, [1], learning)
    return results


def pair(root: Path) -> dict[str, Any]:
    distributed = init_distributed(60.0)
    results = {
        credit: train(root, credit, f"{credit}-pair", distributed, iterations, ppo_settings())
        for credit, iterations in ITERATIONS.items()
    }
    return results if distributed.is_main else {}


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    mode, folder = arguments[0], Path(arguments[1])
    found = {"single": single, "pair": pair}[mode](folder)
    if found:
        (folder / f"{mode}.json").write_text(json.dumps(found))
    leave()
