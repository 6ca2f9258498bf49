"""`verify` finds each planted fault and names it, and finds nothing in a sound run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from pipeline.inspect.__main__ import main
from pipeline.inspect.reading import open_run
from pipeline.inspect.recomputation import normalised, turn_targets
from pipeline.inspect.verify import find_faults
from tests.pipeline.inspect.planted import (
    BROKEN_FILES,
    ROLLOUTS,
    WRONG_CONTENT,
    cut,
    name_value_tokens,
    put_line,
    records,
    reseal,
)


@pytest.fixture
def run_dir(whole_run, tmp_path) -> Path:
    shutil.copytree(whole_run, tmp_path / "run")
    return tmp_path / "run"


def facts_of(root: Path) -> list[str]:
    return [f"{finding.place}: {finding.fact}" for finding in find_faults(open_run(root))]


def assert_found(root: Path, place: str, fact: str) -> None:
    found = facts_of(root)
    assert any(place in one.partition(": ")[0] and fact in one for one in found), "\n".join(found)


def test_nothing_is_found_in_a_sound_run(whole_run, run_dir, capsys):
    assert main([str(whole_run), "verify"]) == 0
    assert capsys.readouterr().out == "checked 18 manifests, 4 iterations: nothing wrong\n"
    reseal(run_dir)  # what the tests below do besides planting
    assert facts_of(run_dir) == []


@pytest.mark.parametrize("fault", BROKEN_FILES)
def test_a_broken_file_is_named(run_dir, fault):
    plant, place, fact = BROKEN_FILES[fault]
    plant(run_dir)
    assert_found(run_dir, place, fact)


@pytest.mark.parametrize("fault", WRONG_CONTENT)
def test_wrong_content_is_named_where_all_hashes_fit(run_dir, fault):
    plant, place, fact = WRONG_CONTENT[fault]
    plant(run_dir)
    name_value_tokens(run_dir)
    reseal(run_dir)
    assert_found(run_dir, place, fact)


def test_at_least_thirty_faults_are_planted():
    assert len(BROKEN_FILES) + len(WRONG_CONTENT) >= 30


def test_another_validity_changes_the_advantages(run_dir):
    """Eq. 7 subtracts c_inv from an invalid turn, so every normalised advantage of the batch moves."""
    records(ROLLOUTS, lambda lines: lines[0]["turns"][0].update(valid=not lines[0]["turns"][0]["valid"]))(run_dir)
    reseal(run_dir)
    found = [fact for fact in facts_of(run_dir) if "advantages of" in fact]
    assert len(found) == 24  # trajectories


def test_a_run_in_progress_is_sound(run_dir):
    """What a killed run leaves: a stage without its manifest, a torn tail, temporaries."""
    for stage in ("checkpoints/0004", "export", "evaluations/0004", "iterations/0004/advantages"):
        shutil.rmtree(run_dir / stage)
    (run_dir / "iterations/0004/rollouts/manifest.json").unlink()
    cut(ROLLOUTS, 40)(run_dir)
    (run_dir / ".config.yaml.tmp-1-abc").write_text("half")
    records("metrics.jsonl", lambda lines: lines[:-4])(run_dir)
    cut("metrics.jsonl", 3)(run_dir)
    assert facts_of(run_dir) == []


def test_old_rollouts_may_be_deleted(run_dir):
    shutil.rmtree(run_dir / "iterations/0001")
    assert facts_of(run_dir) == []


def test_many_faults_of_one_file_are_counted(run_dir, capsys):
    for line in range(24):
        put_line(ROLLOUTS, line, "seed", to=1)(run_dir)
    assert main([str(run_dir), "verify"]) == 1
    out = capsys.readouterr().out
    assert f"{ROLLOUTS}: 15 more" in out  # 24 seeds and the file's size: 25 faults, of which 10 are listed
    assert re.search(r"checked 18 manifests, 4 iterations: \d+ faults", out)


def test_the_recomputation_by_hand():
    """rewards 0, 1; V 0.5, 0.8; Q 0.4, 0.7; gamma 0.9, lambda 0.5.

    A_1 = 1 - 0.8 = 0.2; A_0 = 0 + 0.9 * 0.8 - 0.5 + 0.9 * 0.5 * 0.2 = 0.22 + 0.09 = 0.31.
    """
    advantages, returns, q_targets = turn_targets([0.0, 1.0], [0.5, 0.8], [0.4, 0.7], 0.9, 0.5)
    assert advantages == pytest.approx([0.31, 0.2], abs=1e-12)
    assert returns == pytest.approx([0.81, 1.0], abs=1e-12)
    assert q_targets == pytest.approx([0.63, 1.0], abs=1e-12)
    # penalised: 0.31, 0.2 - 0.5 = -0.3; mean 0.005, deviation 0.305; 0.305 / (0.305 + 0.1)
    shares, mean, std = normalised([0.31, 0.2], [True, False], 0.5, 0.1, 0.0)
    assert (mean, std) == (pytest.approx(0.005, abs=1e-12), pytest.approx(0.305, abs=1e-12))
    assert shares == pytest.approx([0.305 / 0.405, -0.305 / 0.405], abs=1e-12)
    assert normalised([2.0, 2.0], [True, True], 0.5, 0.1, 0.0)[0] == [0.0, 0.0]
    assert normalised([1.0, -1.0], [True, True], 0.5, 0.0, 4.0)[0] == [0.25, -0.25]  # the floor of 4 stands in for 1
