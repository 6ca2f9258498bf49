"""Finished runs of every algorithm (tests/algorithm_runs.py): equal starts, and the files of a critic."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from pipeline.config_loading import load_config
from pipeline.inspect.reading import open_run
from pipeline.inspect.verify import find_faults
from pipeline.manifests import apply_retention, read_manifests
from pipeline.run_directory import RunError, RunPaths
from pipeline.session import Session, _check_before
from runtime.distributed import Distributed
from runtime.shards import read_trajectories
from runtime.weight_files import policy_fingerprint
from stages.collect_rollouts import tasks_of_iteration
from tests.algorithm_runs import RUNS
from tests.corridor import CorridorAdapter

pytestmark = pytest.mark.slow


def played(folder: Path, prefix: str = "") -> list[tuple]:
    return [
        (one.key, [turn.response_ids for turn in one.turns], one.status) for one in read_trajectories(folder, prefix)
    ]


def test_all_start_from_the_same_weights_and_are_evaluated_alike(algorithm_runs):
    starts = {policy_fingerprint(RunPaths(algorithm_runs / name).policy(0)) for name in RUNS}
    assert len(starts) == 1
    for split in ("near", "far"):
        folders = [RunPaths(algorithm_runs / name).evaluation(0) for name in RUNS]
        first, *others = (played(folder, f"{split}-t1-") for folder in folders)
        assert len(first) == 2 and all(other == first for other in others)


def test_all_take_their_tasks_from_the_same_stream(algorithm_runs):
    tasks = CorridorAdapter(CorridorAdapter.Options(rooms=3, tasks=24)).tasks("train")
    stream = [task.task_id for task in tasks_of_iteration(tasks, 0, 1, 16)]
    for name, count in (("sapo", 16), ("ppo", 16), ("grpo", 4), ("rloo", 4), ("remax", 8), ("vineppo", 6)):
        own = {one.task_id for one in read_trajectories(RunPaths(algorithm_runs / name).rollouts(1))}
        assert own == set(stream[:count]), name
    sapo, ppo = (RunPaths(algorithm_runs / name).rollouts(1) for name in ("sapo", "ppo"))
    assert played(sapo) == played(ppo)  # the same policy, tasks and seeds


def test_a_run_done_again_stage_by_stage_has_the_same_policies_and_critics_to_the_bit(algorithm_runs):
    whole, pieces = (read_manifests(RunPaths(algorithm_runs / name)) for name in ("ppo", "ppo-cut"))
    assert whole.keys() == pieces.keys()
    for name in whole:
        assert whole[name].digest == pieces[name].digest, name  # of policy/ and critic/, scores and targets
    names = whole["optimize", 2].outputs
    assert {"critic/model.safetensors", "critic_engine/engine.json"} <= names.keys()


@pytest.fixture
def run_dir(algorithm_runs, tmp_path) -> Path:
    return Path(shutil.copytree(algorithm_runs / "ppo", tmp_path / "ppo"))


CRITICS = {  # a file of a critic, the step that reads it, the remedy
    "iterations/0001/advantages/first_critic/model.safetensors": (("optimize", 1), "delete {root}/iterations/0001/adv"),
    "checkpoints/0001/critic/model.safetensors": (("compute_advantages", 2), "delete "),
    "checkpoints/0001/critic_engine/engine.json": (("optimize", 2), "delete "),
}


@pytest.mark.parametrize("file", CRITICS)
@pytest.mark.parametrize("fault", ["missing", "flipped"])
def test_a_damaged_critic_is_one_line_with_its_remedy(run_dir, file, fault):
    step, remedy = CRITICS[file]
    path = run_dir / file
    if fault == "missing":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    paths, config = RunPaths(run_dir), load_config(run_dir / "config.yaml")
    config = dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, min_free_gib=0.0))
    session = Session(paths, config, Distributed.single(), stop=None, manifests=read_manifests(paths))
    with pytest.raises(RunError) as caught:
        _check_before(session, step, recompute=False)
    message = str(caught.value)
    fact = "missing" if fault == "missing" else "its content is not what its manifest says"
    assert str(path) in message and fact in message and "\n" not in message
    assert remedy.format(root=run_dir) in message


def test_a_critic_goes_with_the_engine_state_of_its_policy(run_dir):
    paths = RunPaths(run_dir)
    changed = apply_retention(paths, read_manifests(paths), keep_last=1, keep_every=1)
    assert changed["optimize", 1].removed == ("critic/", "critic_engine/", "engine/")
    assert sorted(path.name for path in paths.checkpoint(1).iterdir()) == ["manifest.json", "policy"]
    assert {"critic", "critic_engine", "engine", "policy"} <= {path.name for path in paths.checkpoint(2).iterdir()}
    assert [f"{one.place}: {one.fact}" for one in find_faults(open_run(run_dir))] == []
