"""Interquartile means, bootstrap intervals, McNemar: against scipy, by hand, and against every possible resample."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from pipeline.compare.resampling import interquartile_mean, mcnemar, on_grid, paired_interval, stratified_interval


def naive_interquartile_mean(values):
    """Each value's share of the weight between the first and the third quarter, one by one."""
    ordered, n = sorted(values), len(values)
    total = 0.0
    for i, value in enumerate(ordered):  # value i covers [i/n, (i+1)/n] of the weight
        total += value * max(0.0, min((i + 1) / n, 0.75) - max(i / n, 0.25))
    return total / 0.5


def test_interquartile_mean_by_hand():
    assert interquartile_mean([7.0]) == 7.0
    assert interquartile_mean([1.0, 3.0]) == 2.0
    # three seeds: a quarter of 3 is 0.75 of a value at each end: (0.25 * 1 + 2 + 0.25 * 9) / 1.5 = 4.5 / 1.5
    assert interquartile_mean([9.0, 1.0, 2.0]) == pytest.approx(3.0, abs=1e-12)
    # five: 1.25 at each end: (0.75 * 2 + 3 + 0.75 * 4) / 2.5, whatever the outlier
    assert interquartile_mean([1, 2, 3, 4, 100]) == pytest.approx(3.0, abs=1e-12)
    assert interquartile_mean([1, 2, 3, 4, 1e6]) == pytest.approx(3.0, abs=1e-9)


@pytest.mark.parametrize("n", range(1, 12))
def test_interquartile_mean_is_that_of_a_loop(n):
    values = np.random.default_rng(n).normal(size=n)
    assert interquartile_mean(values) == pytest.approx(naive_interquartile_mean(values), abs=1e-12)


@pytest.mark.parametrize("n", [4, 8, 20])
def test_interquartile_mean_is_scipys_trimmed_mean_where_quarters_are_whole(n):
    values = np.random.default_rng(n).normal(size=(3, n))
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25, axis=1), abs=1e-12)
    assert interquartile_mean(values.T, axis=0) == pytest.approx(interquartile_mean(values), abs=0)


def test_the_interval_is_that_of_all_resamples():
    """Four seeds have 4^4 = 256 equally likely resamples; the ends are quantiles of their interquartile means."""
    values = np.array([0.1, 0.4, 0.5, 0.9])
    every = [naive_interquartile_mean(values[list(pick)]) for pick in itertools.product(range(4), repeat=4)]
    mean, low, high = stratified_interval([values], resamples=40_000)
    assert mean == pytest.approx((0.4 + 0.5) / 2)  # a quarter of four is one value at each end
    assert (low, high) == pytest.approx(np.quantile(every, [0.025, 0.975]), abs=0.011)
    narrow = stratified_interval([values], resamples=40_000, level=0.5)
    assert narrow[1:] == pytest.approx(np.quantile(every, [0.25, 0.75]), abs=0.011)


def test_the_interval_is_scipys():
    values = np.random.default_rng(0).beta(3, 2, size=12)
    mean, low, high = stratified_interval([values], resamples=20_000)
    theirs = stats.bootstrap((values,), lambda x, axis: stats.trim_mean(x, 0.25, axis=axis), n_resamples=20_000,
                             method="percentile", rng=np.random.default_rng(1)).confidence_interval  # fmt: skip
    assert (low, high) == pytest.approx(theirs, abs=0.005)
    assert low < mean < high


def test_strata_are_resampled_each_on_its_own():
    """A stratum of equal values adds no spread. If all seeds were drawn from one urn, some resamples would be all 1."""
    constant, spread = np.full(4, 1.0), np.array([0.0, 0.1, 0.2, 0.3])
    mean, low, high = stratified_interval([constant, spread])
    # of the 8 values two are cut at each end: (0.2 + 0.3 + 1 + 1) / 4; at most (0.3 + 0.3 + 1 + 1) / 4 can come
    assert mean == pytest.approx(0.625) and high <= 0.65 + 1e-12 and low >= 0.5 - 1e-12
    pooled = stratified_interval([np.concatenate([constant, spread])])
    assert pooled[2] == 1.0
    alone = stratified_interval([np.array([0.3])])
    assert alone == pytest.approx((0.3, 0.3, 0.3))


def test_curves_are_resampled_seed_by_seed():
    """Both points of a curve come from the same seeds: a curve of two equal points stays one."""
    values = np.repeat(np.random.default_rng(2).normal(size=(6, 1)), 2, axis=1)
    mean, low, high = stratified_interval([values])
    for part in (mean, low, high):
        assert part.shape == (2,) and part[0] == part[1]
    assert (mean[0], low[0], high[0]) == pytest.approx(stratified_interval([values[:, 0]]), abs=1e-12)


def test_the_same_seed_gives_the_same_interval():
    values = [np.random.default_rng(3).normal(size=7)]
    assert stratified_interval(values, seed=5) == stratified_interval(values, seed=5)
    assert stratified_interval(values, seed=5) != stratified_interval(values, seed=6)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """400 experiments of 20 seeds each: the 95 % interval of a symmetric distribution holds its centre."""
    draw = np.random.default_rng(4)
    hits = 0
    for number in range(400):
        _, low, high = stratified_interval([draw.normal(size=20)], seed=number, resamples=400)
        hits += low <= 0.0 <= high
    assert 0.90 <= hits / 400 <= 0.98  # sqrt(0.95 * 0.05 / 400) = 0.011; percentile intervals of 20 are a bit narrow


def test_a_paired_difference_is_that_of_all_resamples():
    """Two seeds and tasks a, a, b: 4 draws of seeds times 4 of the two a's; b is drawn every time."""
    first, second = np.array([[1, 1, 0], [1, 0, 1]]), np.array([[0, 1, 0], [0, 0, 0]])
    difference = first - second  # [[1, 0, 0], [1, 0, 1]]
    every = [
        difference[np.ix_(rows, [*columns, 2])].mean()
        for rows in itertools.product((0, 1), repeat=2)
        for columns in itertools.product((0, 1), repeat=2)
    ]
    mean, low, high = paired_interval(first, second, ["a", "a", "b"], resamples=40_000, level=0.6)
    assert mean == pytest.approx(3 / 6)
    assert (low, high) == pytest.approx(np.quantile(every, [0.2, 0.8]), abs=1e-12)


def test_pairing_takes_out_what_both_share():
    """Hard and easy tasks and good and bad seeds change nothing where both variants share them."""
    draw = np.random.default_rng(5)
    base = draw.normal(size=(5, 40)) + 10 * draw.normal(size=(5, 1)) + 10 * draw.normal(size=(1, 40))
    mean, low, high = paired_interval(base + 0.25, base, ["a"] * 40)
    assert (mean, low, high) == pytest.approx((0.25, 0.25, 0.25), abs=1e-9)
    one = paired_interval(base[:, :20] > 0, base[:, 20:] > 0, ["a"] * 20)
    other = paired_interval(base[:, 20:] > 0, base[:, :20] > 0, ["a"] * 20)
    assert one == pytest.approx((-other[0], -other[2], -other[1]), abs=1e-12)


def test_what_could_not_be_judged_is_in_no_pair():
    first, second = np.array([[1.0, math.nan, 0.0]]), np.array([[0.0, 1.0, math.nan]])
    assert paired_interval(first, second, ["a", "a", "a"])[0] == 1.0
    assert all(map(math.isnan, paired_interval(first[:, 1:], second[:, 1:], ["a", "a"])))


def test_mcnemar_by_hand_and_against_scipy():
    assert mcnemar(1, 5) == pytest.approx(2 * (1 + 6) / 64)  # n = 6: C(6,0) + C(6,1) of 2^6, both tails
    assert mcnemar(0, 0) == mcnemar(4, 4) == 1.0
    for a, b in [(0, 1), (3, 9), (9, 3), (20, 41), (600, 700), (2, 3)]:
        assert mcnemar(a, b) == pytest.approx(stats.binomtest(a, a + b, 0.5).pvalue, rel=1e-9)


def test_a_curve_between_its_points_and_beyond_them():
    values = on_grid([0, 10], [0.2, 0.6], np.array([-1, 0, 2.5, 10, 11]))
    assert values[1:4] == pytest.approx([0.2, 0.3, 0.6])
    assert np.isnan(values[[0, 4]]).all()
