"""Trajectories to training rows. In the history form a row is one turn: its prompt and its response, as sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

    Trajectories with status "error" have no rows. Values and targets are divided by r_max; the returns and
    q_targets are cut to [-1, 1], where every return lies that the method allows (a bootstrapped one may exceed
    it, and the readout could not follow).

    Args:
        scores, targets: by trajectory key.
        r_max: bound of the return, reward units.

    Raises:
        RecordError: a trajectory without scores or targets, or with the wrong number of them.
    """
    rows = []
    for trajectory in sorted(trajectories, key=lambda one: one.key):
        if trajectory.status == "error":
            continue
        if trajectory.key not in scores or trajectory.key not in targets:
            raise RecordError(f"trajectory {trajectory.key} has no scores or targets; run compute_advantages again")
        rows += _trajectory_rows(trajectory, scores[trajectory.key], targets[trajectory.key], r_max)
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
        rows.append(
            Row(
                key=row.key,
                turn_index=row.turn_index,
                input_ids=row.input_ids,
                spans=row.spans,
                old_logprobs=scores.old_logprobs[start:end],
                ref_logprobs=None if scores.ref_logprobs is None else scores.ref_logprobs[start:end],
                advantages=(targets.advantages[turn],),
                old_values=(targets.values[turn] / r_max,),
                old_q_values=(targets.q_values[turn] / r_max,),
                returns=(_unit(targets.returns[turn] / r_max),),
                q_targets=(_unit(targets.q_targets[turn] / r_max),),
            )
        )
        start = end
    return rows


def _unit(x: float) -> float:
    return min(1.0, max(-1.0, x))
