"""What looks at runs, on a finished run of every algorithm: nothing crashes, nothing claims what is not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipeline.export_dataset import main as export_dataset
from pipeline.inspect.__main__ import main
from pipeline.inspect.reading import open_run
from pipeline.inspect.verify import find_faults
from pipeline.manifests import read_manifests
from pipeline.plan import Facts
from pipeline.printout import iteration_line
from pipeline.report.__main__ import main as report
from pipeline.run_directory import RunPaths
from tests.algorithm_runs import RUNS
from tests.pipeline.inspect.planted import records, reseal

pytestmark = pytest.mark.slow
GROUPED = [name for name in RUNS if name in ("grpo", "rloo", "dapo", "gigpo")]
WITH_VALUES = ("sapo", "sapo-tokens", "ppo", "ppo-token", "vineppo")
WITH_BASELINES = ("remax", "vineppo")
ROLLOUTS, ADVANTAGES = "iterations/0002/rollouts", "iterations/0002/advantages"
TARGETS, BASELINES = f"{ADVANTAGES}/targets.jsonl", f"{ROLLOUTS}/baseline-rank-00000.jsonl"
FIRST_TARGETS = TARGETS.replace("0002", "0001")


def facts_of(root: Path) -> list[str]:
    return [f"{finding.place}: {finding.fact}" for finding in find_faults(open_run(root))]


@pytest.fixture
def copied(algorithm_runs, tmp_path):
    def copy(name: str) -> Path:
        return Path(shutil.copytree(algorithm_runs / name, tmp_path / name))

    return copy


# -- verify ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_a_sound_run_is_sound(algorithm_runs, name):
    assert facts_of(algorithm_runs / name) == []
    run = open_run(algorithm_runs / name)
    trained = [episode for episode in run.trajectories(1) if episode.targets is not None]
    assert trained, "nothing was trained, so nothing was compared"


@pytest.mark.parametrize("name", [name for name in RUNS if name != "own"])
def test_another_advantage_is_found(copied, name):
    root = copied(name)

    def change(lines: list[dict]) -> None:
        for series in ("advantages", "token_advantages"):
            if series in lines[0]:
                lines[0][series][0] += 1e-3

    records(FIRST_TARGETS, change)(root)
    reseal(root)
    found = [fact for fact in facts_of(root) if "recomputed" in fact]
    assert found and all("advantages of" in fact for fact in found)


@pytest.mark.parametrize("name", ["grpo", "rloo", "dapo"])
def test_another_weight_is_found(copied, name):
    root = copied(name)
    records(FIRST_TARGETS, lambda lines: lines[0].update(weight=lines[0].get("weight", 1.0) * 1.01))(root)
    reseal(root)
    (fact,) = facts_of(root)
    assert "weight of" in fact and "recomputed" in fact


def test_another_return_of_a_critic_is_found(copied):
    for name, series in (("ppo", "returns"), ("ppo-token", "token_returns")):
        root = copied(name)
        records(TARGETS, lambda lines, series=series: lines[0][series].__setitem__(0, 7.0))(root)
        reseal(root)
        assert any(f"{series} of" in fact for fact in facts_of(root))


def test_values_that_the_algorithm_does_not_have_are_found(copied):
    root = copied("grpo")
    records(FIRST_TARGETS, lambda lines: lines[0].update(values=[0.0] * len(lines[0]["advantages"])))(root)
    reseal(root)
    (fact,) = facts_of(root)
    assert "values of" in fact and "is there, recomputed it is not so" in fact


@pytest.mark.parametrize("name", WITH_BASELINES)
def test_baselines_are_read_and_matter(copied, name):
    root = copied(name)

    def pay(lines: list[dict]) -> None:
        for line in lines:
            line["turns"][-1]["reward"] += 1.0

    records(BASELINES, pay)(root)
    reseal(root)
    assert any("raw_advantages of" in fact for fact in facts_of(root))


def test_a_baseline_at_another_temperature_is_found(copied):
    root = copied("remax")
    records(BASELINES, lambda lines: lines[0].update(temperature=0.3))(root)
    reseal(root)
    assert any("sampled at temperature 0.3, expected 0 or 1" in fact for fact in facts_of(root))


def test_baselines_that_are_gone_are_found(copied):
    root = copied("vineppo")
    (root / BASELINES).unlink()
    reseal(root)
    found = facts_of(root)
    assert any("counts: baselines is" in fact for fact in found)
    assert any("cannot be recomputed" in fact for fact in found)


def test_a_damaged_critic_is_found(copied):
    root = copied("ppo")
    for part in ("checkpoints/0002/critic", "iterations/0001/advantages/first_critic"):
        path = root / part / "model.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(bytes(data))
        assert any(part in fact and "its content is not what its manifest says" in fact for fact in facts_of(root))
        data[-4:] = b"\0\0\xc0\x7f"  # NaN
        path.write_bytes(bytes(data))
    reseal(root)
    assert sum("holds NaN or infinite numbers" in fact for fact in facts_of(root)) == 2


def test_of_an_algorithm_of_the_users_own_the_shapes_are_checked(copied):
    root = copied("own")

    def shorten(lines: list[dict]) -> None:
        for series in ("advantages", "raw_advantages"):
            lines[0][series].pop()

    records(FIRST_TARGETS, shorten)(root)
    reseal(root)
    assert any("advantages of" in fact and "the rollout" in fact for fact in facts_of(root))


# -- everything else ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_every_tool_shows_it(algorithm_runs, name, capsys, tmp_path):
    root = algorithm_runs / name
    assert main([str(root)]) == 0 and "success of the rollouts" in capsys.readouterr().out
    assert main([str(root), "trajectories", "--iteration", "all", "--sort", "value_drop", "--format", "jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["first_value"] is not None for row in rows} >= {name in WITH_VALUES}
    run = open_run(root)
    for episode in run.trajectories(1):
        assert main([str(root), "show", f"1:{episode.trajectory.key}"]) == 0
        out = capsys.readouterr().out
        assert ("  advantage " in out) is (episode.targets is not None)
        assert ("  V " in out) is (name in WITH_VALUES) and ("  Q " in out) is name.startswith("sapo")
    assert export_dataset([str(root), "--format", "preference"]) == 0
    assert report([str(root), "--output", str(tmp_path / "page.html"), "--png", str(tmp_path / "png")]) == 0
    figures = {path.name for path in (tmp_path / "png").iterdir()}
    assert ("calibration.png" in figures) is (name in WITH_VALUES)
    page = (tmp_path / "page.html").read_text()
    assert ("The critic\\u0027s explained variance" in page or "The critic's explained variance" in page) is (
        name.startswith("ppo")
    )


@pytest.mark.parametrize("name", RUNS)
def test_the_line_of_an_iteration(algorithm_runs, name):
    paths, config = RunPaths(algorithm_runs / name), open_run(algorithm_runs / name).settings()
    line = iteration_line(1, Facts.of(config), read_manifests(paths), 1.0)
    assert ("V ev" in line, "critic ev" in line) == (name.startswith("sapo"), name.startswith("ppo"))


@pytest.mark.parametrize("name", GROUPED)
def test_the_samples_of_a_task_have_addresses(algorithm_runs, name, capsys):
    root = algorithm_runs / name
    one = next(iter(open_run(root).trajectories(1))).trajectory
    assert main([str(root), "trajectories", "--iteration", "1", "--task", one.task_id, "--limit", "0"]) == 0
    out = capsys.readouterr().out
    assert all(f"1:{one.task_id}#{sample}" in out for sample in (1, 2, 3))
    assert main([str(root), "replay", f"1:{one.task_id}#3"]) == 0
    assert "as recorded" in capsys.readouterr().out


@pytest.mark.parametrize("name", WITH_BASELINES)
def test_baselines_can_be_shown_and_replayed(algorithm_runs, name, capsys):
    root = algorithm_runs / name
    one = next(iter(open_run(root).baselines(2))).trajectory
    assert main([str(root), "show", f"2:{one.key}"]) == 0
    assert f"temperature {0 if name == 'remax' else 1}" in capsys.readouterr().out
    assert main([str(root), "replay", f"2:{one.key}"]) == 0
    assert "as recorded" in capsys.readouterr().out
