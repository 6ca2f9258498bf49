"""The critic's part of the optimise stage, for algorithms that have one: its engine, its steps, its files."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from runtime.engine import TrainingEngine
from runtime.losses import critic_loss, finish_critic_metrics
from runtime.microbatches import count_rows, plan_microbatches, train_batch
from runtime.records import Row
from stages.context import Context
from stages.engines import critic_engine
from stages.skipped_steps import note_skipped_step


@dataclass
class CriticTally:
    """What this rank's critic has seen while it trained."""

    sums: Counter[str] = field(default_factory=Counter)  # those of `critic_loss`, of the steps that were applied
    grad_norms: list[float] = field(default_factory=list)
    seconds: float = 0.0


def ready_critic(context: Context) -> TrainingEngine:
    """The engine that holds critic i-1: the resident one, or built from the files. Call it before the policy's."""
    resident, i = context.resident, context.iteration
    if resident.critic_engine is not None and resident.engine_iteration != i - 1:
        resident.critic_engine.close()
        resident.critic_engine = None
    if resident.critic_engine is None:
        state = context.paths.critic_engine(i - 1) if i > 1 else None
        resident.critic_engine = critic_engine(context, context.paths.critic(i - 1), state)
    resident.critic_engine.reload_states()
    return resident.critic_engine


def critic_step(
    context: Context, engine: TrainingEngine, rows: Sequence[Row], learning_rate: float, tally: CriticTally
) -> None:
    """One minibatch: a forward and a backward for each micro-batch of this rank, then one update."""
    start = time.perf_counter()
    config, distributed = context.config.optimize, context.distributed
    lengths = [len(row.input_ids) for row in rows]
    plan = plan_microbatches(lengths, config.microbatch_tokens, distributed.world_size)[distributed.rank]
    num_tokens, num_turns = count_rows(rows)
    by_token = bool(rows[0].token_returns)
    step_sums: Counter[str] = Counter()
    for k, microbatch in enumerate(plan):
        batch = train_batch([rows[index] for index in microbatch.rows], microbatch.weight).to(distributed.device)
        values = engine.forward(batch.tokens, by_token)
        loss, sums = critic_loss(
            values, batch, count=num_tokens if by_token else num_turns, value_clip=config.value_clip
        )
        engine.backward(loss, last=k == len(plan) - 1)
        step_sums.update(sums)
    norm = engine.step(learning_rate)
    tally.seconds += time.perf_counter() - start
    if not math.isfinite(norm):
        note_skipped_step(context, engine, rows)
        return
    tally.sums.update(step_sums)
    tally.grad_norms.append(norm)


def save_critic(context: Context, engine: TrainingEngine) -> None:
    """Write critic i and its engine's state beside the policy's."""
    paths, i = context.paths, context.iteration
    engine.save(paths.critic_engine(i))
    engine.export(paths.critic(i), companions=paths.critic(i - 1))
    engine.offload_states()


def critic_metrics(context: Context, tally: CriticTally) -> dict[str, float]:
    """Metrics over all ranks; nothing where nothing was trained."""
    sums: Counter[str] = Counter()
    for part in context.distributed.gather(dict(tally.sums), "the sums of the critic's losses"):
        sums.update(part)
    if not sums:
        return {}
    metrics = finish_critic_metrics(sums)
    if tally.grad_norms:
        metrics["critic/grad_norm"] = sum(tally.grad_norms) / len(tally.grad_norms)
    return metrics
