"""The statistics of a comparison. Numbers in, numbers out; numpy alone.

Words: a **seed** is one training run, the unit that is independent; a **stratum** is a world in which every seed was
trained anew (an environment). Task types are no strata of seeds: one policy plays all of them, so they rise and fall
together, and drawing them apart would make intervals too narrow. Tasks are drawn within their type where tasks are
drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LEVEL = 0.95
RESAMPLES = 10_000


def interquartile_mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean of the middle half along an axis: a quarter of the weight is cut at each end, fractions included.

    Every value counts fourfold, the lowest n and the highest n of the 4n are left out. Where n is a multiple of 4 that
    is `scipy.stats.trim_mean(values, 0.25)`, which Agarwal et al. use; for other n that one cuts less than a quarter
    (for three seeds nothing). Source: R. Agarwal et al., arXiv 2108.13264, section 4.3.

    Args:
        values: at least one along `axis`.

    Example: interquartile_mean([1, 2, 3, 4, 100]) == (0.75 * 2 + 3 + 0.75 * 4) / 2.5 == 3.0
    """
    ordered = np.sort(np.moveaxis(np.asarray(values, dtype=float), axis, -1), axis=-1)
    n = ordered.shape[-1]
    return np.repeat(ordered, 4, axis=-1)[..., n : 3 * n].mean(axis=-1)


def stratified_draws(strata: Sequence[np.ndarray], seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """Interquartile means of bootstrap samples: of each stratum as many seeds as it has, with replacement.

    Args:
        strata: one array [seeds, ...] each; what follows the seeds is resampled with them and must have the same shape
            in all strata (such as the points of a curve).

    Returns:
        [resamples, ...], the interquartile mean over the drawn seeds of all strata together.
    """
    draw = np.random.default_rng(seed)
    picked = [one[draw.integers(len(one), size=(resamples, len(one)))] for one in map(np.asarray, strata)]
    return interquartile_mean(np.concatenate(picked, axis=1), axis=1)


def stratified_interval(
    strata: Sequence[np.ndarray], seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The interquartile mean over all seeds of all strata, with its percentile bootstrap interval.

    Source: Agarwal et al., arXiv 2108.13264, section 4.2: seeds are resampled within their stratum. With one seed a
    stratum the interval has no width; with few seeds it is too narrow.

    Returns:
        (estimate, low, high), each of the shape behind the seeds.
    """
    draws = stratified_draws(strata, seed, resamples)
    return interquartile_mean(np.concatenate(strata), axis=0), *_percentiles(draws, level)


def paired_interval(
    first: np.ndarray, second: np.ndarray, types: Sequence[str], seed: int = 0, resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> tuple[float, float, float]:  # fmt: skip
    """The mean of `first - second` over seeds and tasks, with a bootstrap interval that draws both.

    Row s of both was trained from the same start, column t was played by both, so the difference is taken pair by pair.
    Each bootstrap sample draws seeds with replacement, and tasks with replacement within their type, the same tasks
    for all its seeds (rows and columns apart: A. B. Owen, The pigeonhole bootstrap, Ann. Appl. Stat. 1 (2007); it
    errs on the wide side).

    Args:
        first, second: [seeds, tasks], such as 1 for a success; NaN: not judged, the pair is left out.
        types: the task's type, one a column.

    Returns:
        (difference, low, high). NaN where no pair is left.
    """
    difference = np.asarray(first, dtype=float) - np.asarray(second, dtype=float)
    known = ~np.isnan(difference)
    value = np.where(known, difference, 0.0)
    draw = np.random.default_rng(seed)
    rows = draw.multinomial(len(value), np.full(len(value), 1 / len(value)), size=resamples)  # how often each is drawn
    sums, counts = np.zeros(resamples), np.zeros(resamples)
    for kind in dict.fromkeys(types):
        own = np.flatnonzero(np.asarray(types) == kind)
        columns = draw.multinomial(len(own), np.full(len(own), 1 / len(own)), size=resamples)
        sums += np.einsum("bs,st,bt->b", rows, value[:, own], columns, optimize=True)
        counts += np.einsum("bs,st,bt->b", rows, known[:, own].astype(float), columns, optimize=True)
    if not known.any():
        return math.nan, math.nan, math.nan
    low, high = _percentiles(sums[counts > 0] / counts[counts > 0], level)
    return float(value.sum() / known.sum()), float(low), float(high)


def mcnemar(first_only: int, second_only: int) -> float:
    """Exact two-sided p-value that of the pairs in which one alone succeeded, each side is as likely.

    The binomial probability, n = first_only + second_only and p = 1/2, of a split at least as uneven. Source:
    Q. McNemar, Psychometrika 12 (1947), in the exact form. It speaks of the two policies that played, not of the
    algorithms that made them.

    Example: mcnemar(1, 5) == 2 * (1 + 6) / 64 == 0.21875
    """
    n, fewer = first_only + second_only, min(first_only, second_only)
    if first_only == second_only:
        return 1.0
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n)


def on_grid(x: Sequence[float], y: Sequence[float], grid: np.ndarray) -> np.ndarray:
    """A curve's values between its points, linearly; NaN outside its ends. `x` rises strictly."""
    return np.interp(grid, x, y, left=np.nan, right=np.nan)


def _percentiles(draws: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high
