"""Sweeps out of results.json, whole and damaged."""

import json

from pipeline.inspect.reading import open_run
from pipeline.report.curves import evaluation_series
from pipeline.report.evaluations import Rate, Sweep, first_and_last, read_sweeps
from tests.made_run import make_run


def sweep(iteration: int, split: str, temperature: float = 0.4, success: float = 0.5) -> Sweep:
    return Sweep(iteration, split, temperature, Rate(success, 0.0, 1.0, 4), {})


def test_damaged_results_leave_a_gap_and_a_line(tmp_path):
    paths = make_run(tmp_path / "x", iterations=2)
    path = paths.evaluation(2) / "results.json"
    results = json.loads(path.read_text())
    results["sweeps"][0]["all"]["success"] = None  # every episode ended in an error: nothing to show, no damage
    del results["sweeps"][1]["types"]["rooms"]["n"]
    results["sweeps"] += [3, {"split": "dev"}]
    path.write_text(json.dumps(results))
    run = open_run(paths.root)
    assert [(one.iteration, one.split) for one in read_sweeps(run)] == [(0, "seen"), (0, "unseen")]
    assert run.damage == [f"{path}: not results of an evaluation"] * 3


def test_the_first_is_compared_with_the_last_at_one_temperature():
    sweeps = [
        sweep(0, "seen"), sweep(0, "seen", 0.0), sweep(0, "unseen"), sweep(5, "seen"), sweep(9, "seen", success=0.7),
        sweep(9, "seen", 0.0),
    ]  # fmt: skip
    assert first_and_last(sweeps) == [(sweeps[0], sweeps[4]), (sweeps[2], None)]
    assert first_and_last([]) == []


def test_temperatures_are_named_where_there_are_several():
    names = [one.name for one in evaluation_series([sweep(0, "seen"), sweep(0, "seen", 0.0), sweep(5, "seen")])]
    assert names == ["seen, T 0.4", "seen, T 0"]
    assert [one.name for one in evaluation_series([sweep(0, "seen")])] == ["seen"]
