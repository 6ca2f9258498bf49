"""Stage: a supervised start on expert episodes; the model becomes policy 0.

Reads model/. Writes checkpoints/0000: demonstrations.jsonl (what the expert played, kept for a second attempt)
and policy/. The loss is the mean cross-entropy of the response tokens, end-of-turn token included.
"""

from __future__ import annotations

if __name__ == "__main__":
    import sys
    from pathlib import Path as _Path

    sys.path.insert(0, str(_Path(__file__).resolve().parents[1]))

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from runtime.demonstrations import (
    DemonstrationError,
    demonstration_rows,
    interchangeable_ids,
    play_demonstrations,
    read_demonstrations,
    rename_words,
    write_demonstrations,
)
from runtime.engine import TrainingEngine, learning_rate_at
from runtime.microbatches import count_rows, plan_microbatches, token_batch
from runtime.model import Policy, resident_replica
from runtime.pretrained import load_tokenizer
from runtime.prompts import PromptRenderer
from runtime.records import Row
from runtime.seeding import permutation
from runtime.weight_files import policy_fingerprint
from stages.context import Context, StageResult
from stages.engines import policy_engine
from stages.skipped_steps import note_skipped_step

LOOK_EVERY = 10  # steps between looks at the held-out loss, where the warm start may end by it
DEV_SHARE = 0.05  # of the demonstrations, held out to measure accuracy
FINAL_LEARNING_RATE = 0.1  # the cosine ends at this share of the learning rate


@dataclass(frozen=True)
class Split:
    """Training and held-out turns; no episode is in both."""

    train: tuple[Row, ...]
    dev: tuple[Row, ...]


def run(context: Context) -> StageResult:
    """Play the expert, train on it, write policy 0."""
    folder, config = context.paths.checkpoint(0), context.config.warm_start
    tokenizer = load_tokenizer(context.paths.model)
    start = time.perf_counter()
    ready_demonstrations(context, folder / "demonstrations.jsonl")
    played = time.perf_counter()
    split, counts = read_split(context, tokenizer, folder / "demonstrations.jsonl")
    groups = getattr(context.adapter, "interchangeable_words", ()) if config.word_permutation else ()
    word_ids = interchangeable_ids(tokenizer, groups)
    engine = policy_engine(context, context.paths.model, temperature=1.0)  # an optimizer of its own
    num_turns = sum(len(row.spans) for row in split.train)
    steps = num_steps(num_turns, config.batch_size, config.epochs)
    batch_rows = max(1, round(config.batch_size * len(split.train) / num_turns))
    bar = context.progress(steps, "warm start", "step")
    loss = math.nan
    for step in range(steps):
        chosen = batch_at(step, len(split.train), batch_rows, context.config.run.seed)
        rows = [rename_words(split.train[i], word_ids, context.config.run.seed, epoch) for epoch, i in chosen]
        rate = learning_rate_at(step, config.learning_rate, config.warmup_steps)
        loss = train_step(context, engine, rows, rate * cosine(step, steps))
        bar.note(loss=f"{loss:.3f}")
        bar.update()
        if config.stop_at_loss and (step + 1) % LOOK_EVERY == 0:
            if held_out_loss(context, engine, split.dev) <= config.stop_at_loss:
                break
    bar.close()
    trained = time.perf_counter()
    engine.export(folder / "policy", companions=context.paths.model)
    counts |= {"steps": engine.num_updates, "skipped_steps": engine.skipped_steps}
    counts["peak_memory_bytes"] = context.distributed.max(engine.peak_memory_bytes(), "the peak memory of all ranks")
    engine.close()  # the optimizer of the warm start ends here
    exported = time.perf_counter()
    metrics = {"warm_start/loss": loss, **dev_metrics(context, folder / "policy", split.dev)}
    seconds = {
        "demonstrations_s": played - start,
        "steps_s": trained - played,
        "export_s": exported - trained,
        "dev_s": time.perf_counter() - exported,
    }
    return StageResult(counts=counts, metrics=metrics, seconds=seconds)


def ready_demonstrations(context: Context, path: Path) -> None:
    """Rank 0 has the expert play, unless an earlier attempt has left the file."""
    config, adapter = context.config, context.adapter
    if context.distributed.is_main and not path.exists():
        tasks = adapter.tasks(adapter.warm_start_split)[: config.warm_start.demonstrations]
        bar = context.progress(len(tasks), "demonstrations", "episode")
        records = play_demonstrations(
            config.env.name,
            config.env.options,
            tasks,
            config.env.max_turns,
            len(os.sched_getaffinity(0)),  # nothing else runs meanwhile
            config.rollout.turn_timeout_s,
            bar.update,
            config.warm_start.error_rate,
            config.run.seed,
        )
        bar.close()
        write_demonstrations(path, records)
    context.distributed.barrier("the demonstrations")


def read_split(context: Context, tokenizer, path: Path) -> tuple[Split, dict[str, int]]:
    """Rows of the demonstrations, the last of a seeded order held out; and the counts for the manifest."""
    env = context.config.env
    renderer = PromptRenderer(
        tokenizer,
        context.adapter,
        env.history_length,
        env.prompt_tokens,
        context.config.model.chat_template,
        transcript=env.prompt_form == "transcript",
    )
    demonstrations = read_demonstrations(path)
    made = demonstration_rows(demonstrations, renderer, tokenizer.eos_token_id, env.response_tokens)
    order = permutation(context.config.run.seed, "warm_start_dev", n=len(demonstrations))
    held_out = {demonstrations[i].task_id for i in order[: int(DEV_SHARE * len(demonstrations))]}
    split = Split(
        train=tuple(row for row in made.rows if row.key not in held_out),
        dev=tuple(row for row in made.rows if row.key in held_out),
    )
    if not split.train:
        raise DemonstrationError(
            f"{path}: none of {made.num_too_long} turns fits env.prompt_tokens = {env.prompt_tokens} and "
            f"env.response_tokens = {env.response_tokens}; raise them"
        )
    counts = {
        "demonstrations": len(demonstrations),
        "turns": sum(len(row.spans) for row in split.train),
        "dev_turns": sum(len(row.spans) for row in split.dev),
        "turns_too_long": made.num_too_long,
        "tokens": sum(len(row.input_ids) for row in split.train),
    }
    return split, counts


def num_steps(num_turns: int, batch_size: int, epochs: float) -> int:
    """Optimizer steps of `epochs` passes over the turns, at least 1."""
    return max(1, round(epochs * num_turns / batch_size))


def batch_at(step: int, num_turns: int, batch_size: int, run_seed: int) -> list[tuple[int, int]]:
    """(epoch, turn) of a step's batch: consecutive places in endless passes, each pass in its own seeded order."""
    places = range(step * batch_size, (step + 1) * batch_size)
    epochs = {place // num_turns for place in places}
    orders = {epoch: _order(run_seed, epoch, num_turns) for epoch in epochs}
    return [(place // num_turns, int(orders[place // num_turns][place % num_turns])) for place in places]


@lru_cache(maxsize=2)  # a batch may reach into the next pass
def _order(run_seed: int, epoch: int, num_turns: int) -> np.ndarray:
    """The order of one pass over the turns."""
    return permutation(run_seed, "warm_start", epoch, n=num_turns)


def cosine(step: int, steps: int) -> float:
    """From 1 at step 0 down to FINAL_LEARNING_RATE at the last step."""
    progress = step / max(steps - 1, 1)
    return FINAL_LEARNING_RATE + (1.0 - FINAL_LEARNING_RATE) * 0.5 * (1.0 + math.cos(math.pi * progress))


def train_step(context: Context, engine: TrainingEngine, rows: Sequence[Row], learning_rate: float) -> float:
    """One update on the mean cross-entropy of the response tokens; returns that mean, over all ranks."""
    distributed = context.distributed
    lengths = [len(row.input_ids) for row in rows]
    plan = plan_microbatches(lengths, context.config.optimize.microbatch_tokens, distributed.world_size)
    num_tokens, _ = count_rows(rows)
    total = 0.0
    own = plan[distributed.rank]
    for k, microbatch in enumerate(own):
        batch = token_batch([rows[index] for index in microbatch.rows]).to(distributed.device)
        loss = -microbatch.weight * engine.forward(batch).logprobs.sum() / num_tokens
        engine.backward(loss, last=k == len(own) - 1)
        total += loss.item()
    if not math.isfinite(engine.step(learning_rate)):
        note_skipped_step(context, engine, rows)
    return distributed.sum([total], "the loss of the warm start")[0]


@torch.no_grad()
def held_out_loss(context: Context, engine: TrainingEngine, rows: Sequence[Row]) -> float:
    """Mean cross-entropy of the held-out response tokens, over all ranks, by the engine as it is; inf without rows."""
    distributed, config = context.distributed, context.config.optimize
    lengths = [len(row.input_ids) for row in rows]
    plan = plan_microbatches(lengths, config.microbatch_tokens, distributed.world_size)[distributed.rank]
    total = 0.0
    for microbatch in plan:
        batch = token_batch([rows[index] for index in microbatch.rows]).to(distributed.device)
        total -= microbatch.weight * engine.forward(batch).logprobs.sum().item()
    (total,) = distributed.sum([total], "the held-out loss")
    return total / count_rows(rows)[0] if rows else math.inf


def dev_metrics(context: Context, policy_folder: Path, rows: Sequence[Row]) -> dict[str, float]:
    """Cross-entropy and greedy token accuracy on the held-out turns, by the replica that rollouts use next."""
    distributed, model = context.distributed, context.config.model
    if not rows:
        return {}
    replica = resident_replica(
        context.resident,
        policy_folder,
        policy_fingerprint(policy_folder),
        dtype=model.dtype,
        attention=model.attention,
        temperature=1.0,
        device=distributed.device,
    )
    lengths = [len(row.input_ids) for row in rows]
    plan = plan_microbatches(lengths, context.config.advantage.score_tokens, distributed.world_size)[distributed.rank]
    sums = [0.0, 0.0, 0.0]  # cross-entropy, tokens that greedy decoding would get right, tokens
    for microbatch in plan:
        if microbatch.weight:
            part = token_accuracy(replica, [rows[index] for index in microbatch.rows], distributed.device)
            sums = [a + b for a, b in zip(sums, part, strict=True)]
    loss, right, num_tokens = distributed.sum(sums, "the held-out accuracy")
    return {"warm_start/dev_loss": loss / num_tokens, "warm_start/dev_token_accuracy": right / num_tokens}


@torch.no_grad()
def token_accuracy(policy: Policy, rows: Sequence[Row], device: torch.device) -> list[float]:
    """(sum of cross-entropies, response tokens that are the most likely one over W_act, response tokens)."""
    batch = token_batch(rows).to(device)
    logprobs = policy(batch).logprobs
    predicting, _ = policy.hidden_states(batch)
    logits = policy.causal_lm.get_output_embeddings()(predicting)
    guesses = logits.index_fill(1, policy.value_ids, float("-inf")).argmax(1)
    right = (guesses == batch.input_ids[batch.response_mask]).sum().item()
    return [-logprobs.sum().item(), float(right), float(len(predicting))]


if __name__ == "__main__":
    from pipeline.one_stage import main  # the script, not the module, sits above the pipeline

    main("warm_start")
