"""Numbers that are not finite, in the real engine (tests/number_trials.py): skipped, noted, and not without end."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from pipeline.run_directory import RunPaths
from runtime.microbatches import plan_minibatches
from tests.processes import ENVIRONMENT, ROOT
from tests.training_run import TURNS, make_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    make_run(folder / "tied")
    return folder


@pytest.fixture(scope="module")
def found(root) -> dict:
    command = [sys.executable, "tests/number_trials.py", str(root)]
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert (root / "numbers.json").exists(), done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads((root / "numbers.json").read_text())


def skipped_lines(root, run: str) -> list[dict]:
    return [json.loads(line) for line in RunPaths(root / run).skipped_steps.read_text().splitlines()]


@pytest.mark.parametrize("run", ["nan", "inf"])
def test_the_step_with_a_bad_turn_is_skipped_and_its_turns_are_listed(root, found, run):
    """15 turns, 8 a step: two steps, the bad turn 0 in one of them."""
    (counts,), (metrics,) = found[run]["counts"], found[run]["metrics"]
    assert (counts["updates"], counts["skipped_steps"]) == (1, 1)
    assert all(math.isfinite(value) for value in metrics.values())
    (line,) = skipped_lines(root, run)
    steps = plan_minibatches([1] * sum(TURNS[1]), 8, 5, 1, 0)
    bad = next(step for step in steps if 0 in step)
    assert sum(map(len, line["turns"].values())) == len(bad)
    first = min(line["turns"])  # row 0 is the first turn of the first trajectory
    assert line["turns"][first][0] == 0
    assert (line["iteration"], line["in_row"]) == (1, 1)


def test_too_many_in_a_row_end_the_stage_in_one_line(root, found):
    message = found["all"]["message"]
    assert "skipped_steps.jsonl: 2 optimizer steps in a row had a loss or a gradient that is not finite" in message
    assert "--set optimize.max_skipped_steps" in message and "\n" not in message
    assert found["all"]["engines"] == []  # nothing is written over the policy before
    assert [line["in_row"] for line in skipped_lines(root, "all")] == [1, 2]


def test_the_count_goes_on_over_iterations_and_processes(root, found):
    """2 steps in iteration 1, which ends well below the limit of 3, 1 in iteration 2: that is the third in a row."""
    assert found["later"]["counts"][0]["skipped_steps"] == 2 and found["later"]["engines"] == [1]
    assert "3 optimizer steps in a row" in found["later"]["message"]
    assert [(line["iteration"], line["in_row"]) for line in skipped_lines(root, "later")] == [(1, 1), (1, 2), (2, 3)]


def test_log_ratios_of_200_are_trained_on(found):
    (counts,), (metrics,) = found["far"]["counts"], found["far"]["metrics"]
    assert (counts["updates"], counts["skipped_steps"]) == (2, 0)
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["sapo/ratio"] > 1e6  # half of them at the bound, exp(20) = 4.9e8


def test_code_in_a_checkpoint_is_not_run(found):
    """DeepSpeed asks torch.load for full unpickling: that is overruled."""
    assert found["code"]["ran"] is False
    assert "engine: cannot be loaded (UnpicklingError: " in found["code"]["message"]
