"""Intervals against arithmetic by hand."""

import pytest

from runtime.intervals import Z_95, ratio_interval, wilson_interval


def test_wilson_interval_by_hand():
    # z = 2, 8 of 10: centre (0.8 + 0.2) / 1.4 = 0.7142857; half 2 sqrt(0.016 + 0.01) / 1.4 = 0.2303499
    assert wilson_interval(8, 10, z=2.0) == pytest.approx((0.4839358, 0.9446356), abs=1e-6)
    # the well-known 95 % interval of 0 of 10: z² / (10 + z²) = 0.2775
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-5)
    assert wilson_interval(10, 10) == pytest.approx((1 - 0.277533, 1.0), abs=1e-5)
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_the_interval_of_a_ratio_by_hand():
    # Units (y, x) = (1, 2), (0, 2), (2, 4): sums 3 and 8, ratio 3/8. Residuals y - 3/8 x = 1/4, -3/4, 1/2,
    # squares 1/16 + 9/16 + 4/16 = 14/16; variance of the sum 14/16 * 3/2 = 21/16; half = z * sqrt(21)/4 / 8
    half = Z_95 * 21**0.5 / 32
    found = ratio_interval(n=3, y=3, x=8, yy=1 + 0 + 4, xy=2 + 0 + 8, xx=4 + 4 + 16)
    assert found == pytest.approx((0.375 - half, 0.375 + half), abs=1e-12)


def test_with_x_one_it_is_the_interval_of_a_mean():
    # 1, 2, 6: mean 3, sum of squares about it 4 + 1 + 9 = 14, variance 14/2 = 7, standard error sqrt(7/3)
    half = Z_95 * (7 / 3) ** 0.5
    assert ratio_interval(3, 9, 3, 1 + 4 + 36, 9, 3) == pytest.approx((3 - half, 3 + half), abs=1e-12)


def test_one_unit_has_no_interval():
    assert ratio_interval(1, 3, 4, 9, 12, 16) == (0.75, 0.75)
