from __future__ import annotations

import pytest

from runtime.records import RecordError, Scores, Targets
from runtime.rows import make_rows, plain_rows
from tests.trajectories import trajectory


def scored(one, reference: bool = True) -> tuple[Scores, Targets]:
    """Numbers that name their place: log-prob j of the trajectory is -j, value of turn t is t."""
    n, k = sum(len(turn.response_ids) for turn in one.turns), len(one.turns)
    logprobs = tuple(-float(j) for j in range(n))
    values = tuple(float(t) for t in range(k))
    scores = Scores(one.key, logprobs, tuple(x - 100 for x in logprobs) if reference else None, values, values)
    twice = tuple(2 * x for x in values)
    return scores, Targets(one.key, values, values, twice, tuple(x + 0.5 for x in values), twice, twice)


def test_rows_are_the_sampled_ids_and_carry_their_own_numbers():
    trajectories = [trajectory("b", 3), trajectory("a", 2), trajectory("lost", 1, status="error")]
    numbers = {one.key: scored(one) for one in trajectories[:2]}
    rows = make_rows(
        trajectories, {k: s for k, (s, _) in numbers.items()}, {k: t for k, (_, t) in numbers.items()}, 8.0
    )
    assert [(row.key, row.turn_index) for row in rows] == [("a#0", 0), ("a#0", 1), ("b#0", 0), ("b#0", 1), ("b#0", 2)]
    by_key = {one.key: one for one in trajectories}
    at = 0
    for row in rows:
        turn = by_key[row.key].turns[row.turn_index]
        at = 0 if row.turn_index == 0 else at
        assert row.input_ids == turn.prompt_ids + turn.response_ids
        ((start, end),) = row.spans
        assert row.input_ids[start:end] == turn.response_ids
        assert row.old_logprobs == tuple(-float(j) for j in range(at, at + end - start))
        assert row.ref_logprobs == tuple(x - 100 for x in row.old_logprobs)
        at += end - start
        t = row.turn_index
        # r_max 8: V = t -> t / 8; returns 2t -> 2t / 8
        assert row.advantages == (t + 0.5,) * (end - start) and row.old_values == row.old_q_values == (t / 8,)
        assert row.returns == row.q_targets == (2 * t / 8,)


def test_targets_beyond_the_range_of_the_readout_are_cut():
    one = trajectory("a", 3)
    scores, targets = scored(one, reference=False)
    rows = make_rows([one], {one.key: scores}, {one.key: targets}, 3.0)
    assert [row.returns[0] for row in rows] == [0.0, pytest.approx(2 / 3), 1.0]  # 4 / 3 is cut
    assert all(row.ref_logprobs is None for row in rows)


def test_scores_that_do_not_fit_are_refused():
    one, other = trajectory("a", 3), trajectory("a", 2)
    scores, targets = scored(other)
    with pytest.raises(RecordError, match="a#0: 3 turns"):
        make_rows([one], {one.key: scores}, {one.key: targets}, 3.0)
    with pytest.raises(RecordError, match="no scores"):
        make_rows([one], {}, {one.key: targets}, 3.0)


def test_a_scoring_row_has_no_numbers():
    (row,) = plain_rows(trajectory("a", 1))
    assert row.old_logprobs == () and row.advantages == () and row.ref_logprobs is None
