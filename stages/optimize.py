"""Stage: policy i-1 -> policy i by the joint loss of SAPO (arXiv 2608.19842), Eq. 8-12, or what an algorithm leaves
of it (the clipped objective, KL and entropy where V and Q are not trained).

Reads iterations/i/{rollouts, advantages} and policy i-1 with its engine checkpoint. Writes checkpoints/i:
engine/ (fp32 masters and Adam moments, the truth) and policy/ (safetensors, an export of them); critic_engine/ and
critic/ likewise, where the algorithm has a critic.
A stage that was killed is done again from its start, with the same result to the bit.
"""

from __future__ import annotations

if __name__ == "__main__":
    import sys
    from pathlib import Path as _Path

    sys.path.insert(0, str(_Path(__file__).resolve().parents[1]))

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from runtime.engine import TrainingEngine, learning_rate_at
from runtime.losses import bounded_exp, finish_metrics, sapo_loss
from runtime.microbatches import Microbatch, count_rows, plan_microbatches, plan_minibatches, train_batch
from runtime.records import Row
from runtime.rows import make_rows
from runtime.scoring import read_scores
from runtime.shards import read_targets, read_trajectories
from stages.algorithm import algorithm_of
from stages.context import Context, StageResult
from stages.critic_training import CriticTally, critic_metrics, critic_step, ready_critic, save_critic
from stages.engines import policy_engine
from stages.skipped_steps import note_skipped_step

LOWEST_RATE = 0.1  # share of the learning rate that is left after its decay


@dataclass
class Tally:
    """What this rank has seen while it trained. `sums` are those of `sapo_loss`, added up."""

    sums: Counter[str] = field(default_factory=Counter)  # of the steps that were applied
    grad_norms: list[float] = field(default_factory=list)  # one an optimizer step that was applied
    learning_rate: float = 0.0  # of the last step
    first_ratio_error: float = 0.0  # max |ratio - 1| before the first step: 0 up to rounding


def run(context: Context) -> StageResult:
    """Train on the rollouts of `context.iteration` and write the policy of that number."""
    config, paths, i = context.config.optimize, context.paths, context.iteration
    start = time.perf_counter()
    rows = read_rows(context)
    algorithm = algorithm_of(context.config)
    critic = ready_critic(context) if algorithm.critic else None
    engine = ready_engine(context)
    engine.reload_states()
    context.resident.engine_iteration = None  # between two policies until the new one is saved
    updates_before, skipped_before = engine.num_updates, engine.skipped_steps
    loaded = time.perf_counter()

    tally, critic_tally = Tally(), CriticTally()
    row_turns = [len(row.spans) for row in rows]
    bar = context.progress(config.epochs * sum(row_turns), "optimize", "turn")
    for epoch in range(config.epochs if rows else 0):
        for minibatch in plan_minibatches(row_turns, config.minibatch_size, context.config.run.seed, i, epoch):
            chosen = [rows[index] for index in minibatch]
            if critic is not None:
                rate = step_rate(context, critic.num_updates, algorithm.critic_learning_rate or config.learning_rate)
                critic_step(context, critic, chosen, rate, critic_tally)
            if critic is None or i > config.value_warmup_iterations:  # a policy without values has no part in it
                optimizer_step(context, engine, chosen, tally, algorithm.clip_high or config.clip_high)
            bar.update(sum(row_turns[index] for index in minibatch))
    bar.close()
    trained = time.perf_counter()

    engine.save(paths.engine(i))
    saved = time.perf_counter()
    engine.export(paths.policy(i), companions=paths.policy(i - 1))
    engine.offload_states()
    exported = time.perf_counter()
    if critic is not None:
        save_critic(context, critic)
    context.resident.engine_iteration = i
    seconds = {
        "load_s": loaded - start,
        "steps_s": trained - loaded - critic_tally.seconds,
        "save_s": saved - trained,
        "export_s": exported - saved,
    }
    if critic is not None:
        seconds |= {"critic_s": critic_tally.seconds, "critic_save_s": time.perf_counter() - exported}
    num_tokens = config.epochs * sum(len(row.input_ids) for row in rows)
    counts = {
        "turns": sum(row_turns),
        "trained_tokens": num_tokens,
        "updates": engine.num_updates - updates_before,
        "skipped_steps": engine.skipped_steps - skipped_before,
        "passed_through": int(not rows),
        "peak_memory_bytes": context.distributed.max(engine.peak_memory_bytes(), "the peak memory of all ranks"),
    }
    metrics = {
        **batch_metrics(context, tally),
        **critic_metrics(context, critic_tally),
        "sapo/updates": float(counts["updates"]),
        "sapo/skipped_steps": float(counts["skipped_steps"]),
        "optimize/tokens_per_s": num_tokens / max(seconds["steps_s"], 1e-9),
        "optimize/peak_memory_gib": counts["peak_memory_bytes"] / 2**30,
    }
    return StageResult(counts=counts, metrics=metrics, seconds=seconds)


def read_rows(context: Context) -> list[Row]:
    """All training rows of the iteration; every rank reads all of them and so makes the same plan."""
    folder = context.paths.advantages(context.iteration)
    trajectories = read_trajectories(context.paths.rollouts(context.iteration))
    targets = {one.key: one for one in read_targets(folder / "targets.jsonl")}
    return make_rows(trajectories, read_scores(folder), targets, context.config.value.r_max)


def ready_engine(context: Context) -> TrainingEngine:
    """The engine that holds policy i-1: the resident one, or built from the files.

    Policy 0 has no optimizer: the first iteration starts a fresh one from its weights.
    """
    resident, i = context.resident, context.iteration
    if resident.engine is not None and resident.engine_iteration == i - 1:
        return resident.engine
    if resident.engine is not None:
        resident.engine.close()
    resident.engine, resident.engine_iteration = None, None
    resident.engine = policy_engine(
        context,
        context.paths.policy(i - 1),
        temperature=context.config.rollout.temperature,
        state_folder=context.paths.engine(i - 1) if i > 1 else None,
    )
    return resident.engine


def decay(iteration: int, decay_iterations: int) -> float:
    """Share of the learning rate in an iteration: 1 in the first, falling linearly to LOWEST_RATE, and constant then.

    Example: decay(26, 51) == 0.55, half-way from 1 to 0.1.
    """
    if decay_iterations <= 1:
        return 1.0
    return 1.0 - (1.0 - LOWEST_RATE) * min(1.0, (iteration - 1) / (decay_iterations - 1))


def step_rate(context: Context, update: int, base: float) -> float:
    """The learning rate of an engine's step number `update`: decayed over iterations, warmed up over steps."""
    config = context.config.optimize
    return learning_rate_at(update, base * decay(context.iteration, config.decay_iterations), config.warmup_steps)


def optimizer_step(
    context: Context, engine: TrainingEngine, rows: Sequence[Row], tally: Tally, clip_high: float
) -> None:
    """One minibatch: a forward and a backward for each micro-batch of this rank, then one update (Eq. 12)."""
    config, distributed = context.config.optimize, context.distributed
    lengths = [len(row.input_ids) for row in rows]
    plan = plan_microbatches(lengths, config.microbatch_tokens, distributed.world_size)[distributed.rank]
    num_tokens, num_turns = count_rows(rows)  # of the whole minibatch, all ranks
    first, step_sums = not tally.sums, Counter()
    warming = context.iteration <= config.value_warmup_iterations
    for k, microbatch in enumerate(plan):
        batch = train_batch([rows[index] for index in microbatch.rows], microbatch.weight).to(distributed.device)
        if warming:  # V and Q learn, and the policy is held where it sampled: no reference pass is needed for that
            batch = replace(batch, ref_logprobs=batch.old_logprobs)
        output = engine.forward(batch.tokens)
        loss, sums = sapo_loss(
            output,
            batch,
            num_tokens=num_tokens,
            num_turns=num_turns,
            clip_low=config.clip_low,
            clip_high=clip_high,
            value_clip=config.value_clip,
            q_clip=config.q_clip,
            value_coef=config.value_coef,
            q_coef=config.q_coef,
            kl_coef=config.value_warmup_kl_coef if warming else config.kl_coef,
            entropy_coef=config.entropy_coef,
            value_temperature=context.config.value.temperature,
            policy_coef=0.0 if warming else 1.0,
        )
        engine.backward(loss, last=k == len(plan) - 1)
        step_sums.update(sums)
        if first:
            error = ratio_error(output.logprobs, batch.old_logprobs, microbatch)
            tally.first_ratio_error = max(tally.first_ratio_error, error)
    tally.learning_rate = step_rate(context, engine.num_updates, config.learning_rate)
    norm = engine.step(tally.learning_rate)
    if not math.isfinite(norm):
        note_skipped_step(context, engine, rows)
        return
    tally.sums.update(step_sums)
    tally.grad_norms.append(norm)


def ratio_error(logprobs: torch.Tensor, old_logprobs: torch.Tensor, microbatch: Microbatch) -> float:
    """max |ratio - 1| over a micro-batch; dummies do not count."""
    if microbatch.weight == 0.0:
        return 0.0
    return (bounded_exp(logprobs.detach() - old_logprobs) - 1.0).abs().max().item()


def batch_metrics(context: Context, tally: Tally) -> dict[str, float]:
    """Metrics over all ranks; nothing where nothing was trained."""
    parts = context.distributed.gather((dict(tally.sums), tally.first_ratio_error), "the sums of the losses")
    sums: Counter[str] = Counter()
    for part, _ in parts:
        sums.update(part)
    if not sums:
        return {}
    metrics = finish_metrics(sums)
    metrics["sapo/first_ratio_error"] = max(error for _, error in parts)
    metrics["sapo/learning_rate"] = tally.learning_rate
    if tally.grad_norms:
        metrics["sapo/grad_norm"] = sum(tally.grad_norms) / len(tally.grad_norms)
        metrics["sapo/grad_norm_max"] = max(tally.grad_norms)
    return metrics


if __name__ == "__main__":
    from pipeline.one_stage import main  # the script, not the module, sits above the pipeline

    main("optimize")
