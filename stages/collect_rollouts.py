"""Stage: the trajectories of an iteration, sampled with the policy before it (policy i-1): one a task, or as many as
the algorithm wants.

Reads policy i-1. Writes iterations/i/rollouts/rank-RRRRR.jsonl, one line a trajectory, as they end, and
baseline-rank-RRRRR.jsonl where the algorithm plays episodes that are not trained. After a kill the finished
trajectories stay as they are and only the missing ones are played.
"""

from __future__ import annotations

if __name__ == "__main__":
    import sys
    from pathlib import Path as _Path

    sys.path.insert(0, str(_Path(__file__).resolve().parents[1]))

import statistics
from collections.abc import Sequence

from env_adapters.base import EnvironmentFault, Task
from runtime.algorithms.base import SweepPlan
from runtime.records import RecordError, Trajectory
from runtime.seeding import permutation
from stages.algorithm import algorithm_of
from stages.context import Context, StageResult
from stages.sweep import Sweep, SweepResult, get_ready, play_sweep


def run(context: Context) -> StageResult:
    """Play what the algorithm asks for in `context.iteration`, sweep after sweep."""
    config, adapter, iteration = context.config, context.adapter, context.iteration
    algorithm = algorithm_of(config)
    split, count = adapter.tasks(adapter.train_split), config.rollout.trajectories // algorithm.samples
    tasks = tasks_of_iteration(split, config.run.seed, iteration, count)
    others = further_tasks(split, tasks, config.run.seed, iteration)
    players = get_ready(context, context.paths.policy(iteration - 1))
    results: list[SweepResult] = []
    num_replayed = 0  # tokens of turns that were played again, not sampled
    by_prefix: dict[str, SweepResult] = {}  # a later sweep of the same shards holds the earlier one's episodes too
    plan = algorithm.next_sweep(tasks, [], lambda n: others[:n])  # the same on every rank
    while plan is not None:
        results.append(play_sweep(context, players, _sweep(context, plan, len(results))))
        by_prefix[plan.prefix] = results[-1]
        num_replayed += sum(len(turn.response_ids) for one in plan.plays for turn in one.script)
        plan = None
        if context.distributed.is_main:  # it alone has read what was played
            plan = algorithm.next_sweep(tasks, [one.trajectories for one in results], lambda n: others[:n])
        plan = context.distributed.broadcast(plan, "the next episodes to play")
    if not context.distributed.is_main:
        return StageResult()
    trained = by_prefix[""].trajectories
    played = [one for result in by_prefix.values() for one in result.trajectories]
    return StageResult(
        counts={
            "trajectories": len(played),
            "baselines": len(played) - len(trained),
            "turns": sum(len(one.turns) for one in played),
            "errors": sum(one.status == "error" for one in played),
            "played_now": sum(result.num_played for result in results),
            "duplicates": sum(result.num_duplicates for result in by_prefix.values()),
            "response_tokens": sum(len(turn.response_ids) for one in played for turn in one.turns) - num_replayed,
        },
        metrics=rollout_metrics(trained) | speed_metrics(results),
        seconds=time_split(results, players.seconds),
    )


def _sweep(context: Context, plan: SweepPlan, number: int) -> Sweep:
    iteration = context.iteration
    return Sweep(
        plays=plan.plays,
        folder=context.paths.rollouts(iteration),
        prefix=plan.prefix,
        seed_name=iteration,
        iteration=iteration,
        temperature=0.0 if plan.greedy else context.config.rollout.temperature,
        stage="collect_rollouts",
        what=f"rollouts {iteration}" + (f", sweep {number + 1}" if number else ""),
        may_hold=plan.may_hold,
    )


def tasks_of_iteration(tasks: Sequence[Task], run_seed: int, iteration: int, count: int) -> list[Task]:
    """The `count` tasks of an iteration (>= 1): the split in shuffled order, over and over, cut into iterations.

    Every epoch holds each task once. Where an iteration reaches over the end of an epoch, the tasks it had from the
    old one come later in the new one, so that no task is twice in an iteration.

    Raises:
        EnvironmentFault: the split has fewer than `count` tasks.
    """
    n = len(tasks)
    if n < count:
        raise EnvironmentFault(
            f"the train split has {n} tasks, rollout.trajectories = {count}; lower it to {n} or less"
        )
    stream: list[int] = []
    epoch = 0
    while len(stream) < iteration * count:
        order = permutation(run_seed, "epoch", epoch, n=n).tolist()
        begun = len(stream) % count  # tasks that the iteration across the border has already
        if begun:
            already = set(stream[-begun:])
            head = [index for index in order if index not in already][: count - begun]
            taken = set(head)
            order = head + [index for index in order if index not in taken]
        stream += order
        epoch += 1
    return [tasks[index] for index in stream[(iteration - 1) * count : iteration * count]]


def further_tasks(split: Sequence[Task], tasks: Sequence[Task], run_seed: int, iteration: int) -> list[Task]:
    """The tasks of the split that are not among `tasks`, in an order that belongs to the iteration."""
    own = {task.task_id for task in tasks}
    order = permutation(run_seed, "further tasks", iteration, n=len(split)).tolist()
    return [split[index] for index in order if split[index].task_id not in own]


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Averages over the episodes that count: errors are left out, and their number given.

    Raises:
        RecordError: every episode ended in an error.
    """
    good = [one for one in trajectories if one.status != "error"]
    if not good:
        raise RecordError(f"all {len(trajectories)} episodes ended in an error; the first: {trajectories[0].error}")
    turns = [turn for one in good for turn in one.turns]
    return {
        "rollout/success": statistics.fmean(one.success for one in good),
        "rollout/score": statistics.fmean(one.score for one in good),
        "rollout/return": statistics.fmean(one.return_undiscounted for one in good),
        "rollout/turns": len(turns) / len(good),
        "rollout/truncated_share": statistics.fmean(one.status == "truncated" for one in good),
        "rollout/invalid_share": statistics.fmean(not turn.valid for turn in turns),
        "rollout/prompt_tokens": statistics.fmean(len(turn.prompt_ids) for turn in turns),
        "rollout/response_tokens": statistics.fmean(len(turn.response_ids) for turn in turns),
        "rollout/errors": float(len(trajectories) - len(good)),
    }


def speed_metrics(results: Sequence[SweepResult]) -> dict[str, float]:
    """Tokens a second over all ranks, of what was played now; nothing where all was there already."""
    metrics = {"rollout/worker_restarts": float(sum(result.num_restarts for result in results))}
    total_s = sum(result.times.total_s for result in results)
    if any(result.num_played for result in results) and total_s > 0:
        response = sum(result.response_tokens for result in results)
        prompt = sum(result.prompt_tokens for result in results)
        metrics["rollout/response_tokens_per_s"] = response / total_s
        metrics["rollout/tokens_per_s"] = (prompt + response) / total_s
        metrics["rollout/environment_busy_s"] = sum(result.times.environment_s for result in results)
    return metrics


def time_split(results: Sequence[SweepResult], refresh_s: float) -> dict[str, float]:
    """Wall seconds of the parts of the sweeps. Environments overlap with generation: only waiting for them counts."""
    generation_s = sum(result.times.generation_s for result in results)
    wait_s = sum(result.times.environment_wait_s for result in results)
    total_s = sum(result.times.total_s for result in results)
    return {
        "refresh_s": refresh_s,
        "generation_s": generation_s,
        "environment_wait_s": wait_s,
        "loop_s": total_s - generation_s - wait_s,
    }


if __name__ == "__main__":
    from pipeline.one_stage import main  # the script, not the module, sits above the pipeline

    main("collect_rollouts")
