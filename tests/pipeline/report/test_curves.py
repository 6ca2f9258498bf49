"""Panels by hand."""

import pytest

from pipeline.inspect.reading import open_run
from pipeline.report import curves
from pipeline.report.curves import (
    Series,
    invalid_share,
    mean_return,
    panels,
    pooled,
    smooth,
    success,
    thin,
    total,
    window,
)
from pipeline.report.evaluations import read_sweeps
from pipeline.report.gathering import Sums, gather
from pipeline.report.sampling import Sample
from runtime.intervals import wilson_interval
from tests.made_run import episode, make_run


def sums(*trajectories) -> Sums:
    found = Sums()
    for one in trajectories:
        found.add(one)
    return found


def test_the_window_is_odd_and_about_a_twelfth():
    assert [window(count) for count in (1, 23, 24, 110, 600)] == [1, 1, 3, 9, 51]


def test_a_pooled_line_weighs_episodes_and_keeps_the_single_iterations_as_dots():
    # successes of episodes: 1 of 1, 0 of 3, 2 of 2; a window of 3 pools 1/4, 3/6, 2/5
    won, lost = episode(1, "a", (1.0,)), episode(1, "b", (0.0,))
    found = pooled({1: sums(won), 2: sums(lost, lost, lost), 4: sums(won, won), 5: Sums(errors=3)}, success, 3)
    assert (found.x, found.dots, found.n) == ([1, 2, 4], [1.0, 0.0, 1.0], [4, 6, 5])
    assert found.y == [0.25, 0.5, 0.4]
    assert (found.low[1], found.high[1]) == wilson_interval(3, 6)


def test_estimates_of_one_iteration():
    # (return, turns, invalid) = (3, 3, 2) and (1, 2, 0)
    one = sums(episode(1, "a", (0.0, 2.0, 1.0), invalid=(0, 2)), episode(1, "b", (0.0, 1.0)))
    # mean return 2, variance (1 + 1) / 1 = 2, standard error sqrt(2 / 2) = 1
    assert mean_return(one) == pytest.approx((2.0, 2 - 1.959964, 2 + 1.959964))
    # ratio 2/5; residuals 2 - 6/5 and 0 - 4/5: 0.64 each, times 2, root 1.6; 0.4 +- 1.96 * 1.6 / 5 is cut to [0, 1]
    assert invalid_share(one) == (0.4, 0.0, 1.0)
    # four of each: ratio 2/5, residuals 8 * 0.64, times 8/7, root 2.419; over 20 turns 0.121
    four = total([one] * 4)
    assert invalid_share(four) == pytest.approx((0.4, 0.4 - 1.959964 * 0.120949, 0.4 + 1.959964 * 0.120949), abs=1e-5)


def test_a_smoothed_metric_leaves_out_what_is_no_number():
    found = smooth("kl", [(1, 1.0), (2, float("nan")), (3, 5.0), (4, 6.0)], 3)
    assert found == Series("kl", [1, 2, 3, 4], [1.0, 3.0, 5.5, 5.5], dots=[1.0, None, 5.0, 6.0])
    assert smooth("kl", [(1, float("inf"))], 1).y == [None]


def test_long_curves_are_thinned_and_keep_their_end(monkeypatch):
    monkeypatch.setattr(curves, "LONGEST_CURVE", 4)
    found = thin(Series("a", list(range(10)), [2.0 * x for x in range(10)], n=list(range(10))))
    assert (found.x, found.y, found.n) == ([0, 3, 6, 9], [0.0, 6.0, 12.0, 18.0], [0, 3, 6, 9])
    assert found.low is None
    assert thin(Series("a", list(range(9)), [0.0] * 9)).x == [0, 3, 6, 8]


def test_panels_of_a_run(tmp_path):
    run = open_run(make_run(tmp_path / "x").root)
    found = {panel.title: panel for panel in panels(run, gather(run, Sample(0)).sums, read_sweeps(run))}
    held_out = found["Success on held-out tasks"]
    assert [(one.name, one.x, one.y, one.n) for one in held_out.series] == [
        ("seen", [0, 6], [0.125, 0.875], [8, 8]), ("unseen", [0, 6], [0.125, 0.875], [8, 8]),
    ]  # fmt: skip
    assert (held_out.series[0].low[0], held_out.series[0].high[0]) == wilson_interval(1, 8)
    assert found["Policy loss"].series[0].y == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert found["Explained variance"].series[0].y == [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]
    assert [one.name for one in found["Explained variance"].series] == ["V"]  # the metrics have no Q
    assert found["Peak memory"].series[0].y == [0.5] * 6  # 512 MiB; no GPU, no line of it
    assert [one.y for one in found["Time"].series] == [[2.0] * 6] * 3
    assert "Correlation" not in found
