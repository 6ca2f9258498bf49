"""Calibration bins against numbers by hand and a naive loop."""

import random
from array import array

import pytest

from pipeline.report.calibration import BINS, calibrate
from pipeline.report.gathering import Pairs
from runtime.intervals import Z_95


def pairs(values, returns, q_values=None) -> Pairs:
    return Pairs(array("d", values), array("d", q_values or values), array("d", returns))


def test_one_value_is_one_bin_with_the_interval_over_episodes():
    # Episodes of 2 and 1 turns with returns (1, 1) and (4): mean 6/3 = 2. Residuals of the episodes 2 - 2*2 = -2 and
    # 4 - 2 = 2, so variance of the sum (4 + 4) * 2/1 = 16 and half = z * 4 / 3 turns.
    (one,) = calibrate([pairs([0.5, 0.5], [1, 1]), pairs([0.5], [4])], "values")
    assert (one.predicted, one.returned, one.turns, one.episodes) == (0.5, 2.0, 3, 2)
    assert (one.low, one.high) == pytest.approx((2 - Z_95 * 4 / 3, 2 + Z_95 * 4 / 3))


def test_bins_against_a_naive_loop():
    draw = random.Random(1)
    episodes = []
    for _ in range(60):
        values = [draw.gauss(0, 1) for _ in range(draw.randint(1, 8))]
        episodes.append(pairs([9.0] * len(values), [v + draw.gauss(0, 1) for v in values], values))
    turns = sorted((v, r, e) for e, one in enumerate(episodes) for v, r in zip(one.q_values, one.returns, strict=True))
    bins = calibrate(episodes, "q_values")
    assert len(bins) == BINS and sum(one.turns for one in bins) == len(turns)
    assert max(one.turns for one in bins) - min(one.turns for one in bins) <= 1
    start = 0
    for one in bins:
        own = turns[start : start + one.turns]
        start += one.turns
        assert one.predicted == pytest.approx(sum(v for v, _, _ in own) / len(own))
        assert one.returned == pytest.approx(sum(r for _, r, _ in own) / len(own))
        assert one.episodes == len({e for _, _, e in own})
        assert one.low < one.returned < one.high


def test_equal_readouts_are_never_parted():
    bins = calibrate([pairs([1.0] * 5 + [2.0], range(6))], "values")
    assert [(one.predicted, one.turns) for one in bins] == [(1.0, 5), (2.0, 1)]


def test_nothing_has_no_bins():
    assert calibrate([], "values") == []
