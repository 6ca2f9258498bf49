"""The scoring pass: what the frozen policy says of its own trajectories, and the files that keep it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from runtime.files import atomic_path
from runtime.microbatches import plan_microbatches, token_batch
from runtime.records import RecordError, Row, Scores, Trajectory
from runtime.rows import plain_rows
from runtime.value_readout import readout

if TYPE_CHECKING:
    from runtime.model import Policy

Answer = TypeVar("Answer")
SCORES_PATTERN = "scores-*.safetensors"
OPTIONAL = ("ref_logprobs", "entropies", "critic_values")  # series over the response tokens
PROBED_TURNS = 16  # of one micro-batch: the check of the value tokens costs a small part of the scoring pass


def scores_path(folder: Path, rank: int) -> Path:
    return Path(folder) / f"scores-{rank:05d}.safetensors"


def deal_trajectories(trajectories: Sequence[Trajectory], num_ranks: int) -> list[list[Trajectory]]:
    """Trajectories for each rank, so that the tokens to score are as even as whole trajectories allow.

    Longest first, each to the rank that has least. A rank may get none.
    """
    costs = {one.key: sum(len(turn.prompt_ids) + len(turn.response_ids) for turn in one.turns) for one in trajectories}
    hands: list[list[Trajectory]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for one in sorted(trajectories, key=lambda one: (-costs[one.key], one.key)):
        rank = loads.index(min(loads))
        hands[rank].append(one)
        loads[rank] += costs[one.key]
    return hands


def check_ids(trajectories: Sequence[Trajectory], value_ids: Sequence[int], vocabulary_size: int, folder: Path) -> None:
    """The step-0 check that value tokens are never sampled: no response holds one, nor does any prompt.

    Args:
        folder: where the trajectories lie, for the error message.

    Raises:
        RecordError: a value token, or an id beyond the vocabulary.
    """
    for trajectory in trajectories:
        for index, turn in enumerate(trajectory.turns):
            where = f"{folder}: trajectory {trajectory.key} turn {index}"
            for name, ids in (("prompt_ids", turn.prompt_ids), ("response_ids", turn.response_ids)):
                reserved = set(value_ids).intersection(ids)
                if reserved:
                    raise RecordError(
                        f"{where}: {name} hold the value token {min(reserved)}, which must never be sampled or shown; "
                        "delete the folder to play anew"
                    )
                if max(ids) >= vocabulary_size:
                    raise RecordError(
                        f"{where}: {name} hold id {max(ids)}, the model has {vocabulary_size}; "
                        "delete the folder to play anew"
                    )


@torch.no_grad()
def score_trajectories(
    policy: Policy,
    trajectories: Sequence[Trajectory],
    token_budget: int,
    device: torch.device | str,
    progress: Callable[[int], Any] | None = None,
) -> dict[str, Scores]:
    """Teacher-forced log-probs, entropies, V and Q by one forward a micro-batch; `ref_logprobs` stay None.

    Args:
        policy: in evaluation mode; its temperature is that of the rollouts.
        token_budget: padded tokens a micro-batch.
        progress: called with the number of turns done.

    Returns:
        Scores by trajectory key, values in reward units.
    """
    tokens = policy.value_tokens

    def ask(rows: Sequence[Row]) -> Iterator[tuple[list[float], ...]]:
        output = policy(token_batch(rows).to(device))
        v = readout(output.value_margins, tokens.r_max, tokens.temperature)
        q = readout(output.q_margins, tokens.r_max, tokens.temperature)
        num_tokens, num_turns = [row.num_response_tokens for row in rows], [len(row.spans) for row in rows]
        series = ((output.logprobs, num_tokens), (output.entropies, num_tokens), (v, num_turns), (q, num_turns))
        return zip(*([part.tolist() for part in x.cpu().split(counts)] for x, counts in series), strict=True)

    scores = {}
    for key, parts in _ask_of_rows(trajectories, token_budget, ask, progress).items():
        logprobs, entropies, values, q_values = (tuple(x for row in parts for x in row[i]) for i in range(4))
        scores[key] = Scores(key, logprobs, None, values, q_values, entropies)
    return scores


@torch.no_grad()
def critic_values(
    critic: Any,
    trajectories: Sequence[Trajectory],
    token_budget: int,
    device: torch.device | str,
    progress: Callable[[int], Any] | None = None,
) -> dict[str, tuple[float, ...]]:
    """What a critic says before each response token, by trajectory key: [N] each, units of r_max.

    Args: as in `score_trajectories`.
    """

    def ask(rows: Sequence[Row]) -> Iterator[list[float]]:
        values = critic(token_batch(rows).to(device), by_token=True).cpu()
        return (part.tolist() for part in values.split([row.num_response_tokens for row in rows]))

    found = _ask_of_rows(trajectories, token_budget, ask, progress)
    return {key: tuple(x for row in parts for x in row) for key, parts in found.items()}


def _ask_of_rows(
    trajectories: Sequence[Trajectory],
    token_budget: int,
    ask: Callable[[Sequence[Row]], Iterator[Answer]],
    progress: Callable[[int], Any] | None,
) -> dict[str, list[Answer]]:
    """What `ask` says of each row of each trajectory, asked a micro-batch at a time; by key, in the rows' order."""
    rows = [plain_rows(trajectory) for trajectory in trajectories]
    flat = [row for own in rows for row in own]
    answers: dict[int, Answer] = {}
    for microbatch in plan_microbatches([len(row.input_ids) for row in flat], token_budget, 1)[0]:
        chosen = [flat[index] for index in microbatch.rows]
        answers.update(zip(microbatch.rows, ask(chosen), strict=True))
        if progress is not None:
            progress(sum(len(row.spans) for row in chosen))
    in_order = iter(range(len(flat)))
    return {
        trajectory.key: [answers[next(in_order)] for _ in own]
        for trajectory, own in zip(trajectories, rows, strict=True)
    }


def value_token_probability(
    policy: Policy, trajectories: Sequence[Trajectory], token_budget: int, device: torch.device | str
) -> float:
    """The highest probability of a value token at the response positions of one scoring micro-batch's first turns.

    0 without trajectories.
    """
    rows = [row for trajectory in trajectories for row in plain_rows(trajectory)]
    microbatches = plan_microbatches([len(row.input_ids) for row in rows], token_budget, 1)[0]
    if not microbatches:
        return 0.0
    last = [rows[index] for index in microbatches[-1].rows]
    turns = accumulate(len(row.spans) for row in last)
    probed = [row for row, so_far in zip(last, turns, strict=True) if so_far <= PROBED_TURNS] or last[:1]
    return policy.value_token_probability(token_batch(probed).to(device))


def write_scores(path: Path, scores: Sequence[Scores]) -> None:
    """Flat float32 tensors of all trajectories, their keys and counts in the metadata; whole or not at all."""

    def flat(series: Sequence[Sequence[float]]) -> torch.Tensor:
        return torch.tensor([x for one in series for x in one], dtype=torch.float32)

    tensors = {
        "old_logprobs": flat([one.old_logprobs for one in scores]),
        "values": flat([one.values for one in scores]),
        "q_values": flat([one.q_values for one in scores]),
    }
    for name in OPTIONAL:
        if scores and getattr(scores[0], name) is not None:
            tensors[name] = flat([getattr(one, name) for one in scores])
    contents = {
        "keys": [one.key for one in scores],
        "num_turns": [len(one.values) for one in scores],
        "num_tokens": [len(one.old_logprobs) for one in scores],
    }
    with atomic_path(path) as temporary:  # one metadata entry: safetensors writes several in random order
        save_file(tensors, str(temporary), metadata={"contents": json.dumps(contents)})


def read_scores(folder: Path) -> dict[str, Scores]:
    """The scores of all ranks, by trajectory key.

    Raises:
        RecordError: a file that is damaged, or not of this form.
    """
    scores: dict[str, Scores] = {}
    for path in sorted(Path(folder).glob(SCORES_PATTERN)):
        try:
            with safe_open(str(path), framework="pt") as file:
                metadata = json.loads((file.metadata() or {})["contents"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            counts = {"values": metadata["num_turns"], "old_logprobs": metadata["num_tokens"]}
            counts |= {"q_values": metadata["num_turns"]}
            counts |= dict.fromkeys(OPTIONAL, metadata["num_tokens"])
            series = {name: [tuple(x.tolist()) for x in t.split(counts[name])] for name, t in tensors.items()}
            for name in OPTIONAL:
                series.setdefault(name, [None] * len(metadata["keys"]))
            for index, key in enumerate(metadata["keys"]):
                scores[key] = Scores(key=key, **{name: parts[index] for name, parts in series.items()})
        except (SafetensorError, OSError, ValueError, KeyError, IndexError, TypeError, RuntimeError) as fault:
            raise RecordError(f"{path}: damaged scores ({fault}); run compute_advantages again") from fault
    return scores
