"""What the runs of a comparison come to, variant by variant: success, costs, times, paired tests. Plain JSON values."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.compare.measuring import TRAINING, UNJUDGED, WON, Evaluation, Measured
from pipeline.compare.resampling import mcnemar, on_grid, paired_interval, stratified_interval

# The time table's columns: which parts of which stages' seconds they add up. All else is "rest".
TIME_COLUMNS = {
    "generation": {("collect_rollouts", "generation_s")},
    "environment": {("collect_rollouts", "environment_wait_s")},
    "old log-probs, V, Q": {("compute_advantages", "old_logprobs_s")},
    "critic values": {("compute_advantages", "critic_values_s")},
    "reference": {("compute_advantages", "ref_logprobs_s")},
    "policy update": {("optimize", "steps_s")},
    "critic update": {("optimize", "critic_s")},
}
REST, TOTAL = "rest", "total"
TIMED = ("collect_rollouts", "compute_advantages", "optimize")
LATE_SHARE = 4  # the last one in so many iterations stand for the end of training
BUDGETS = {"trajectories": "trajectories", "wall_s": "wall seconds", "cpu_s": "CPU seconds"}

Estimate = dict[str, Any]  # {"mean": interquartile mean, "low":, "high":, "values": one a seed}
Groups = Mapping[str, Sequence[Measured]]  # variant -> its runs, by seed


def grouped(runs: Sequence[Measured]) -> dict[str, list[Measured]]:
    """The runs of each variant by seed, variants in the order in which they come."""
    groups: dict[str, list[Measured]] = {}
    for one in runs:
        groups.setdefault(one.variant, []).append(one)
    return {name: sorted(own, key=lambda one: one.seed) for name, own in groups.items()}


def summarise(runs: Sequence[Measured]) -> dict[str, Any]:
    """Everything that the tables show."""
    groups = grouped(runs)
    splits = list(dict.fromkeys(one.split for run in runs for one in run.evaluations))
    shared = alike(runs)
    by_seed = [alike([run for run in runs if run.seed == seed]) for seed in {run.seed for run in runs}]
    expected = set.intersection(*map(set, by_seed))  # as the first policy of a seed: no difference between variants
    return {
        "environment": shared.get("env.name", "several"),
        "splits": splits,
        "variants": [describe(name, own, expected) for name, own in groups.items()],
        "success": {split: {name: success(own, split) for name, own in groups.items()} for split in splits},
        "costs": {name: costs(own) for name, own in groups.items()},
        "training": {name: training(own) for name, own in groups.items()},
        "seconds_an_iteration": {name: times(own) for name, own in groups.items()},
        "equal": [row for what in BUDGETS for row in at_equal(groups, what, splits)],
        "pairs": [row for split in splits for row in pairs(groups, split)],
        "notes": notes(groups),
        "shared_settings": shared,
    }


def alike(runs: Sequence[Measured]) -> dict[str, Any]:
    """The settings that all these runs have in common."""
    first, *others = (run.settings for run in runs)
    return {key: value for key, value in first.items() if all(key in one and one[key] == value for one in others)}


def describe(name: str, own: Sequence[Measured], expected: Collection[str]) -> dict[str, Any]:
    """A variant: its seeds, and the settings in which it is not like the others of a seed."""
    settings = {key: value for key, value in own[0].settings.items() if key not in expected}
    return {"name": name, "seeds": [one.seed for one in own], "settings": settings}


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """The interquartile mean over seeds with its interval; seeds without a value are left out."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    mean, low, high = stratified_interval([np.array(known)])
    return {"mean": float(mean), "low": float(low), "high": float(high), "values": known}


def success(own: Sequence[Measured], split: str) -> dict[str, Any]:
    """The first and the last policy on a split; of the last one also task types, turns and score."""
    first = [evaluation(run, split, 0) for run in own]
    last = [evaluation(run, split, run.iterations) for run in own]
    kinds = sorted({kind for one in last if one is not None for kind in one.types})
    return {
        "before": estimate([one and one.success for one in first]),
        "after": estimate([one and one.success for one in last]),
        "types": {kind: estimate([one and one.types.get(kind) for one in last]) for kind in kinds},
        "turns": estimate([one and one.turns for one in last]),
        "score": estimate([one and one.score for one in last]),
        "n": [one.n for one in last if one is not None],
    }


def evaluation(run: Measured, split: str, iteration: int) -> Evaluation | None:
    return next((one for one in run.evaluations if (one.split, one.iteration) == (split, iteration)), None)


def costs(own: Sequence[Measured]) -> dict[str, Estimate | None]:
    """What training cost: the iterations, without warm start and evaluation. Memory: the highest of all stages."""
    found = {name: estimate([spent(run, name)[-1] for run in own]) for name in ("trajectories", "generated_tokens",
             "trained_tokens", "wall_s")}  # fmt: skip
    cpu = [spent(run, "cpu_s") for run in own]
    found["cpu_s"] = estimate([None if one is None else one[-1] for one in cpu])
    found["peak_memory_gib"] = estimate([max(one["peak_memory_gib"] for one in run.stages.values()) for run in own])
    found["optimize_memory_gib"] = estimate([run.stages["optimize"]["peak_memory_gib"] for run in own])
    return found


def spent(run: Measured, what: str) -> list[float] | None:
    """What had been spent when policy 0, 1, 2, ... was there."""
    values = getattr(run.costs, what)
    return None if values is None else list(itertools.accumulate(values, initial=0))


def times(own: Sequence[Measured]) -> dict[str, float]:
    """Seconds an iteration by what they were spent on; the mean over iterations and seeds."""
    iterations = sum(run.iterations for run in own)

    def total(parts: set[tuple[str, str]]) -> float:
        return sum(run.stages[stage].get(part, 0.0) for run in own for stage, part in parts) / iterations

    found = {column: total(parts) for column, parts in TIME_COLUMNS.items()}
    whole = total({(stage, "total") for stage in TIMED})
    return {**found, REST: whole - sum(found.values()), TOTAL: whole}


def training(own: Sequence[Measured]) -> dict[str, Estimate | None]:
    """The metrics of TRAINING, each run's mean over its last iterations; those that are None do not count."""
    found = {}
    for name in TRAINING:
        late = [run.training.get(name, ())[-max(1, run.iterations // LATE_SHARE) :] for run in own]
        known = [[value for value in values if value is not None] for values in late]
        found[name] = estimate([sum(values) / len(values) if values else None for values in known])
    return found


def curve(run: Measured, split: str, what: str) -> tuple[list[float], list[float]]:
    """Success on a split against what had been spent: trajectories, tokens, seconds."""
    had = spent(run, what)
    points = [(had[one.iteration], one.success) for one in run.evaluations
              if had is not None and one.split == split and one.success is not None]  # fmt: skip
    rising = [point for i, point in enumerate(points) if i == 0 or point[0] > points[i - 1][0]]
    return [x for x, _ in rising], [y for _, y in rising]


def at_equal(groups: Groups, what: str, splits: Sequence[str]) -> list[dict[str, Any]]:
    """Success of every variant when as much had been spent as the cheapest run spent in all.

    Between two evaluations of a run its success is interpolated. Nothing where a run does not know what it spent, or
    where all spent the same.
    """
    ends = [had[-1] for own in groups.values() for run in own if (had := spent(run, what)) is not None]
    if len(ends) < sum(map(len, groups.values())) or min(ends) == max(ends):
        return []
    rows = []
    for split in splits:
        found = {}
        for name, own in groups.items():
            curves = [curve(run, split, what) for run in own]
            values = [float(on_grid(x, y, np.array([min(ends)]))[0]) for x, y in curves if x]
            found[name] = estimate([value for value in values if not np.isnan(value)])
        rows.append({"what": what, "budget": min(ends), "split": split, "success": found})
    return rows


def pairs(groups: Groups, split: str) -> list[dict[str, Any]]:
    """Every two variants on the tasks that the last policies of both played, over the seeds that both have."""
    rows = []
    for (first, own), (second, others) in itertools.combinations(groups.items(), 2):
        by_seed = {run.seed: run for run in others}
        matched = [(run, by_seed[run.seed]) for run in own if run.seed in by_seed]
        matched = [(a, b) for a, b in matched if split in a.outcomes and split in b.outcomes]
        if matched and (row := pair(matched, split)):
            rows.append({"split": split, "first": first, "second": second, **row})
    return rows


def pair(matched: Sequence[tuple[Measured, Measured]], split: str) -> dict[str, Any] | None:
    """The difference of two variants, task by task and seed by seed, and McNemar's counts and p-values.

    None where no task was judged for both.
    """
    results = [[dict(zip(one.outcomes[split].tasks, one.outcomes[split].won, strict=True)) for one in both]
               for both in matched]  # fmt: skip
    common = set.intersection(*(set(one) for both in results for one in both))
    outcomes = matched[0][0].outcomes[split]
    tasks = {task: kind for task, kind in zip(outcomes.tasks, outcomes.types, strict=True) if task in common}
    first, second = (np.array([[judged(both[side][task]) for task in tasks] for both in results]) for side in (0, 1))
    difference, low, high = paired_interval(first, second, list(tasks.values()))
    if np.isnan(difference):
        return None
    alone = ((first > second).sum(axis=1), (second > first).sum(axis=1))
    return {
        "seeds": [a.seed for a, _ in matched],
        "tasks": len(tasks),
        "difference": difference,
        "low": low,
        "high": high,
        "first_only": [int(n) for n in alone[0]],
        "second_only": [int(n) for n in alone[1]],
        "p": [mcnemar(int(a), int(b)) for a, b in zip(*alone, strict=True)],
        "p_pooled": mcnemar(int(alone[0].sum()), int(alone[1].sum())),
    }


def judged(result: str) -> float:
    return float("nan") if result == UNJUDGED else float(result == WON)


def notes(groups: Groups) -> list[str]:
    """Where the comparison is not one of like with like."""
    runs = [run for own in groups.values() for run in own]
    found = []
    starts: dict[int, set[str]] = {}
    for run in runs:
        starts.setdefault(run.seed, set()).add(run.start)
    if apart := sorted(seed for seed, own in starts.items() if len(own) > 1):
        found.append(f"the variants do not start from the same weights (seeds {', '.join(map(str, apart))})")
    seeds = {name: tuple(run.seed for run in own) for name, own in groups.items()}
    if len(set(seeds.values())) > 1:
        found.append("not all variants have the same seeds")
    if len({run.costs.trajectories for run in runs}) > 1:
        found.append("the iterations of the runs do not all have the same number of trajectories")
    lists = {split: {run.outcomes[split].tasks for run in runs if split in run.outcomes}
             for run in runs for split in run.outcomes}  # fmt: skip
    found += [f"{split}: not all runs were evaluated on the same tasks" for split, own in lists.items() if len(own) > 1]
    worlds = {repr(sorted(run.environment.items(), key=str)) for run in runs}
    if len(worlds) > 1:
        found.append("the environment did not describe itself alike in all runs: other data, options or versions")
    return found + [f"{run.variant}, seed {run.seed}: {line}" for run in runs for line in run.damage]
