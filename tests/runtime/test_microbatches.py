from __future__ import annotations

import random

import pytest
import torch

from runtime.microbatches import count_rows, plan_microbatches, plan_minibatches, token_batch, train_batch
from runtime.records import Row


def row(prompt: int, *responses: int, key: str = "a#0") -> Row:
    """A row of a prompt and alternating responses with one observation token between them."""
    spans, at = [], prompt
    for length in responses:
        spans.append((at, at + length))
        at += length + 1
    ids = tuple(range(1, spans[-1][1] + 1))
    n, k = sum(responses), len(responses)
    return Row(
        key=key,
        turn_index=0,
        input_ids=ids,
        spans=tuple(spans),
        old_logprobs=(-1.0,) * n,
        advantages=(1.0,) * n,
        old_values=(0.0,) * k,
        old_q_values=(0.0,) * k,
        returns=(0.5,) * k,
        q_targets=(0.5,) * k,
    )


def test_the_documented_example():
    rows = [
        Row(key="a#0", turn_index=0, input_ids=(7, 8, 3, 2), spans=((2, 4),)),
        Row(key="a#0", turn_index=1, input_ids=(7, 4), spans=((1, 2),)),
    ]
    batch = token_batch(rows)
    assert batch.input_ids.tolist() == [[7, 8, 3, 2], [7, 4, 0, 0]]
    assert batch.response_mask.tolist() == [[False, False, True, True], [False, True, False, False]]
    assert batch.turn_start.tolist() == [2, 5] and batch.turn_end.tolist() == [3, 5]
    assert batch.token_turn.tolist() == [0, 0, 1]
    assert count_rows(rows) == (3, 2)


def test_a_row_of_several_turns():
    batch = token_batch([row(2, 2, 1), row(1, 3)], pad_id=9)
    # row 0: prompt 2, response 2, observation 1, response 1; row 1: prompt 1, response 3; width 6
    assert batch.response_mask.int().tolist() == [[0, 0, 1, 1, 0, 1], [0, 1, 1, 1, 0, 0]]
    assert batch.turn_start.tolist() == [2, 5, 7] and batch.turn_end.tolist() == [3, 5, 9]
    assert batch.token_turn.tolist() == [0, 0, 1, 2, 2, 2]
    assert batch.input_ids[1].tolist() == [1, 2, 3, 4, 9, 9]


@pytest.mark.parametrize("spans", [((0, 2),), ((2, 2),), ((2, 9),), ((2, 4), (3, 4)), ((3, 4), (1, 2))])
def test_bad_spans_are_refused(spans):
    with pytest.raises(ValueError, match="span"):
        token_batch([Row(key="a#0", turn_index=0, input_ids=(1, 2, 3, 4), spans=spans)])


def test_the_sampled_end_of_turn_token_is_trained_even_where_it_is_the_pad_token():
    batch = token_batch([Row(key="a#0", turn_index=0, input_ids=(5, 6, 0), spans=((1, 3),)), row(4, 2)], pad_id=0)
    assert batch.response_mask[0].tolist() == [False, True, True, False, False, False]


def test_train_batch_weights_and_values():
    batch = train_batch([row(2, 2), row(1, 1, 1)], weight=0.0)
    assert batch.turn_weights.tolist() == [0.0, 0.0, 0.0]
    assert batch.ref_logprobs is None
    assert batch.returns.tolist() == [0.5, 0.5, 0.5]
    with pytest.raises(ValueError, match="old_logprobs"):
        train_batch([Row(key="a#0", turn_index=0, input_ids=(1, 2), spans=((1, 2),))])


def check_plan(lengths: list[int], budget: int, num_ranks: int) -> None:
    plan = plan_microbatches(lengths, budget, num_ranks)
    assert len(plan) == num_ranks
    assert len({len(hand) for hand in plan}) == 1
    everything = [one for hand in plan for one in hand]
    real = [index for one in everything if one.weight == 1.0 for index in one.rows]
    assert sorted(real) == list(range(len(lengths)))  # each row exactly once
    for one in everything:
        padded = len(one.rows) * max(lengths[index] for index in one.rows)
        assert padded <= budget or len(one.rows) == 1
    dummies = [one for one in everything if one.weight == 0.0]
    if dummies:  # only where there is nothing left to halve
        assert all(len(one.rows) == 1 for one in everything) and len(dummies) < num_ranks
        assert all(lengths[one.rows[0]] == min(lengths) for one in dummies)


def test_plans_of_random_lengths():
    rng = random.Random(0)
    for _ in range(300):
        lengths = [rng.randint(1, 60) for _ in range(rng.randint(1, 40))]
        check_plan(lengths, rng.choice([1, 30, 64, 200, 5000]), rng.randint(1, 5))


def test_packing_worked_by_hand():
    # sorted 5 4 3 3 1 (rows 1 3 0 4 2), budget 10: 2 x 5 = 10 fits, 3 x 5 does not; then 3 x 3 = 9 fits
    plan = plan_microbatches([3, 5, 1, 4, 3], 10, 1)
    assert [one.rows for one in plan[0]] == [(1, 3), (0, 4, 2)]
    # two ranks get one each; three ranks: the larger of the two is halved
    assert [[one.rows for one in hand] for hand in plan_microbatches([3, 5, 1, 4, 3], 10, 2)] == [[(1, 3)], [(0, 4, 2)]]
    assert [[one.rows for one in hand] for hand in plan_microbatches([3, 5, 1, 4, 3], 10, 3)] == [
        [(0, 4, 2)],
        [(1,)],
        [(3,)],
    ]


def test_more_ranks_than_rows_and_no_rows():
    plan = plan_microbatches([4, 2], 100, 3)
    assert [(one.rows, one.weight) for hand in plan for one in hand] == [((0,), 1.0), ((1,), 1.0), ((1,), 0.0)]
    assert plan_microbatches([], 100, 2) == [[], []]


def test_a_row_over_the_budget_is_alone():
    assert [one.rows for one in plan_microbatches([500, 3, 2], 10, 1)[0]] == [(0,), (1, 2)]


def test_minibatches_cover_every_row_once_and_depend_on_their_names():
    for num_rows, size, parts in [(10, 4, 2), (100, 30, 3), (5, 256, 1), (256, 256, 1), (3, 1, 3), (384, 256, 2)]:
        plan = plan_minibatches([1] * num_rows, size, 0, 1, 0)
        assert len(plan) == parts
        assert sorted(index for part in plan for index in part) == list(range(num_rows))
        assert max(map(len, plan)) - min(map(len, plan)) <= 1
    first = plan_minibatches([1] * 50, 10, 0, 1, 0)
    assert first == plan_minibatches([1] * 50, 10, 0, 1, 0)
    others = [(0, 1, 1), (0, 2, 0), (1, 1, 0)]
    assert len({str(plan_minibatches([1] * 50, 10, *names)) for names in [(0, 1, 0), *others]}) == 4


def test_rows_of_several_turns_are_cut_by_turns():
    # 12 rows of 5 turns each for optimizer steps of about 20 turns: 3 steps of 4 rows
    plan = plan_minibatches([5] * 12, 20, 0, 1, 0)
    assert [len(rows) for rows in plan] == [4, 4, 4] and sorted(sum(plan, ())) == list(range(12))
    turns = [1, 9, 2, 8, 3, 7, 4, 6]  # 40 turns, steps of 10: each holds what reaches the next quarter
    plan = plan_minibatches(turns, 10, 0, 1, 0)
    reached = [sum(turns[row] for part in plan[: k + 1] for row in part) for k in range(len(plan))]
    assert sorted(sum(plan, ())) == list(range(8)) and reached[-1] == 40
    assert all(end <= 10 * (k + 1) for k, end in enumerate(reached[:-1]))
    assert plan_minibatches([50], 10, 0, 1, 0) == [(0,)] and plan_minibatches([], 10, 0, 1, 0) == []


def test_tensors_are_int64_and_bool():
    batch = token_batch([row(2, 2)])
    assert batch.input_ids.dtype == batch.turn_start.dtype == batch.token_turn.dtype == torch.int64
    assert batch.response_mask.dtype == torch.bool
