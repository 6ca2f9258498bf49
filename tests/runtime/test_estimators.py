"""Estimators beside Eq. 4-7: numbers worked by hand, plain loops, reductions."""

import math
import random
import statistics

import pytest
import torch

from runtime.estimators import (
    anchor_advantages,
    discounted_returns,
    group_advantages,
    leave_one_out_advantages,
    overlong_penalty,
    token_gae,
    turn_scores,
)
from runtime.targets import turn_advantages

NO_STD = {"use_std": False, "unit": 1.0, "epsilon": 0.0}
WITH_STD = {"use_std": True, "unit": 1.0, "epsilon": 0.0}


def lists(tensors):
    return [one.tolist() for one in tensors]


def close(numbers, expected):
    assert [x for one in lists(numbers) for x in one] == pytest.approx([x for one in expected for x in one], abs=1e-12)
    assert [len(one) for one in numbers] == [len(one) for one in expected]


def test_discounted_returns():
    assert discounted_returns([0, 0, 8], 0.5).tolist() == [2.0, 4.0, 8.0]
    assert discounted_returns([1, -2], 1.0).tolist() == [-1.0, -2.0]
    assert discounted_returns([3, 5], 0.0).tolist() == [3.0, 5.0]


def test_turn_scores_take_the_penalty_where_it_happened():
    assert turn_scores(10.0, [False, True], 0.5).tolist() == [10.0, 9.5]


def test_group_advantages_by_hand():
    totals = [10.0, 0.0, 0.0, 10.0]
    scores = [turn_scores(total, [False] * turns, 0.0) for total, turns in zip(totals, (1, 2, 1, 3), strict=True)]
    # mean 5; sample deviation sqrt((25 + 25 + 25 + 25) / 3) = 5.7735: 5 / 5.7735 = sqrt(3) / 2
    half = math.sqrt(3) / 2
    close(group_advantages(totals, scores, **WITH_STD), [[half], [-half] * 2, [-half], [half] * 3])
    close(group_advantages(totals, scores, **NO_STD | {"unit": 10.0}), [[0.5], [-0.5] * 2, [-0.5], [0.5] * 3])


def test_a_penalty_moves_the_turn_and_the_mean_is_of_trajectories():
    # scores 4, 3 (its second turn invalid, c_inv 1), and 0: means 3.5 and 0, their mean 1.75
    scores = [turn_scores(4.0, [False, True], 1.0), turn_scores(0.0, [False], 1.0)]
    close(group_advantages([4.0, 0.0], scores, **NO_STD), [[2.25, 1.25], [-1.75]])
    # the deviation is that of the returns 4 and 0: sqrt(8) = 2.828
    root = math.sqrt(8)
    close(group_advantages([4.0, 0.0], scores, **WITH_STD), [[2.25 / root, 1.25 / root], [-1.75 / root]])


@pytest.mark.parametrize("kind", [WITH_STD, NO_STD])
def test_a_group_without_variance_says_nothing_whatever_its_penalties(kind):
    scores = [turn_scores(10.0, [False, True], 0.3), turn_scores(10.0, [False], 0.3)]
    close(group_advantages([10.0, 10.0], scores, **kind), [[0.0, 0.0], [0.0]])


def test_a_group_of_one_is_refused():
    with pytest.raises(ValueError, match="a group needs 2 trajectories or more, this one has 1"):
        group_advantages([1.0], [torch.ones(1)], **WITH_STD)
    with pytest.raises(ValueError, match="leave-one-out needs 2"):
        leave_one_out_advantages([torch.ones(1)], 1.0)


def test_leave_one_out_by_hand():
    # returns 6, 0, 3: others' means 1.5, 4.5, 3
    scores = [turn_scores(total, [False], 0.0) for total in (6.0, 0.0, 3.0)]
    close(leave_one_out_advantages(scores, 1.0), [[4.5], [-4.5], [0.0]])
    close(leave_one_out_advantages(scores, 10.0), [[0.45], [-0.45], [0.0]])


def test_leave_one_out_of_two_is_the_difference():
    scores = [turn_scores(6.0, [False] * 2, 0.0), turn_scores(1.0, [False], 0.0)]
    close(leave_one_out_advantages(scores, 1.0), [[5.0, 5.0], [-5.0]])


def test_leave_one_out_is_the_group_mean_scaled():
    """R_i - mean of the others = N / (N - 1) (R_i - mean of all)."""
    rng = random.Random(0)
    totals = [rng.uniform(-5, 5) for _ in range(6)]
    scores = [turn_scores(total, [False] * rng.randint(1, 4), 0.0) for total in totals]
    grouped = group_advantages(totals, scores, **NO_STD)
    close(leave_one_out_advantages(scores, 1.0), [[1.2 * x for x in one] for one in lists(grouped)])


def test_anchor_advantages_by_hand():
    # "door" is seen three times with returns 4, 2, 0: mean 2, sample deviation 2; "hall" twice with equal returns
    anchors = [["door", "hall"], ["hall", "door", "door"], ["roof"]]
    returns = [torch.tensor([4.0, 1.0]), torch.tensor([1.0, 2.0, 0.0]), torch.tensor([9.0])]
    close(anchor_advantages(anchors, returns, **WITH_STD), [[1.0, 0.0], [0.0, 0.0, -1.0], [0.0]])
    close(anchor_advantages(anchors, returns, **NO_STD | {"unit": 4.0}), [[0.5, 0.0], [0.0, 0.0, -0.5], [0.0]])


def test_anchor_advantages_against_a_plain_loop():
    rng = random.Random(1)
    anchors = [[rng.choice("abcd") for _ in range(rng.randint(1, 6))] for _ in range(5)]
    returns = [torch.tensor([rng.choice([0.0, 1.0, 2.5]) for _ in own]) for own in anchors]
    every = [(a, g) for own, numbers in zip(anchors, lists(returns), strict=True) for a, g in zip(own, numbers)]  # noqa: B905
    expected = []
    for own, numbers in zip(anchors, lists(returns), strict=True):
        line = []
        for anchor, number in zip(own, numbers, strict=True):
            group = [g for a, g in every if a == anchor]
            spread = statistics.stdev(group) if len(group) > 1 else 0.0
            line.append((number - statistics.fmean(group)) / spread if spread else 0.0)
        expected.append(line)
    got = anchor_advantages(anchors, [one.double() for one in returns], **WITH_STD)
    close(got, expected)


def test_token_gae_by_hand():
    # backwards: 1 - 0.4; 0.9 * 0.4 - 0.2 + 0.45 * 0.6; 0.9 * 0.2 - 0.5 + 0.45 * 0.43
    got = token_gae([0.0, 1.0], [1, 2], [0.5, 0.2, 0.4], 0.9, 0.5)
    assert got.tolist() == pytest.approx([-0.1265, 0.43, 0.6], abs=1e-12)


def test_token_gae_with_one_token_a_turn_is_turn_gae():
    rng = random.Random(2)
    rewards, values = ([rng.uniform(-1, 1) for _ in range(7)] for _ in range(2))
    by_turn = turn_advantages(rewards, values, 0.9, 0.8)
    assert token_gae(rewards, [1] * 7, values, 0.9, 0.8).tolist() == pytest.approx(by_turn.tolist(), abs=1e-12)


def test_token_gae_against_its_sum():
    """A_j = sum over l of (gamma lambda)^l delta_(j+l), with rewards on the turns' last tokens."""
    rng = random.Random(3)
    rewards, lengths = [0.0, 2.0, -1.0], [3, 1, 2]
    values, gamma, trace = [rng.uniform(-1, 1) for _ in range(6)], 0.9, 0.7
    paid = [0, 0, 0.0, 2.0, 0, -1.0]
    deltas = [paid[j] + gamma * ([*values, 0.0][j + 1]) - values[j] for j in range(6)]
    expected = [sum((gamma * trace) ** k * deltas[j + k] for k in range(6 - j)) for j in range(6)]
    assert token_gae(rewards, lengths, values, gamma, trace).tolist() == pytest.approx(expected, abs=1e-12)


def test_token_gae_refuses_values_that_do_not_fit():
    with pytest.raises(ValueError, match="2 values for 3 response tokens"):
        token_gae([0.0], [3], [0.1, 0.2], 1.0, 1.0)


@pytest.mark.parametrize(("length", "penalty"), [(1, 0.0), (12, 0.0), (13, -0.25), (14, -0.5), (16, -1.0), (20, -1.0)])
def test_overlong_penalty(length, penalty):
    assert overlong_penalty(length, 16, 4) == penalty
    assert overlong_penalty(length, 16, 0) == 0.0
