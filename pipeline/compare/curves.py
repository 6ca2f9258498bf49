"""Success against what had been spent, as panels of plain numbers for the page and the figures.

Every seed is a thin line; the thick one is the interquartile mean over the seeds, its band the 95 % bootstrap interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeline.compare.measuring import Measured
from pipeline.compare.resampling import on_grid, stratified_interval
from pipeline.compare.summary import Groups, curve, grouped, spent
from pipeline.report.curves import COLORS, Panel, Series

GRID = 41  # points of a mean over seeds that were not evaluated at the same places
CURVE_RESAMPLES = 2000
AXES = {
    "trajectories": ("trajectories played", ((1, ""),)),
    "generated_tokens": ("tokens generated", ((1e6, "millions of "), (1e3, "thousands of "), (1, ""))),
    "wall_s": ("of training, wall clock", ((3600, "hours "), (60, "minutes "), (1, "seconds "))),
    "cpu_s": ("of training, CPU", ((3600, "hours "), (60, "minutes "), (1, "seconds "))),
}
LEAST_UNITS = 3  # an axis ends at more of its units than this, or takes the next smaller one


def panels(runs: Sequence[Measured]) -> list[Panel]:
    """A panel for each split and each kind of cost that all runs know."""
    groups = grouped(runs)
    splits = dict.fromkeys(one.split for run in runs for one in run.evaluations)
    known = [what for what in AXES if all(spent(run, what) is not None for run in runs)]
    return [panel(groups, split, what) for split in splits for what in known]


def panel(groups: Groups, split: str, what: str) -> Panel:
    """Thin lines first, so that the thick ones lie above them."""
    label, units = AXES[what]
    longest = max((spent(run, what) or [0.0])[-1] for own in groups.values() for run in own)
    size, unit = next((one for one in units if longest > LEAST_UNITS * one[0]), units[-1])
    thin, thick = [], []
    for number, (name, own) in enumerate(groups.items()):
        again, color = divmod(number, COLORS)
        curves = [(np.array(x) / size, np.array(y)) for x, y in (curve(run, split, what) for run in own) if x]
        thin += [Series(name, x.tolist(), y.tolist(), color=color, thin=True) for x, y in curves]
        if curves:
            thick.append(replace(mean_curve(name, curves, color), dashed=again > 0))
    series = thin + thick
    return Panel(split, split, "success, share of episodes", series, share=True, x_label=f"{unit}{label}")


def mean_curve(name: str, curves: Sequence[tuple[np.ndarray, np.ndarray]], color: int) -> Series:
    """The interquartile mean over seeds at each place, with its interval.

    The places are those of the evaluations where all seeds share them, else GRID places at equal distances where all
    seeds have a curve; between evaluations a seed's curve is straight.
    """
    first = curves[0][0]
    grid = first
    if not all(np.array_equal(x, first) for x, _ in curves):
        grid = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), GRID)
    values = np.array([on_grid(x, y, grid) for x, y in curves])  # [seeds, places]
    mean, low, high = stratified_interval([values], resamples=CURVE_RESAMPLES)
    return Series(name, grid.tolist(), mean.tolist(), low.tolist(), high.tolist(), color=color)
