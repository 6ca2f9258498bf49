"""Training rows to tensors: minibatches, micro-batches by token budget, dealing to ranks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from runtime.batches import TokenBatch, TrainBatch
from runtime.records import Row
from runtime.seeding import permutation

PER_TOKEN = ("old_logprobs", "ref_logprobs", "advantages", "token_values", "token_returns")
ALWAYS = ("old_logprobs", "advantages")  # the others may be absent
PER_TURN = ("old_values", "old_q_values", "returns", "q_targets")


@dataclass(frozen=True)
class Microbatch:
    """Rows that go through one forward on one rank.

    Example: Microbatch(rows=(4, 1), weight=1.0) holds rows 4 and 1 of the list the plan was made for.
    """

    rows: tuple[int, ...]
    weight: float = 1.0  # 0: a dummy that only keeps a rank in step


def plan_minibatches(
    row_turns: Sequence[int], minibatch_size: int, run_seed: int, iteration: int, epoch: int
) -> list[tuple[int, ...]]:
    """The rows of each optimizer step: a seeded permutation cut into max(1, round(turns / minibatch_size)) parts.

    Parts have as many turns as whole rows allow: where every row is one turn, numbers that differ by one at most.

    Args:
        row_turns: turns of each row, >= 1.
    """
    order = permutation(run_seed, "minibatches", iteration, epoch, n=len(row_turns)).tolist()
    reached = list(accumulate(row_turns[row] for row in order))
    total = reached[-1] if reached else 0
    num_parts = max(1, min(len(row_turns), round(total / minibatch_size)))
    bounds = [bisect_right(reached, total * part // num_parts) for part in range(num_parts + 1)]
    parts = (tuple(order[start:end]) for start, end in zip(bounds, bounds[1:], strict=False))
    return [part for part in parts if part]


def plan_microbatches(lengths: Sequence[int], token_budget: int, num_ranks: int) -> list[list[Microbatch]]:
    """Micro-batches for each rank, the same number for every rank.

    Rows are sorted by length and packed so that rows x longest <= token_budget; a row over the budget is a
    micro-batch of its own. Where the count does not divide by the ranks, the largest micro-batches are halved;
    where there are too few rows for that, dummies fill up (the shortest row again, with weight 0).

    Args:
        lengths: tokens of each row; may be empty.
        token_budget: padded tokens of a micro-batch, >= 1.

    Returns:
        [rank][k] -> Microbatch. At the same k the ranks have micro-batches of similar size. Without any row, no
        micro-batches at all.
    """
    if not lengths:
        return [[] for _ in range(num_ranks)]
    packed = _pack(lengths, token_budget)
    while len(packed) % num_ranks and any(len(rows) > 1 for rows in packed):
        largest = max((rows for rows in packed if len(rows) > 1), key=lambda rows: _padded_tokens(rows, lengths))
        at = packed.index(largest)
        half = (len(largest) + 1) // 2
        packed[at : at + 1] = [largest[:half], largest[half:]]
    packed.sort(key=lambda rows: (-_padded_tokens(rows, lengths), rows))
    shortest = min(range(len(lengths)), key=lambda row: (lengths[row], row))
    microbatches = [Microbatch(rows=rows) for rows in packed]
    microbatches += [Microbatch(rows=(shortest,), weight=0.0)] * (-len(microbatches) % num_ranks)
    return [microbatches[rank::num_ranks] for rank in range(num_ranks)]


def _pack(lengths: Sequence[int], token_budget: int) -> list[tuple[int, ...]]:
    packed: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if packed and (len(packed[-1]) + 1) * lengths[packed[-1][0]] <= token_budget:
            packed[-1].append(row)  # the first row of a pack is its longest
        else:
            packed.append([row])
    return [tuple(rows) for rows in packed]


def _padded_tokens(rows: Sequence[int], lengths: Sequence[int]) -> int:
    return len(rows) * max(lengths[row] for row in rows)


def count_rows(rows: Sequence[Row]) -> tuple[int, int]:
    """(response tokens, turns) of the rows: the denominators of an optimizer step."""
    return sum(row.num_response_tokens for row in rows), sum(len(row.spans) for row in rows)


def token_batch(rows: Sequence[Row], pad_id: int = 0) -> TokenBatch:
    """Rows to right-padded tensors.

    Any `pad_id` will do: nothing attends to the padding and nothing is read there.

    Raises:
        ValueError: no rows; a span that is empty, out of the row, at its first token, or before the one before.
    """
    if not rows:
        raise ValueError("a micro-batch needs at least one row")
    width = max(len(row.input_ids) for row in rows)
    input_ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    response_mask = torch.zeros((len(rows), width), dtype=torch.bool)
    starts, ends, lengths = [], [], []
    for index, row in enumerate(rows):
        input_ids[index, : len(row.input_ids)] = torch.tensor(row.input_ids, dtype=torch.int64)
        previous = 1  # the token before a response predicts it, so a response never begins a row
        for start, end in row.spans:
            if not previous <= start < end <= len(row.input_ids):
                raise ValueError(
                    f"row {row.key} turn {row.turn_index}: span ({start}, {end}) must be non-empty, start at "
                    f"{previous} or later and end within {len(row.input_ids)} tokens"
                )
            response_mask[index, start:end] = True
            starts.append(index * width + start)
            ends.append(index * width + end - 1)
            lengths.append(end - start)
            previous = end
    turn_lengths = torch.tensor(lengths, dtype=torch.int64)
    return TokenBatch(
        input_ids=input_ids,
        response_mask=response_mask,
        turn_start=torch.tensor(starts, dtype=torch.int64),
        turn_end=torch.tensor(ends, dtype=torch.int64),
        token_turn=torch.repeat_interleave(torch.arange(len(lengths)), turn_lengths),
    )


def train_batch(rows: Sequence[Row], weight: float = 1.0, pad_id: int = 0) -> TrainBatch:
    """Rows with their targets to tensors; `weight` 0 makes all of them dummies.

    Raises:
        ValueError: a row whose per-token or per-turn values do not fit its spans.
    """
    tokens = token_batch(rows, pad_id)
    num_tokens, num_turns = count_rows(rows)

    def packed(name: str, length: int) -> torch.Tensor | None:
        if name not in ALWAYS and not any(getattr(row, name) for row in rows):
            return None
        values = torch.tensor([x for row in rows for x in getattr(row, name)], dtype=torch.float32)
        if len(values) != length:
            raise ValueError(f"rows hold {len(values)} {name} for {length} places; compute the advantages again")
        return values

    weights = torch.tensor([weight * row.weight for row in rows], dtype=torch.float32)
    return TrainBatch(
        tokens=tokens,
        token_weights=weights.repeat_interleave(torch.tensor([row.num_response_tokens for row in rows])),
        turn_weights=torch.full((num_turns,), weight, dtype=torch.float32),
        **{name: packed(name, num_tokens) for name in PER_TOKEN},
        **{name: packed(name, num_turns) for name in PER_TURN},
    )
