"""Does what V and Q promised come true: readouts in bins against the mean of the returns that followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.report.gathering import Pairs
from runtime.intervals import ratio_interval

BINS = 10


@dataclass(frozen=True)
class Bin:
    """The turns whose readout is in one range.

    Example: Bin(predicted=2.1, returned=2.6, low=2.2, high=3.0, turns=340, episodes=120)
    """

    predicted: float  # mean readout, reward units
    returned: float  # mean discounted return, reward units
    low: float  # 95 % interval of `returned`
    high: float
    turns: int
    episodes: int


def calibrate(episodes: Sequence[Pairs], readout: str) -> list[Bin]:
    """Bins of nearly equal numbers of turns, by readout; equal readouts are never parted. None without that readout.

    The turns of one episode share its outcome, so the interval of a bin's mean return takes episodes, not turns, as
    independent.

    Args:
        readout: "values" or "q_values".
    """
    episodes = [one for one in episodes if len(getattr(one, readout))]
    if not episodes:
        return []
    predicted = np.concatenate([np.asarray(getattr(one, readout)) for one in episodes])
    returned = np.concatenate([np.asarray(one.returns) for one in episodes])
    owner = np.repeat(np.arange(len(episodes)), [len(one.returns) for one in episodes])
    edges = np.unique(np.quantile(predicted, np.linspace(0, 1, BINS + 1)[1:-1]))
    places = np.searchsorted(edges, predicted, side="right")
    bins = []
    for place in np.unique(places):
        chosen = places == place
        turns = np.bincount(owner[chosen], minlength=len(episodes)).astype(float)
        sums = np.bincount(owner[chosen], weights=returned[chosen], minlength=len(episodes))
        present = turns > 0
        low, high = ratio_interval(
            int(present.sum()), sums.sum(), turns.sum(), (sums**2).sum(), (sums * turns).sum(), (turns**2).sum()
        )
        count = int(chosen.sum())
        mean = float(returned[chosen].mean())
        bins.append(Bin(float(predicted[chosen].mean()), mean, float(low), float(high), count, int(present.sum())))
    return bins
