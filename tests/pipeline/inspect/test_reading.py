"""The light reader: what is there, joined; what is damaged, named; nothing taken for granted."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from pipeline.config import Config
from pipeline.inspect.reading import open_run
from pipeline.run_directory import RunError
from runtime.shards import ShardWriter, read_targets, read_trajectories, shard_path
from tests.made_up_run import made_up_targets, made_up_trajectory, made_up_turn, write_made_up_run
from tests.processes import ENVIRONMENT, ROOT

COMMANDS = ("", "trajectories --format csv", "trajectories --evaluation all", "show 4:corridor-0003", "verify")
HEAVY = ("torch", "deepspeed", "transformers", "textworld", "alfworld", "jsonargparse", "safetensors", "tensorboard")


def test_the_light_reader_reads_what_the_pipeline_reads(whole_run):
    run = open_run(whole_run)
    assert run.iterations() == [1, 2, 3, 4] and run.evaluation_numbers() == [0, 2, 4]
    for iteration in run.iterations():
        episodes = sorted(run.trajectories(iteration), key=lambda one: one.trajectory.task_id)
        assert [one.trajectory for one in episodes] == read_trajectories(run.paths.rollouts(iteration))
        targets = {one.key: one for one in read_targets(run.paths.advantages(iteration) / "targets.jsonl")}
        assert all(one.targets == targets[one.trajectory.key] for one in episodes)
    assert run.settings() == Config(**{key: getattr(run.settings(), key) for key in vars(run.settings())})
    assert run.setting("env", "max_turns") == 4 and run.setting("env", "nothing") is None
    assert [iteration for iteration, _ in run.curve("rollout/success")] == [1, 2, 3, 4]
    assert len(list(run.evaluation_episodes(4))) == 48 and list(run.evaluations()) == [0, 2, 4]
    assert run.errors == () and run.damage == []


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_heavy_is_needed(whole_run, command):
    """A copied run on a machine without any of it."""
    code = (
        f"import sys\nfor name in {HEAVY}: sys.modules[name] = None\n"
        f"from pipeline.inspect.__main__ import main\nsys.exit(main([{str(whole_run)!r}, *{command.split()}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.count("\n") <= 1, done.stderr
    assert done.stdout


def test_an_episode_that_was_lost_and_played_again_counts_once(tmp_path):
    lost = made_up_trajectory("a", (), status="error", error="gone")
    again = made_up_trajectory("a", [made_up_turn(terminated=True)])
    other = made_up_trajectory("b", (), status="error", error="gone")
    third = made_up_trajectory("a", [made_up_turn("later", terminated=True)])
    root = write_made_up_run(tmp_path / "run", {1: [(one, None) for one in (lost, other, again, third)]})
    assert [one.trajectory for one in open_run(root).trajectories(1)] == [again, other]
    assert sorted(read_trajectories(open_run(root).paths.rollouts(1)), key=lambda one: one.key) == [again, other]


def test_a_torn_tail_is_no_damage_and_a_damaged_line_is_named(tmp_path):
    episodes = [(made_up_trajectory(name, [made_up_turn()], status="truncated"), None) for name in "abc"]
    root = write_made_up_run(tmp_path / "run", {1: episodes})
    shard = open_run(root).paths.rollouts(1) / "rank-00000.jsonl"
    lines = shard.read_bytes().splitlines(keepends=True)
    shard.write_bytes(lines[0] + b"{]\n" + lines[1] + b"\xff\n" + b'{"schema": 1}\n' + lines[2][:-9])
    run = open_run(root)
    assert [one.trajectory.task_id for one in run.trajectories(1)] == ["a", "b"]
    assert [line.partition(": ")[0] for line in run.damage] == [f"{shard}:{number}" for number in (2, 4, 5)]


def test_lone_surrogates_and_a_line_of_megabytes_are_read(tmp_path):
    turn = made_up_turn("x\ud800y\x00", "z" * 2_000_000)
    root = write_made_up_run(tmp_path / "run", {1: [(made_up_trajectory("a", [turn], status="truncated"), None)]})
    (episode,) = open_run(root).trajectories(1)
    assert episode.trajectory.turns == (turn,)


def test_targets_that_are_damaged_leave_a_gap(tmp_path):
    episodes = [(made_up_trajectory(name, [made_up_turn()], status="truncated"), [1.0]) for name in "ab"]
    root = write_made_up_run(tmp_path / "run", {1: episodes})
    path = open_run(root).paths.advantages(1) / "targets.jsonl"
    path.write_text("nonsense\n" + path.read_text().splitlines(keepends=True)[1])
    run = open_run(root)
    assert [one.targets for one in run.trajectories(1)] == [None, made_up_targets("b#0", [1.0])]
    assert run.damage[0].startswith(f"{path}:1: not targets")


def test_shards_of_several_ranks_and_a_writer_at_work(tmp_path):
    root = write_made_up_run(tmp_path / "run", {1: [(made_up_trajectory("a", [made_up_turn()]), None)]})
    with ShardWriter(shard_path(open_run(root).paths.rollouts(1), 1)) as shard:
        shard.append(made_up_trajectory("b", [made_up_turn()]))
        assert [one.trajectory.task_id for one in open_run(root).trajectories(1)] == ["a", "b"]


def test_small_files_that_are_damaged_do_not_stop_it(whole_run, tmp_path):
    root = write_made_up_run(tmp_path / "run", {1: [(made_up_trajectory("a", [made_up_turn()]), None)]})
    (root / "config.yaml").write_text("run: [")
    (root / "metrics.jsonl").write_text('{"stage": "optimize", "iteration": 1, "x": 2}\nnonsense\n{"stage": "opt')
    (root / "errors.jsonl").write_text('{"stage": "evaluate"}\nnonsense\n')
    (root / "iterations/0001/rollouts/manifest.json").write_text("{")
    run = open_run(root)
    assert run.config == {} and run.manifests == {} and run.curve("x") == [(1, 2)]
    assert run.errors == ({"stage": "evaluate"},) and len(run.damage) == 3
    assert len(list(run.trajectories(1))) == 1


def test_an_unknown_folder_names_those_that_are_near(tmp_path):
    for name in ("tiny-alfworld-seed0", "tiny-alfworld-seed1", "paper"):
        write_made_up_run(tmp_path / name, {})
    with pytest.raises(RunError, match=r"seed: no such folder; did you mean .*seed[01] or .*seed[01]\?"):
        open_run(tmp_path / "tiny-alfworld-seed")
    with pytest.raises(RunError, match="no config.yaml in it; did you mean"):
        open_run(tmp_path)
    with pytest.raises(RunError, match="no such folder; name a run directory"):
        open_run(tmp_path / "no" / "such")


def test_settings_of_another_version_are_refused(whole_run, tmp_path):
    text = (whole_run / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text.replace("gamma:", "gama:"))
    with pytest.raises(RunError, match="config.yaml: not this version's settings"):
        open_run(tmp_path).settings()


def test_results_that_are_none_are_left_out(whole_run, tmp_path):
    run = open_run(whole_run)
    broken = replace(run, paths=replace(run.paths, root=tmp_path))
    (tmp_path / "evaluations/0003").mkdir(parents=True)
    (tmp_path / "evaluations/0003/results.json").write_text(json.dumps({"sweeps": 3}))
    assert broken.evaluations() == {} and broken.evaluation_numbers() == [3]
