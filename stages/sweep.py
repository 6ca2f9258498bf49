"""What collect_rollouts and evaluate share: play a list of episodes with a policy, resumably, over all ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.errors import append_error
from runtime.generator import Generator
from runtime.pretrained import load_tokenizer
from runtime.prompts import PromptRenderer
from runtime.records import RecordError, Trajectory
from runtime.rollouts import EnvironmentPool, Play, PlaySettings, PlayTimes, play
from runtime.seeding import Name
from runtime.shards import Shards, ShardWriter, read_shards, shard_path
from runtime.weight_files import policy_fingerprint
from stages.backends import MakeGenerator, ready_backend

if TYPE_CHECKING:
    from stages.context import Context


@dataclass(frozen=True)
class Players:
    """The policy and the environments, ready to play."""

    make_generator: MakeGenerator
    fingerprint: str  # of the policy
    tokenizer: Any
    pool: EnvironmentPool
    seconds: float  # to get them ready


@dataclass(frozen=True)
class Sweep:
    """What is to be played and how."""

    plays: Sequence[Play]  # distinct
    folder: Path
    prefix: str  # of the shards' names
    seed_name: Name
    iteration: int
    temperature: float
    stage: str  # for errors.jsonl
    what: str  # for the progress bar
    # Where given, its shards may hold these besides and nothing else: later stages read whatever is in them.
    may_hold: frozenset[str] | None = None


@dataclass(frozen=True)
class SweepResult:
    """The sweep's trajectories (main rank; empty elsewhere) and what this call of it did, summed over ranks."""

    trajectories: tuple[Trajectory, ...]  # errors included; by task id and sample
    num_duplicates: int
    num_played: int  # in this call; the others were there before
    num_restarts: int  # of environment workers
    prompt_tokens: int
    response_tokens: int
    times: PlayTimes  # of the average rank


def get_ready(context: Context, directory: Path) -> Players:
    """Bring the backend to the weights of `directory`, start the environments; both stay in context.resident."""
    start = time.perf_counter()
    config, distributed, resident = context.config, context.distributed, context.resident
    fingerprint = policy_fingerprint(directory)
    tokenizer = load_tokenizer(directory)
    make_generator = ready_backend(context, directory, fingerprint, tokenizer)
    if resident.environments is None:
        cores = len(os.sched_getaffinity(0)) // distributed.world_size
        workers = config.rollout.workers or max(1, cores)
        limit = config.rollout.turn_timeout_s
        resident.environments = EnvironmentPool(config.env.name, config.env.options, workers, limit)
    return Players(make_generator, fingerprint, tokenizer, resident.environments, time.perf_counter() - start)


def play_sweep(context: Context, players: Players, sweep: Sweep) -> SweepResult:
    """Play the episodes that the shards do not have yet; each trajectory goes to the rank's shard as it ends.

    Episodes that ended in an error are played again when a stage is resumed. All ranks call this together.

    Raises:
        RecordError: a damaged shard, or trajectories of another policy in it.
        RolloutError: too many failures.
    """
    distributed = context.distributed
    before = read_shards(sweep.folder, sweep.prefix)
    _check_origin(before, players.fingerprint, sweep)
    done = {one.key for one in before.trajectories if one.status != "error"}
    missing = [one for one in sweep.plays if one.key not in done]
    distributed.barrier(f"the reading of the shards of {sweep.what}")  # before anyone appends to one
    own = missing[distributed.rank :: distributed.world_size]
    bar = context.progress(len(sweep.plays), sweep.what, "episode", len(sweep.plays) - len(missing))
    times = PlayTimes()
    restarts = players.pool.num_restarts
    generator = players.make_generator(sweep.temperature, len(own))
    with ShardWriter(shard_path(sweep.folder, distributed.rank, sweep.prefix)) as shard:
        _play_own(context, players, sweep, own, generator, shard, bar, times)
    bar.close()
    distributed.barrier(f"the episodes of {sweep.what}")
    numbers = [times.generation_s, times.environment_wait_s, times.total_s, times.environment_s]
    counts = [
        len(own),
        players.pool.num_restarts - restarts,
        generator.num_prompt_tokens,
        generator.num_response_tokens,
    ]
    *numbers, played, restarts, prompt, response = distributed.sum(numbers + counts, f"the times of {sweep.what}")
    after = read_shards(sweep.folder, sweep.prefix) if distributed.is_main else Shards((), 0, 0)
    return SweepResult(
        trajectories=_wanted(after, sweep) if distributed.is_main else (),
        num_duplicates=after.num_duplicates,
        num_played=int(played),
        num_restarts=int(restarts),
        prompt_tokens=int(prompt),
        response_tokens=int(response),
        times=PlayTimes(*(number / distributed.world_size for number in numbers)),
    )


def _play_own(
    context: Context,
    players: Players,
    sweep: Sweep,
    own: Sequence[Play],
    generator: Generator,
    shard: ShardWriter,
    bar: Any,
    times: PlayTimes,
) -> None:
    config, distributed = context.config, context.distributed
    renderer = PromptRenderer(
        players.tokenizer,
        context.adapter,
        config.env.history_length,
        config.env.prompt_tokens,
        config.model.chat_template,
        transcript=config.env.prompt_form == "transcript",
    )
    settings = PlaySettings(
        run_seed=config.run.seed,
        seed_name=sweep.seed_name,
        iteration=sweep.iteration,
        policy=players.fingerprint,
        max_turns=config.env.max_turns,
        max_error_share=config.rollout.max_error_share,
    )
    num_done = num_won = num_turns = num_invalid = 0
    for trajectory in play(own, players.pool, generator, renderer, settings, times):
        shard.append(trajectory)
        if trajectory.status == "error":
            _note_loss(context, sweep, trajectory)
        num_done += 1
        num_won += trajectory.success
        num_turns += len(trajectory.turns)
        num_invalid += sum(not turn.valid for turn in trajectory.turns)
        bar.update(distributed.world_size)  # rank 0 shows the bar; the others are about as far
        bar.note(
            success=f"{num_won / num_done:.2f}",
            turns=num_turns,
            invalid=f"{num_invalid / max(1, num_turns):.2f}",
            tokens_s=f"{generator.num_response_tokens / max(times.total_s, 1e-9):.0f}",
        )


def _note_loss(context: Context, sweep: Sweep, trajectory: Trajectory) -> None:
    """A lost episode goes to errors.jsonl too, where a user looks first."""
    error = trajectory.error or ""
    message = f"task {trajectory.task_id}: {error.splitlines()[-1] if error else 'lost'}"
    where = (sweep.stage, sweep.iteration, context.distributed.rank)
    append_error(context.paths.errors, *where, "EpisodeLost", message, lines=error, stopped=False)


def _check_origin(shards: Shards, fingerprint: str, sweep: Sweep) -> None:
    """Refuse to add to trajectories of other weights, another temperature or, where that matters, other tasks."""
    known = {one.key for one in sweep.plays} | (sweep.may_hold or set())
    for one in shards.trajectories:
        if sweep.may_hold is not None and one.key not in known:
            raise RecordError(
                f"{sweep.folder}: trajectory {one.key} is of no task of {sweep.what}; delete its line, or the folder "
                "to play anew"
            )
        if one.policy != fingerprint or one.temperature != sweep.temperature:
            raise RecordError(
                f"{sweep.folder}: trajectory {one.key} was sampled by policy {one.policy} at temperature "
                f"{one.temperature:g}; now it is {fingerprint} at {sweep.temperature:g}; delete the folder to play anew"
            )


def _wanted(shards: Shards, sweep: Sweep) -> tuple[Trajectory, ...]:
    """The sweep's trajectories, all there; shards of an earlier, larger sweep may hold more."""
    found = {one.key: one for one in shards.trajectories}
    lost = [one.key for one in sweep.plays if one.key not in found]
    if lost:
        raise RecordError(
            f"{sweep.folder}: {len(lost)} of {len(sweep.plays)} trajectories are not in the shards ({lost[0]}, ...); "
            "with several machines the run directory must be on a shared disk"
        )
    wanted = [found[one.key] for one in sweep.plays]
    return tuple(sorted(wanted, key=lambda one: (one.task_id, one.sample)))
