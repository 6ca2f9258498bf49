"""Trajectories to training rows. In the history form a row is one turn: its prompt and its response, as sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runtime.records import RecordError, Row, Scores, Targets, Trajectory


def turn_rows(trajectory: Trajectory) -> list[Row]:
    """One row a turn, without targets: what a scoring pass needs."""
    return [
        Row(
            key=trajectory.key,
            turn_index=index,
            input_ids=turn.prompt_ids + turn.response_ids,
            spans=((len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.response_ids)),),
        )
        for index, turn in enumerate(trajectory.turns)
    ]


def make_rows(
    trajectories: Sequence[Trajectory], scores: Mapping[str, Scores], targets: Mapping[str, Targets], r_max: float
) -> list[Row]:
    """The training rows of an iteration in canonical order: by trajectory key, then turn.

    What is trained is what has targets. Values and their targets are divided by r_max; the returns and q_targets are
    cut to [-1, 1], where every return lies that the method allows (a bootstrapped one may exceed it, and the readout
    could not follow).

    Args:
        scores, targets: by trajectory key.
        r_max: bound of the return, reward units.

    Raises:
        RecordError: targets without a trajectory or scores, or with the wrong number of them.
    """
    by_key = {one.key: one for one in trajectories if one.status != "error"}
    rows = []
    for key in sorted(targets):
        if key not in scores or key not in by_key:
            raise RecordError(f"targets of {key}: no such trajectory, or no scores; run compute_advantages again")
        rows += _trajectory_rows(by_key[key], scores[key], targets[key], r_max)
    return rows


def _trajectory_rows(trajectory: Trajectory, scores: Scores, targets: Targets, r_max: float) -> list[Row]:
    plain = turn_rows(trajectory)
    num_tokens = sum(row.num_response_tokens for row in plain)
    if len(targets.advantages) != len(plain) or len(scores.old_logprobs) != num_tokens:
        raise RecordError(
            f"trajectory {trajectory.key}: {len(plain)} turns and {num_tokens} response tokens, but targets for "
            f"{len(targets.advantages)} and scores for {len(scores.old_logprobs)}; run compute_advantages again"
        )
    rows, start = [], 0
    for turn, row in enumerate(plain):
        end = start + row.num_response_tokens
        equal = (targets.advantages[turn],) * row.num_response_tokens  # every token gets the turn's
        rows.append(
            replace(
                row,
                old_logprobs=scores.old_logprobs[start:end],
                ref_logprobs=None if scores.ref_logprobs is None else scores.ref_logprobs[start:end],
                advantages=targets.token_advantages[start:end] or equal,
                old_values=_normalised(targets.values[turn : turn + 1], r_max),
                old_q_values=_normalised(targets.q_values[turn : turn + 1], r_max),
                returns=_cut(_normalised(targets.returns[turn : turn + 1], r_max)),
                q_targets=_cut(_normalised(targets.q_targets[turn : turn + 1], r_max)),
                token_values=_normalised(targets.token_values[start:end], r_max),
                token_returns=_cut(_normalised(targets.token_returns[start:end], r_max)),
                weight=targets.weight,
            )
        )
        start = end
    return rows


def _normalised(numbers: Sequence[float], r_max: float) -> tuple[float, ...]:
    return tuple(x / r_max for x in numbers)


def _cut(numbers: Sequence[float]) -> tuple[float, ...]:
    return tuple(min(1.0, max(-1.0, x)) for x in numbers)
