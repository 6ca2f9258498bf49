"""What a comparison keeps of a finished run: small enough to commit, enough to draw every table and curve again."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.config_loading import flatten
from pipeline.inspect.reading import Run, open_run
from pipeline.manifests import Manifest
from pipeline.plan import Facts, next_step, plan
from pipeline.run_directory import EXPORT, RunError
from runtime.files import atomic_path

FORMAT = 1
WON, LOST, UNJUDGED = "1", "0", "-"
ITERATION_STAGES = ("collect_rollouts", "compute_advantages", "optimize")
TRAINING = {  # metrics that are kept of every iteration, and who measures them
    "rollout/success": "collect_rollouts",
    "rollout/invalid_share": "collect_rollouts",
    "advantage/std": "compute_advantages",
    "advantage/explained_variance_v": "compute_advantages",
    "advantage/explained_variance_q": "compute_advantages",
    "sapo/entropy": "optimize",
}


@dataclass(frozen=True)
class Evaluation:
    """What policy `iteration` did on one split, at the run's evaluation temperature.

    Example: Evaluation(2, "near", n=6, success=0.5, score=0.5, turns=2.5, types={"rooms-1": 1.0, "rooms-2": 0.0})
    """

    iteration: int
    split: str
    n: int
    success: float | None  # None: no episode could be judged
    score: float | None
    turns: float | None
    types: Mapping[str, float]  # success by task type


@dataclass(frozen=True)
class Outcomes:
    """Which tasks of a split the last policy won. Example: Outcomes(("near/a", "near/b"), ("heat", "cool"), "1-")"""

    tasks: tuple[str, ...]
    types: tuple[str, ...]
    won: str  # a character a task


@dataclass(frozen=True)
class Costs:
    """What each iteration cost, one number an iteration. CPU seconds are None where a manifest has none."""

    trajectories: tuple[int, ...]  # played, lost ones included
    generated_tokens: tuple[int, ...]  # response tokens that were sampled
    trained_tokens: tuple[int, ...]  # through the policy's training forward, prompts included, times epochs
    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...] | None


@dataclass(frozen=True)
class Measured:
    """One finished run in numbers."""

    variant: str
    seed: int
    iterations: int
    settings: Mapping[str, Any]  # every setting under its dotted name
    environment: Mapping[str, Any]  # what the adapter says of itself
    start: str  # fingerprint of policy 0
    evaluations: tuple[Evaluation, ...]
    outcomes: Mapping[str, Outcomes]  # by split, of the last policy
    costs: Costs
    stages: Mapping[str, Mapping[str, float]]  # stage -> summed seconds by part, "cpu_s", "times", "peak_memory_gib"
    training: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)  # those of TRAINING, by iteration
    damage: tuple[str, ...] = field(default=())  # what could not be read


def measure(path: Path, variant: str) -> Measured:
    """Read a finished run.

    Raises:
        RunError: no run directory, not finished, or manifests that say what it cost are gone.
        ConfigError: its config.yaml is not this version's.
    """
    run = open_run(path)
    config = run.settings()
    step = next_step(plan(Facts.of(config), run.manifests))
    if step is not None or (EXPORT, 0) not in run.manifests:
        where = "" if step is None else f" (next: {step.stage} {step.iteration})"
        raise RunError(f"{path}: not finished{where}; go on with: bash run.sh --run-dir {path}")
    first = run.evaluations().get(0, {})
    return Measured(
        variant=variant,
        seed=config.run.seed,
        iterations=config.run.iterations,
        settings=flatten(config) | {"model.name": shareable(config.model.name)},
        environment=first.get("environment", {}),
        start=str(first.get("policy", "")),
        evaluations=tuple(read_evaluations(run, config.evaluate.temperature)),
        outcomes=read_outcomes(run, config),
        costs=read_costs(run, config.run.iterations),
        stages=stage_sums(run.manifests),
        training=read_training(run, config.run.iterations),
        damage=tuple(run.damage),
    )


def shareable(model: str) -> str:
    """A model's name; of a folder given from the root only the end: the numbers are for others, who have other folders.

    Example: /home/x/runs/c/runs/warm-start-seed0/export -> runs/warm-start-seed0/export
    """
    path = Path(model)
    return "/".join(path.parts[1:][-3:]) if path.is_absolute() else model


def read_evaluations(run: Run, temperature: float) -> list[Evaluation]:
    """All evaluations at `temperature`, by iteration and in the order of the adapter's splits."""
    found = []
    for iteration, results in sorted(run.evaluations().items()):
        for sweep in results["sweeps"]:
            if sweep["temperature"] == temperature:
                row = sweep["all"]
                known = {kind: one["success"] for kind, one in sweep["types"].items() if one["success"] is not None}
                numbers = (row["n"], row["success"], row["score"], row["turns"])
                found.append(Evaluation(iteration, sweep["split"], *numbers, types=known))
    return found


def read_outcomes(run: Run, config: Config) -> dict[str, Outcomes]:
    """Task by task what the last policy won, by split; tasks in the order of their ids."""
    rows: dict[str, list[tuple[str, str, str]]] = {}
    for episode in run.evaluation_episodes(config.run.iterations):
        one = episode.trajectory
        if one.temperature == config.evaluate.temperature:
            result = UNJUDGED if one.status == "error" else WON if one.success else LOST
            rows.setdefault(one.split, []).append((one.task_id, one.task_type, result))
    found = {}
    for split, own in rows.items():
        tasks, types, won = zip(*sorted(own), strict=True)
        found[split] = Outcomes(tasks, types, "".join(won))
    return found


def read_costs(run: Run, iterations: int) -> Costs:
    """What the iterations cost, out of their manifests.

    Raises:
        RunError: an iteration's manifest is gone.
    """
    parts: list[dict[str, Manifest]] = []
    for i in range(1, iterations + 1):
        missing = [stage for stage in ITERATION_STAGES if (stage, i) not in run.manifests]
        if missing:
            raise RunError(
                f"{run.paths.root}: iteration {i} has no manifest of {missing[0]} any more, so what it cost is not "
                "known; compare runs whose iterations/*/*/manifest.json are kept"
            )
        parts.append({stage: run.manifests[stage, i] for stage in ITERATION_STAGES})
    known = all(manifest.cpu_s is not None for part in parts for manifest in part.values())
    return Costs(
        trajectories=tuple(int(part["collect_rollouts"].counts["trajectories"]) for part in parts),
        generated_tokens=tuple(generated_tokens(part["collect_rollouts"]) for part in parts),
        trained_tokens=tuple(int(part["optimize"].counts["trained_tokens"]) for part in parts),
        wall_s=tuple(round(sum(one.seconds["total"] for one in part.values()), 3) for part in parts),
        cpu_s=tuple(round(sum(one.cpu_s or 0.0 for one in part.values()), 2) for part in parts) if known else None,
    )


def generated_tokens(rollouts: Manifest) -> int:
    """Response tokens that were sampled: as counted, or the mean a turn times the turns; lost episodes have none."""
    counts, metrics = rollouts.counts, rollouts.metrics
    if "response_tokens" in counts:
        return int(counts["response_tokens"])
    episodes = counts["trajectories"] - counts["errors"]
    return round(metrics["rollout/response_tokens"] * metrics["rollout/turns"] * episodes)


def read_training(run: Run, iterations: int) -> dict[str, tuple[float | None, ...]]:
    """The metrics of TRAINING in every iteration, None where it has none; without those that no iteration has."""
    found = {}
    for name, stage in TRAINING.items():
        values = [run.manifests[stage, i].metrics.get(name) for i in range(1, iterations + 1)]
        if any(value is not None for value in values):
            found[name] = tuple(None if value is None else round(value, 4) for value in values)
    return found


def stage_sums(manifests: Mapping[tuple[str, int], Manifest]) -> dict[str, dict[str, float]]:
    """Seconds of each stage and of its parts over the whole run, its CPU seconds, and its highest peak of memory.

    The peak is that of the accelerator where there is one. A process's memory only grows, so the peak of a stage on a
    CPU is that of the run until then.
    """
    sums: dict[str, dict[str, float]] = {}
    for (stage, _), manifest in sorted(manifests.items(), key=lambda entry: entry[0][1]):
        own = sums.setdefault(stage, {"times": 0, "cpu_s": 0.0, "peak_memory_gib": 0.0})
        own["times"] += 1
        own["cpu_s"] = round(own["cpu_s"] + (manifest.cpu_s or 0.0), 2)
        peak = manifest.peak_memory_mib.get("cuda") or manifest.peak_memory_mib.get("cpu", 0.0)
        own["peak_memory_gib"] = round(max(own["peak_memory_gib"], peak / 1024), 4)
        for part, seconds in manifest.seconds.items():
            own[part] = round(own.get(part, 0.0) + seconds, 4)
    return sums


def save(runs: Sequence[Measured], left_out: Sequence[str], path: Path) -> None:
    """Write the numbers of all runs as compressed JSON; the same numbers give the same bytes.

    Args:
        left_out: runs that are not in it, and why, one line each.
    """
    data = {"format": FORMAT, "left_out": list(left_out), "runs": [asdict(one) for one in runs]}
    text = json.dumps(data, separators=(",", ":"), default=str)
    with atomic_path(path) as temporary:
        temporary.write_bytes(gzip.compress(text.encode(), mtime=0))


def load(path: Path) -> tuple[list[Measured], list[str]]:
    """The inverse of `save`: the runs, and what was left out.

    Raises:
        RunError: missing, or not such a file.
    """
    try:
        data = json.loads(gzip.decompress(path.read_bytes()))
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']!r}, this version reads {FORMAT}")
        return [from_plain(one) for one in data["runs"]], [str(line) for line in data["left_out"]]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as fault:
        text = f"{path}: not the numbers of a comparison ({fault}); name a folder that `pipeline.compare` wrote"
        raise RunError(text) from fault


def from_plain(data: Mapping[str, Any]) -> Measured:
    """A run out of its JSON."""
    costs = {name: None if values is None else tuple(values) for name, values in data["costs"].items()}
    outcomes = {
        split: Outcomes(tuple(one["tasks"]), tuple(one["types"]), one["won"]) for split, one in data["outcomes"].items()
    }
    return Measured(
        **{
            **data,
            "evaluations": tuple(Evaluation(**one) for one in data["evaluations"]),
            "outcomes": outcomes,
            "costs": Costs(**costs),
            "training": {name: tuple(values) for name, values in data.get("training", {}).items()},
            "damage": tuple(data["damage"]),
        }
    )
