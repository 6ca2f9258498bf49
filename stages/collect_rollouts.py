"""Stage: one trajectory for each task of the iteration, sampled with the policy before it (policy i-1).

Reads policy i-1. Writes iterations/i/rollouts/rank-RRRRR.jsonl, one line a trajectory, as they end. After a kill the
finished trajectories stay as they are and only the missing tasks are played.
"""

from __future__ import annotations

if __name__ == "__main__":
    import sys
    from pathlib import Path as _Path

    sys.path.insert(0, str(_Path(__file__).resolve().parents[1]))

import statistics
from collections.abc import Sequence

from env_adapters.base import EnvironmentFault, Task
from runtime.records import RecordError, Trajectory
from runtime.seeding import permutation
from stages.context import Context, StageResult
from stages.sweep import Sweep, SweepResult, get_ready, play_sweep


def run(context: Context) -> StageResult:
    """Play the tasks of `context.iteration`."""
    config, adapter, iteration = context.config, context.adapter, context.iteration
    tasks = tasks_of_iteration(
        adapter.tasks(adapter.train_split), config.run.seed, iteration, config.rollout.trajectories
    )
    players = get_ready(context, context.paths.policy(iteration - 1))
    sweep = Sweep(
        tasks=tasks,
        folder=context.paths.rollouts(iteration),
        prefix="",
        seed_name=iteration,
        iteration=iteration,
        temperature=config.rollout.temperature,
        stage="collect_rollouts",
        what=f"rollouts {iteration}",
        alone=True,
    )
    result = play_sweep(context, players, sweep)
    if not context.distributed.is_main:
        return StageResult()
    return StageResult(
        counts={
            "trajectories": len(result.trajectories),
            "turns": sum(len(one.turns) for one in result.trajectories),
            "errors": sum(one.status == "error" for one in result.trajectories),
            "played_now": result.num_played,
            "duplicates": result.num_duplicates,
        },
        metrics=rollout_metrics(result.trajectories) | speed_metrics(result),
        seconds=time_split(result, players.seconds),
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


def speed_metrics(result: SweepResult) -> dict[str, float]:
    """Tokens a second over all ranks, of what was played now; nothing where all was there already."""
    metrics = {"rollout/worker_restarts": float(result.num_restarts)}
    if result.num_played and result.times.total_s > 0:
        metrics["rollout/response_tokens_per_s"] = result.response_tokens / result.times.total_s
        metrics["rollout/tokens_per_s"] = (result.prompt_tokens + result.response_tokens) / result.times.total_s
        metrics["rollout/environment_busy_s"] = result.times.environment_s
    return metrics


def time_split(result: SweepResult, refresh_s: float) -> dict[str, float]:
    """Wall seconds of the parts of a sweep. Environments overlap with generation: only waiting for them counts."""
    times = result.times
    return {
        "refresh_s": refresh_s,
        "generation_s": times.generation_s,
        "environment_wait_s": times.environment_wait_s,
        "loop_s": times.total_s - times.generation_s - times.environment_wait_s,
    }


if __name__ == "__main__":
    from pipeline.one_stage import main  # the script, not the module, sits above the pipeline

    main("collect_rollouts")
