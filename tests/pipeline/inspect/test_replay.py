"""Recorded actions on the real environment again: the same, or what differs."""

from __future__ import annotations

import json
import shutil

import pytest

from env_adapters.base import EnvironmentFault, Observation, StepResult, Task
from pipeline.inspect.__main__ import main
from pipeline.inspect.reading import open_run
from pipeline.inspect.replay import replay, task_of
from tests.corridor import Corridor, CorridorAdapter
from tests.made_up_run import made_up_trajectory, made_up_turn


def test_every_episode_of_a_run_plays_as_recorded(whole_run, capsys):
    run = open_run(whole_run)
    addresses = [f"{i}:{one.trajectory.task_id}" for i in run.iterations() for one in run.trajectories(i)]
    addresses += [f"e4:{one.trajectory.task_id}" for one in run.evaluation_episodes(4)]
    assert main([str(whole_run), "replay", *addresses]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 4 * 24 + 48 and all(": as recorded, " in line for line in out)


def test_drift_is_named(whole_run, tmp_path, capsys):
    run_dir = tmp_path / "run"
    shutil.copytree(whole_run, run_dir)
    shard = run_dir / "iterations/0004/rollouts/rank-00000.jsonl"
    records = [json.loads(line) for line in shard.read_text().splitlines()]
    one = next(record for record in records if record["success"] and len(record["turns"]) > 1)
    one["turns"][1]["observation"] = "another room"
    one["turns"][-1]["reward"] = 0.5
    shard.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main([str(run_dir), "replay", f"4:{one['task_id']}"]) == 1
    out = capsys.readouterr().out
    assert f"4:{one['task_id']}: 2 differences" in out
    assert 'turn 1: observation was "another room", is "room ' in out
    assert f"turn {len(one['turns']) - 1}: reward was 0.5, is 1.0" in out


def test_differences_by_hand():
    """Two rooms, the walker in the last: `right` wins at once, so the recorded second turn is never asked."""
    task = Task("t", "train", "x", {"rooms": 2, "start": 1})
    actions = ("left", "right", "wait")
    first = made_up_turn("room 1 of 2", "right", admissible_actions=actions, valid=False)
    one = made_up_trajectory("t", [first, made_up_turn()], goal="find the window", success=True)
    assert list(replay(one, task, Corridor())) == [
        'goal was "find the window", is "find the door"',
        "turn 0: valid was False, is True",
        "turn 0: reward was 0.0, is 1.0",
        "turn 0: terminated was False, is True",
        "turn 0: the episode ended, the record has 1 more turns",
    ]


def test_an_end_that_differs_is_named():
    class Lost(Corridor):
        def step(self, response: str) -> StepResult:
            return StepResult(Observation("", ""), 1.0, True, response, True, success=False, score=0.25)

    turn = made_up_turn("room 0 of 1", "right", 1.0, admissible_actions=("left", "right", "wait"), terminated=True)
    one = made_up_trajectory("t", [turn], goal="find the door", success=True, score=1.0)
    found = list(replay(one, Task("t", "train", "x", {"rooms": 1, "start": 0}), Lost()))
    assert found == ["success was True, is False", "score was 1.0, is 0.25"]


def test_a_task_without_payload_is_looked_up():
    adapter = CorridorAdapter(CorridorAdapter.Options())
    one = made_up_trajectory("train/corridor-0004", ())
    assert task_of(one, adapter).payload == {"rooms": 2, "start": 1}
    with pytest.raises(EnvironmentFault, match="task nothing: not among the environment's"):
        task_of(made_up_trajectory("nothing", ()), adapter)


def test_an_environment_that_is_not_there_is_one_line(whole_run, tmp_path, capsys):
    run_dir = tmp_path / "run"
    shutil.copytree(whole_run, run_dir)
    text = (run_dir / "config.yaml").read_text()
    (run_dir / "config.yaml").write_text(text.replace("tests.corridor:CorridorAdapter", "no.such:Adapter"))
    assert main([str(run_dir), "replay", "4:corridor-0001"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: environment 'no.such:Adapter': cannot import no.such") and err.count("\n") == 1
