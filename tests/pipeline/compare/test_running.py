"""Runs side by side: which cores they get. That they run, stop and go on: test_command.py."""

import os
import time
from pathlib import Path

import pytest

from pipeline.compare.planning import PlannedRun
from pipeline.compare.running import Runner, core_shares


@pytest.mark.parametrize(
    ("cores", "jobs", "shares"),
    [
        ({0, 1, 2, 3, 4}, 2, [{0, 2, 4}, {1, 3}]),
        ({2, 7}, 1, [{2, 7}]),
        ({2, 7}, 3, [{2}, {7}, {2}]),
    ],
)
def test_cores_are_dealt_out(monkeypatch, cores, jobs, shares):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    assert core_shares(jobs) == shares


def test_a_run_keeps_to_its_share(tmp_path):
    share = core_shares(2)[1]
    process = Runner(2, print)._start(PlannedRun("a", 0, tmp_path / "runs/a", ("--help",)), share)
    try:
        assert os.sched_getaffinity(process.pid) == share
    finally:
        assert process.wait() == 0
    assert "usage" in Path(tmp_path / "runs/a.log").read_text()


def test_shares_are_taken_once(tmp_path, monkeypatch):
    taken = []

    def start(self, run, cores):
        taken.append(cores)
        return Sleeper()

    class Sleeper:
        returncode = 0

        def __init__(self):
            self.end = time.monotonic() + 0.3 * (1 + len(taken))

        def poll(self):
            return None if time.monotonic() < self.end else 0

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(Runner, "_start", start)
    Runner(2, print).run([PlannedRun("a", seed, tmp_path / f"runs/{seed}", ()) for seed in range(4)])
    assert taken == [{0}, {1}, {0}, {1}]
