"""How much of the machine's rate of matrix products scoring and optimising reach.

    python -m benchmarks.compute_rate [--model 21m] [--rows 32] [--row-tokens 300] [--microbatch 4096] [--out X.json]

Rows as a transcript has them: 10 responses of 8 tokens in each. Counted are the useful operations: 2 a block weight and
token (the last feed-forward only where a hidden state is read), 4 a pair of positions and unit of attention width, 2 a
head weight and position that predicts a response token; a backward pass twice its forward. What the head's backward
computes again, and what padding costs, counts as loss.
Sides, in turn, medians of `--times`; on a busy machine look at the CPU seconds:

    products    the machine's rate: 1,024 cubed, the model's type and threads
    score       log-probs, entropies, V and Q
    optimise    the loss of SAPO, backward, clipping, AdamW: a step under ZeRO-3 as the optimize stage makes it
    plain       the same step by torch alone: what ZeRO-3 costs

`--profile` prints where the time of one step goes instead.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.floors import forward_operations
from benchmarks.measuring import machine, turn_about, write
from benchmarks.models import SHAPES, Shape, add_device_flags, make_model
from pipeline.memory import shape_from_config
from runtime.engine import TrainingEngine, init_distributed
from runtime.losses import sapo_loss
from runtime.microbatches import count_rows, plan_microbatches, token_batch, train_batch
from runtime.model import Policy, load_policy
from runtime.records import Row
from runtime.vocabulary import ValueTokens, write_value_tokens

TURNS, RESPONSE = 10, 8
TARGET = 0.6
SIDE, PRODUCTS = 1024, 20
COEFFICIENTS = {
    "clip_low": 0.2, "clip_high": 0.2, "value_clip": 0.2, "q_clip": 0.2, "value_coef": 0.06, "q_coef": 0.06,
    "kl_coef": 0.0, "entropy_coef": 0.001, "value_temperature": 1.0,
}  # fmt: skip


def make_rows(shape: Shape, count: int, tokens: int) -> list[Row]:
    """Rows of `tokens`, the responses evenly spread; targets are made up."""
    generator = torch.Generator().manual_seed(0)
    stride = (tokens - RESPONSE) // TURNS
    spans = tuple((stride * turn + stride, stride * turn + stride + RESPONSE) for turn in range(TURNS))
    n, signs = TURNS * RESPONSE, (1.0, -1.0) * (TURNS * RESPONSE // 2)
    rows = []
    for index in range(count):
        ids = torch.randint(2, shape.vocabulary - 2, (tokens,), generator=generator).tolist()
        rows.append(
            Row(
                f"row-{index}",
                0,
                tuple(ids),
                spans,
                old_logprobs=(-9.0,) * n,
                advantages=signs,
                old_values=(0.0,) * TURNS,
                old_q_values=(0.0,) * TURNS,
                returns=(0.5,) * TURNS,
                q_targets=(0.5,) * TURNS,
            )
        )
    return rows


class Steps:
    """The rows in micro-batches, and what is done with them."""

    def __init__(self, rows: list[Row], budget: int, device: str) -> None:
        self.rows, self.device = rows, device
        plan = plan_microbatches([len(row.input_ids) for row in rows], budget, 1)[0]
        self.parts = [[rows[index] for index in part.rows] for part in plan]
        self.num_tokens, self.num_turns = count_rows(rows)

    @torch.no_grad()
    def score(self, policy: Policy) -> None:
        for part in self.parts:
            policy(token_batch(part).to(self.device))

    def _loss(self, forward: Callable[[Any], Any], part: list[Row]) -> torch.Tensor:
        batch = train_batch(part).to(self.device)
        output = forward(batch.tokens)
        return sapo_loss(output, batch, num_tokens=self.num_tokens, num_turns=self.num_turns, **COEFFICIENTS)[0]

    def optimise(self, engine: TrainingEngine) -> None:
        for k, part in enumerate(self.parts):
            engine.backward(self._loss(engine.forward, part), last=k == len(self.parts) - 1)
        engine.step(1e-6)

    def plain(self, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
        for part in self.parts:
            self._loss(policy, part).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def products(device: str, dtype: str) -> Callable[[], None]:
    a, b = (torch.randn(SIDE, SIDE, device=device).to(getattr(torch, dtype)) for _ in range(2))

    def work() -> None:
        for _ in range(PRODUCTS):
            torch.mm(a, b)

    return work


def save_policy(shape: Shape, folder: Path) -> None:
    make_model(shape).save_pretrained(folder)
    write_value_tokens(folder, ValueTokens(*shape.value_ids, r_max=1.0, temperature=1.0, fingerprint="random"))


def profile(work: Callable[[], None]) -> None:
    work()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        work()
    print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=50))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="21m")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--row-tokens", type=int, default=300)
    parser.add_argument("--microbatch", type=int, default=4096, help="padded tokens")
    parser.add_argument("--zero-stage", type=int, default=3)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--profile", choices=("optimise", "plain", "score"))
    parser.add_argument("--out", type=Path, help="add the numbers to this json, under the model's name")
    add_device_flags(parser)
    options = parser.parse_args()
    distributed = init_distributed(600.0)
    shape = SHAPES[options.model]
    steps = Steps(make_rows(shape, options.rows, options.row_tokens), options.microbatch, options.device)
    with tempfile.TemporaryDirectory(prefix="sapo-rate-") as folder:
        save_policy(shape, Path(folder))
        policy = load_policy(folder, dtype=options.dtype, device=options.device)
        engine = TrainingEngine(
            lambda: load_policy(folder, dtype=options.dtype), distributed, dtype=options.dtype,
            zero_stage=options.zero_stage, max_grad_norm=1.0, weight_decay=0.01, adam_betas=(0.9, 0.999),
            adam_epsilon=1e-8,
        )  # fmt: skip
        counts = shape_from_config(policy.pretrained.config.to_dict())
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, fused=options.device == "cpu")
    sides: dict[str, Callable[[], None]] = {
        "products": products(options.device, options.dtype),
        "score": lambda: steps.score(policy),
        "optimise": lambda: steps.optimise(engine),
        "plain": lambda: steps.plain(policy, optimizer),
    }
    if options.profile:
        return profile(sides[options.profile])
    lengths = [len(row.input_ids) for row in steps.rows]
    forward = forward_operations(counts, lengths, steps.num_tokens, steps.num_tokens + options.rows * TURNS)
    operations = {"products": 2.0 * SIDE**3 * PRODUCTS, "score": forward, "optimise": 3 * forward, "plain": 3 * forward}
    clocks = turn_about(sides, options.times, options.device)
    result: dict[str, Any] = {"machine": machine(), "parameters": counts.parameters, "microbatches": len(steps.parts)}
    result |= {
        "tokens": sum(len(row.input_ids) for row in steps.rows),
        "dtype": options.dtype,
        "device": options.device,
    }
    print(f"{options.model}: {counts.parameters:,} parameters, {result['tokens']:,} tokens, {options.dtype}")
    print(f"{'':10}{'G operations':>13}{'wall s':>9}{'CPU s':>9}{'G/CPU s':>9}{'share':>8}{'CPU share':>11}")
    for name, clock in clocks.items():
        one = result[name] = {"operations": operations[name], **vars(clock)}
        for key in ("wall_s", "cpu_s"):
            rate = operations[name] / getattr(clock, key)
            one[f"share_{key}"] = rate / (operations["products"] / getattr(clocks["products"], key))
        print(
            f"{name:10}{one['operations'] / 1e9:13.1f}{clock.wall_s:9.3f}{clock.cpu_s:9.3f}"
            f"{one['operations'] / 1e9 / clock.cpu_s:9.1f}{one['share_wall_s']:8.2f}{one['share_cpu_s']:11.2f}"
        )
    print(f"optimise: {result['optimise']['share_cpu_s']:.2f} of the products' rate (target {TARGET})")
    write(options.out, options.model, result)
    engine.close()


if __name__ == "__main__":
    main()
