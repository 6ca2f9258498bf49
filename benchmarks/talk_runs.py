"""Runs of the real driver in `benchmarks.talk`, on model folders of random weights, and what their iterations took."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.models import Shape, make_model
from benchmarks.stages import byte_pairs, make_run, run_child
from benchmarks.talk import TalkAdapter
from pipeline.launch import launch_environment
from pipeline.manifests import read_manifests
from pipeline.run_directory import RunPaths
from runtime.rows import plain_rows
from runtime.shards import read_trajectories

STAGES = ("collect_rollouts", "compute_advantages", "optimize")
COLLECT, SCORE, TRAIN = ("generation_s", "environment_wait_s", "loop_s"), ("old_logprobs_s", "targets_s"), ("steps_s",)
SETTINGS = {
    "warm_start.enabled": False, "env.history_length": 2, "rollout.workers": 1, "optimize.learning_rate": 1e-6,
    "optimize.warmup_steps": 0, "optimize.kl_coef": 0.0, "evaluate.every": 0, "evaluate.final_tasks": 1,
}  # fmt: skip


def make_folder(folder: Path, shape: Shape) -> None:
    """A model and its tokenizer, as a transformers folder."""
    tokenizer = byte_pairs(TalkAdapter(TalkAdapter.Options()).vocabulary(), shape.vocabulary - 2)
    eos = tokenizer.eos_token_id
    model = make_model(shape, stops=[eos])
    model.config.eos_token_id = model.generation_config.eos_token_id = eos
    model.config.pad_token_id = model.generation_config.pad_token_id = eos
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def run_talk(model: Path, settings: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """A run on the tiny preset with these settings besides: its iterations, out of the manifests, and peaks in MiB.

    `wall_s` is collecting, scoring and training; `all_s` and `cpu_s` everything that an iteration does.
    """
    paths = RunPaths(Path(tempfile.mkdtemp(dir=scratch)) / "run")
    settings = {**SETTINGS, "model.name": str(model), **settings}
    config = make_run(paths.root, "benchmarks.talk:TalkAdapter", settings)
    run_child(["pipeline/driver.py", "--run-dir", str(paths.root)], launch_environment(config))
    manifests, found = read_manifests(paths), []
    for iteration in range(1, config.run.iterations + 1):
        collect, score, train = (manifests[stage, iteration] for stage in STAGES)
        trajectories = read_trajectories(paths.rollouts(iteration))
        parts = {
            "collect_s": sum(collect.seconds[key] for key in COLLECT),
            "score_s": sum(score.seconds[key] for key in SCORE),
            "update_s": sum(train.seconds[key] for key in TRAIN),
        }
        found.append(
            {
                **parts,
                "wall_s": sum(parts.values()),
                "all_s": sum(one.seconds["total"] for one in (collect, score, train)),
                "collect_cpu_s": collect.cpu_s,
                "score_cpu_s": score.cpu_s,
                "update_cpu_s": train.cpu_s,
                "cpu_s": sum(one.cpu_s for one in (collect, score, train)),
                "response_tokens": sum(len(turn.response_ids) for one in trajectories for turn in one.turns),
                "final_tokens": sum(len(row.input_ids) for one in trajectories for row in plain_rows(one)),
            }
        )
    peak = max(manifests["optimize", i].peak_memory_mib["cpu"] for i in range(1, config.run.iterations + 1))
    return {"iterations": found, "peak_mib": peak, "baseline_mib": manifests["reserve_vocab", 0].peak_memory_mib["cpu"]}
