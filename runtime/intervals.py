"""95 % intervals of shares, means and ratios. Floats in, floats out; no packages."""

from __future__ import annotations

import math

Z_95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


def wilson_interval(successes: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval of a share: centre (p + z²/2n) / (1 + z²/n), never outside [0, 1]. n = 0: (0, 1).

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927).
    """
    if n == 0:
        return 0.0, 1.0
    p, square = successes / n, z * z / n
    centre = (p + square / 2) / (1 + square)
    half = z * math.sqrt(p * (1 - p) / n + square / (4 * n)) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def ratio_interval(n: int, y: float, x: float, yy: float, xy: float, xx: float) -> tuple[float, float]:
    """The interval of sum(y) / sum(x) over n independent units, such as episodes with y invalid ones among x turns.

    Units and not their turns are what is independent, so the variance is that of the residuals y - ratio * x
    (Cochran, Sampling Techniques, 3rd edition, 1977, section 6.4). With x = 1 everywhere it is the interval of a mean.

    Args:
        n: how many units; y, x, yy, xy, xx: the sums of y, x, y², xy and x² over them, x > 0.

    Returns:
        (low, high); the ratio itself twice where n < 2.
    """
    ratio = y / x
    if n < 2:
        return ratio, ratio
    residuals = max(0.0, yy - 2 * ratio * xy + ratio * ratio * xx)  # rounding can leave it below 0
    half = Z_95 * math.sqrt(residuals * n / (n - 1)) / x
    return ratio - half, ratio + half
