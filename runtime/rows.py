"""Trajectories to training rows: prompts and responses as sampled, one turn a row or several that continue another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runtime.records import RecordError, Row, Scores, Targets, Trajectory, Turn


def plain_rows(trajectory: Trajectory) -> list[Row]:
    """The rows of a trajectory without targets: what a scoring pass needs."""
    return rows_of_turns(trajectory.key, trajectory.turns)


def rows_of_turns(key: str, turns: Sequence[Turn]) -> list[Row]:
    """A row for each turn that begins anew, with the turns that continue it.

    Example: prompts 7 8 and (continuing) 9, responses 3 2 and 4 -> one row 7 8 3 2 9 4 with spans (2, 4), (5, 6).
    """
    rows: list[Row] = []
    for index, turn in enumerate(turns):
        before = rows.pop() if turn.continues else Row(key, index, (), ())
        start = len(before.input_ids) + len(turn.prompt_ids)
        ids = before.input_ids + turn.prompt_ids + turn.response_ids
        rows.append(replace(before, input_ids=ids, spans=(*before.spans, (start, len(ids)))))
    return rows


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
    plain = plain_rows(trajectory)
    num_tokens, num_turns = sum(row.num_response_tokens for row in plain), len(trajectory.turns)
    if len(targets.advantages) != num_turns or len(scores.old_logprobs) != num_tokens:
        raise RecordError(
            f"trajectory {trajectory.key}: {num_turns} turns and {num_tokens} response tokens, but targets for "
            f"{len(targets.advantages)} and scores for {len(scores.old_logprobs)}; run compute_advantages again"
        )
    by_token = targets.token_advantages or tuple(  # every token gets the turn's
        x for x, turn in zip(targets.advantages, trajectory.turns, strict=True) for _ in turn.response_ids
    )
    rows, token, turn = [], 0, 0
    for row in plain:
        tokens = slice(token, token + row.num_response_tokens)
        turns = slice(turn, turn + len(row.spans))
        token, turn = tokens.stop, turns.stop
        rows.append(
            replace(
                row,
                old_logprobs=scores.old_logprobs[tokens],
                ref_logprobs=None if scores.ref_logprobs is None else scores.ref_logprobs[tokens],
                advantages=by_token[tokens],
                old_values=_normalised(targets.values[turns], r_max),
                old_q_values=_normalised(targets.q_values[turns], r_max),
                returns=_cut(_normalised(targets.returns[turns], r_max)),
                q_targets=_cut(_normalised(targets.q_targets[turns], r_max)),
                token_values=_normalised(targets.token_values[tokens], r_max),
                token_returns=_cut(_normalised(targets.token_returns[tokens], r_max)),
                weight=targets.weight,
            )
        )
    return rows


def _normalised(numbers: Sequence[float], r_max: float) -> tuple[float, ...]:
    return tuple(x / r_max for x in numbers)


def _cut(numbers: Sequence[float]) -> tuple[float, ...]:
    return tuple(min(1.0, max(-1.0, x)) for x in numbers)
