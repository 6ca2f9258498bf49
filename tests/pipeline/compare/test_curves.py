"""Curves over seeds: where their points are, and what a mean of curves is where no two seeds share their places."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.compare.curves import GRID, panels
from pipeline.compare.measuring import Costs
from tests.pipeline.compare.measured import make


def by_label(found):
    return {panel.x_label: panel for panel in found}


def test_seeds_that_were_evaluated_at_the_same_places():
    runs = [make(seed=i, success=(0.0, 0.2 * (i + 1), 0.9)) for i in range(3)]
    found = by_label(panels(runs))
    assert list(found) == ["trajectories played", "tokens generated", "seconds of training, wall clock",
                           "seconds of training, CPU"]  # fmt: skip
    *thin, thick = found["trajectories played"].series
    assert [one.thin for one in thin] == [True] * 3 and not thick.thin
    assert thin[1].x == [0, 10, 20] and thin[1].y == [0.0, 0.4, 0.9]
    assert thick.x == [0, 10, 20] and thick.y == pytest.approx([0.0, 0.4, 0.9])  # of 0.2, 0.4, 0.6 the middle
    assert thick.low[1] < 0.4 < thick.high[1] and thick.low[2] == thick.high[2] == pytest.approx(0.9)


def test_seeds_that_were_not():
    """Success is straight from 0 to 1 over 4 and 8 seconds: after t seconds (t/4 + t/8) / 2, as far as both go."""
    runs = [make(seed=0, wall_s=(2.0, 2.0)), make(seed=1, wall_s=(4.0, 4.0))]
    thick = by_label(panels(runs))["seconds of training, wall clock"].series[-1]
    assert len(thick.x) == GRID and (thick.x[0], thick.x[-1]) == (0.0, 4.0)
    assert thick.y == pytest.approx([(t / 4 + t / 8) / 2 for t in thick.x])
    assert thick.high == pytest.approx([t / 4 for t in thick.x])


def test_units_are_chosen_by_the_longest_run():
    hours = replace(make(), costs=Costs((10, 10), (2_000_000, 2_000_000), (1, 1), (3600.0, 3600.0 * 3), (60.0, 600.0)))
    found = by_label(panels([hours]))
    assert set(found) == {"trajectories played", "millions of tokens generated", "hours of training, wall clock",
                          "minutes of training, CPU"}  # fmt: skip
    assert found["hours of training, wall clock"].series[0].x == [0.0, 1.0, 4.0]


def test_a_cost_that_one_run_does_not_know_has_no_panel():
    old = replace(make(seed=1), costs=replace(make().costs, cpu_s=None))
    assert "seconds of training, CPU" not in by_label(panels([make(), old]))


def test_what_could_not_be_judged_is_no_point():
    (thin, thick) = panels([make(success=(0.0, None, 0.5))])[0].series
    assert thin.x == [0, 20] and thin.y == [0.0, 0.5] and np.isfinite(thick.y).all()


def test_each_variant_has_its_own_line():
    runs = [make("a"), make("a", 1), *(make(f"b{i}") for i in range(9))]
    lines = {one.name: (one.color, one.dashed) for panel in panels(runs) for one in panel.series if not one.thin}
    assert len(set(lines.values())) == 10 and {color for color, _ in lines.values()} == set(range(8))
