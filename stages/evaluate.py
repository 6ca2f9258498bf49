"""Stage: how well policy i does on held-out tasks. Fixed lists, each task once.

Writes evaluations/i: <split>-t<temperature>-rank-RRRRR.jsonl (the episodes; resumed like rollouts) and results.json.
A task's randomness derives from the run's seed, its split and its id, not from the iteration: policies are compared
on the same tasks with the same luck.
"""

from __future__ import annotations

if __name__ == "__main__":
    import sys
    from pathlib import Path as _Path

    sys.path.insert(0, str(_Path(__file__).resolve().parents[1]))

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from env_adapters.base import Task
from runtime.files import atomic_write_text
from runtime.intervals import wilson_interval
from runtime.records import Trajectory
from runtime.rollouts import Play
from stages.context import Context, StageResult
from stages.sweep import Players, Sweep, SweepResult, get_ready, play_sweep

GREEDY = 0.0


def run(context: Context) -> StageResult:
    """Evaluate policy `context.iteration` on every held-out split of the adapter."""
    config, adapter, iteration = context.config, context.adapter, context.iteration
    full = iteration in (0, config.run.iterations)
    count = config.evaluate.final_tasks if full else config.evaluate.tasks
    temperatures = [config.evaluate.temperature]
    if full and config.evaluate.greedy_too and GREEDY not in temperatures:
        temperatures.append(GREEDY)
    players = get_ready(context, context.paths.policy(iteration))
    sweeps: dict[tuple[str, float], SweepResult] = {}
    for split in adapter.evaluation_splits:
        tasks = stratified(adapter.tasks(split), count)
        for temperature in temperatures:
            sweeps[split, temperature] = _sweep(context, players, split, tasks, temperature)
    if not context.distributed.is_main:
        return StageResult()
    results = {
        "iteration": iteration,
        "policy": players.fingerprint,
        "seed": config.run.seed,
        "max_turns": config.env.max_turns,
        "environment": {"name": config.env.name, **adapter.description()},
        "sweeps": [
            {"split": split, "temperature": temperature, **summary(sweep.trajectories)}
            for (split, temperature), sweep in sweeps.items()
        ],
    }
    text = json.dumps(results, indent=1, ensure_ascii=True, default=str)
    atomic_write_text(context.paths.evaluation(iteration) / "results.json", text + "\n")
    print(table(results), flush=True)
    return StageResult(_counts(sweeps), _metrics(results, config.evaluate.temperature), _seconds(sweeps, players))


def _sweep(context: Context, players: Players, split: str, tasks: Sequence[Task], temperature: float) -> SweepResult:
    sweep = Sweep(
        plays=[Play(task) for task in tasks],
        folder=context.paths.evaluation(context.iteration),
        prefix=f"{split}-t{temperature:g}-",
        seed_name=f"evaluate/{split}",
        iteration=context.iteration,
        temperature=temperature,
        stage="evaluate",
        what=f"evaluate {context.iteration}, {split}" + (", greedy" if temperature == GREEDY else ""),
    )
    return play_sweep(context, players, sweep)


def stratified(tasks: Sequence[Task], count: int) -> list[Task]:
    """`count` tasks (0: all), each type with its share of the split, the first ones of each type; in the split's order.

    Shares are rounded by largest remainders; of equal remainders the type that comes first in the split gets the task.
    """
    if count == 0 or count >= len(tasks):
        return list(tasks)
    places: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        places.setdefault(task.task_type, []).append(index)
    quota = {kind: count * len(indices) // len(tasks) for kind, indices in places.items()}
    remainder = {kind: count * len(indices) % len(tasks) for kind, indices in places.items()}
    by_remainder = sorted(places, key=lambda kind: -remainder[kind])  # stable: ties keep the split's order
    for kind in by_remainder[: count - sum(quota.values())]:
        quota[kind] += 1
    chosen = sorted(index for kind, indices in places.items() for index in indices[: quota[kind]])
    return [tasks[index] for index in chosen]


def summary(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """{"all": numbers, "types": {task type: numbers}} of one sweep."""
    kinds = sorted({one.task_type for one in trajectories})
    types = {kind: numbers([one for one in trajectories if one.task_type == kind]) for kind in kinds}
    return {"all": numbers(trajectories), "types": types}


def numbers(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Success with its interval, turns, validity, score; None: no data. Errors are counted apart, in nothing else."""
    good = [one for one in trajectories if one.status != "error"]
    won = [one for one in good if one.success]
    turns = [turn for one in good for turn in one.turns]
    low, high = wilson_interval(len(won), len(good))
    return {
        "n": len(good),
        "success": len(won) / len(good) if good else None,
        "success_low": low,
        "success_high": high,
        "score": statistics.fmean(one.score for one in good) if good else None,
        "turns": len(turns) / len(good) if good else None,
        "turns_of_successes": statistics.fmean(len(one.turns) for one in won) if won else None,
        "invalid_share": statistics.fmean(not turn.valid for turn in turns) if turns else None,
        "errors": len(trajectories) - len(good),
    }


def table(results: Mapping[str, Any]) -> str:
    """The results as lines of text, success in per cent."""
    lines = [f"policy {results['iteration']} on {results['environment']['name']}, at most {results['max_turns']} turns"]
    head = f"{'split':<14}{'T':>5}  {'task type':<34}{'n':>5}{'success':>9}  {'95 %':<13}"
    lines.append(head + f"{'turns':>7}{'(won)':>7}{'invalid':>9}{'score':>7}{'errors':>8}")
    for sweep in results["sweeps"]:
        for kind, row in {"all": sweep["all"], **sweep["types"]}.items():
            name = f"{sweep['split']:<14}{sweep['temperature']:>5g}" if kind == "all" else " " * 19
            interval = f"{100 * row['success_low']:.1f}-{100 * row['success_high']:.1f}"
            lines.append(
                f"{name}  {kind:<34}{row['n']:>5}{_form(row['success'], 100):>9}  {interval:<13}"
                f"{_form(row['turns']):>7}{_form(row['turns_of_successes']):>7}{_form(row['invalid_share'], 100):>9}"
                f"{_form(row['score'], 1, 3):>7}{row['errors']:>8}"
            )
    return "\n".join(lines)


def _form(number: float | None, factor: float = 1.0, digits: int = 1) -> str:
    return "-" if number is None else f"{factor * number:.{digits}f}"


def _metrics(results: Mapping[str, Any], temperature: float) -> dict[str, float]:
    """evaluate/<split>/success and so on; of the greedy sweep evaluate/<split>/greedy_success."""
    metrics = {}
    for sweep in results["sweeps"]:
        prefix = f"evaluate/{sweep['split']}/" + ("" if sweep["temperature"] == temperature else "greedy_")
        for name in ("success", "score", "turns", "invalid_share"):
            if sweep["all"][name] is not None:
                metrics[prefix + name] = sweep["all"][name]
        for kind, row in sweep["types"].items():
            if row["success"] is not None:
                metrics[f"{prefix}success_of/{kind}"] = row["success"]
    return metrics


def _counts(sweeps: Mapping[tuple[str, float], SweepResult]) -> dict[str, int]:
    trajectories = [one for sweep in sweeps.values() for one in sweep.trajectories]
    return {
        "trajectories": len(trajectories),
        "turns": sum(len(one.turns) for one in trajectories),
        "errors": sum(one.status == "error" for one in trajectories),
        "played_now": sum(sweep.num_played for sweep in sweeps.values()),
        "duplicates": sum(sweep.num_duplicates for sweep in sweeps.values()),
    }


def _seconds(sweeps: Mapping[tuple[str, float], SweepResult], players: Players) -> dict[str, float]:
    times = [sweep.times for sweep in sweeps.values()]
    generation, waiting = sum(one.generation_s for one in times), sum(one.environment_wait_s for one in times)
    return {
        "refresh_s": players.seconds,
        "generation_s": generation,
        "environment_wait_s": waiting,
        "loop_s": sum(one.total_s for one in times) - generation - waiting,
    }


if __name__ == "__main__":
    from pipeline.one_stage import main  # the script, not the module, sits above the pipeline

    main("evaluate")
