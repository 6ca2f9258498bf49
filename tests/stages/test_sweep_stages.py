"""collect_rollouts and evaluate on a real tiny policy, real worker processes and the corridor."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from env_adapters.base import EnvironmentFault, Task
from pipeline.config import Config, EnvConfig, EvaluateConfig, ModelConfig, RolloutConfig, RunConfig
from pipeline.run_directory import RunPaths
from runtime.distributed import Distributed
from runtime.intervals import wilson_interval
from runtime.progress import Progress
from runtime.records import RecordError, Trajectory, Turn
from runtime.rollouts import RolloutError
from runtime.shards import read_shards, read_trajectories, shard_path
from runtime.weight_files import policy_fingerprint
from stages import collect_rollouts, evaluate
from stages.collect_rollouts import rollout_metrics, tasks_of_iteration
from stages.context import Context, Resident
from stages.evaluate import numbers, stratified, table
from tests.corridor import CorridorAdapter
from tests.corridor_policy import make_policy_folder

ROOT = Path(__file__).resolve().parents[2]
CONFIG = Config(
    run=RunConfig(iterations=2),
    model=ModelConfig(dtype="float32", chat_template=False),
    env=EnvConfig(name="tests.corridor:CorridorAdapter", max_turns=5, prompt_tokens=64, response_tokens=3),
    rollout=RolloutConfig(trajectories=6, slots=3, workers=1),
    evaluate=EvaluateConfig(tasks=5, temperature=0.4, greedy_too=True),
)


class OneOfTwo(Distributed):
    """Rank r of 2 as it looks to a stage, without a process group: the ranks are run one after another."""

    def barrier(self, name):
        pass

    def sum(self, values, what=""):
        return list(values)

    def broadcast(self, value, what=""):
        return value  # of rank 0, which is run last


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies")
    for seed in range(3):
        make_policy_folder(folder / str(seed), seed)
    return folder


@pytest.fixture
def resident():
    held = Resident()
    yield held
    if held.environments is not None:
        held.environments.close()


def make_context(root, policies, resident, iteration=1, config=CONFIG, distributed=None, adapter=None) -> Context:
    for seed in range(3):
        target = root / "checkpoints" / f"{seed:04d}" / "policy" if seed else root / "model"
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.symlink_to(policies / str(seed))
    adapter = adapter or CorridorAdapter(CorridorAdapter.Options())
    distributed = distributed or Distributed.single()
    return Context(config, RunPaths(root), iteration, distributed, adapter, resident, Progress(False))


def content(trajectory: Trajectory):
    """Everything but the clock and the last digits of log-probs."""
    turns = [dataclasses.replace(t, generation_s=0, environment_s=0, sampling_logprobs=()) for t in trajectory.turns]
    return dataclasses.replace(trajectory, turns=tuple(turns))


def contents(folder, prefix=""):
    return [content(one) for one in read_trajectories(folder, prefix)]


def test_an_epoch_holds_each_task_once_and_an_iteration_none_twice():
    tasks = [Task(f"t{i}", "train", "x") for i in range(10)]
    for count in (1, 3, 7, 10):
        stream = [task.task_id for i in range(1, 31) for task in tasks_of_iteration(tasks, 0, i, count)]
        for epoch in range(len(stream) // 10):
            assert len(set(stream[10 * epoch : 10 * epoch + 10])) == 10
        for i in range(30):
            assert len(set(stream[count * i : count * i + count])) == count
    assert tasks_of_iteration(tasks, 0, 5, 3) != tasks_of_iteration(tasks, 1, 5, 3)
    first, second = (tasks_of_iteration(tasks, 0, i, 10) for i in (1, 2))
    assert first != second != tasks
    with pytest.raises(EnvironmentFault, match="10 tasks, rollout.trajectories = 11"):
        tasks_of_iteration(tasks, 0, 1, 11)


def test_collect_writes_one_trajectory_a_task(tmp_path, policies, resident):
    context = make_context(tmp_path, policies, resident, iteration=2)
    result = collect_rollouts.run(context)
    trajectories = read_trajectories(context.paths.rollouts(2))
    expected = tasks_of_iteration(context.adapter.tasks("train"), 0, 2, 6)
    assert [one.task_id for one in trajectories] == sorted(task.task_id for task in expected)
    assert {one.policy for one in trajectories} == {policy_fingerprint(policies / "1")}  # policy i - 1
    assert {(one.iteration, one.temperature, one.sample, one.split) for one in trajectories} == {(2, 1.0, 0, "train")}
    assert result.counts["trajectories"] == result.counts["played_now"] == 6
    assert result.metrics["rollout/success"] == sum(one.success for one in trajectories) / 6
    assert result.metrics["rollout/tokens_per_s"] > result.metrics["rollout/response_tokens_per_s"] > 0
    assert set(result.seconds) == {"refresh_s", "generation_s", "environment_wait_s", "loop_s"}
    assert min(result.seconds.values()) >= 0
    assert any(turn.valid for one in trajectories for turn in one.turns)  # it does walk, or this test is blind


def test_cut_at_every_byte_of_the_last_record_only_the_lost_task_is_played(tmp_path, policies, resident):
    context = make_context(tmp_path, policies, resident)
    collect_rollouts.run(context)
    folder = context.paths.rollouts(1)
    path = shard_path(folder, 0)
    whole, before = path.read_bytes(), contents(folder)
    kept = whole[:-1].rindex(b"\n") + 1
    lost = json.loads(whole[kept:])["task_id"]
    cuts = range(kept, len(whole), max(1, (len(whole) - kept) // 40))  # every byte: tests/runtime/test_shards.py
    for cut in [*cuts, len(whole) - 1]:
        path.write_bytes(whole[:cut])
        result = collect_rollouts.run(context)
        resumed = path.read_bytes()
        assert resumed[:kept] == whole[:kept]
        assert resumed.count(b"\n") == whole.count(b"\n") and json.loads(resumed[kept:])["task_id"] == lost
        assert result.counts["played_now"] == 1
        assert contents(folder) == before
    path.write_bytes(whole)
    again = collect_rollouts.run(context)
    assert path.read_bytes() == whole and again.counts["played_now"] == 0
    assert again.metrics["rollout/success"] == result.metrics["rollout/success"]
    assert "rollout/tokens_per_s" not in again.metrics


def test_two_ranks_play_what_one_rank_plays(tmp_path, policies, resident):
    one = make_context(tmp_path / "one", policies, resident)
    collect_rollouts.run(one)
    folder = one.paths.rollouts(1)
    two = tmp_path / "two"
    for rank in (1, 0):  # rank 0 last: it reads everything at the end
        single = Distributed.single()
        ranks = OneOfTwo(rank, 2, rank, single.device, 0.0)
        context = make_context(two, policies, resident, distributed=ranks)
        if rank == 0:  # what rank 1 wrote meanwhile is not there yet for rank 0 when it reads
            shard_path(context.paths.rollouts(1), 1).rename(tmp_path / "aside")
            context.paths.rollouts(1).joinpath("rank-00001.jsonl").write_bytes(b"")
            original = OneOfTwo.sum

            def put_back(self, values, what="", original=original, paths=context.paths):
                (tmp_path / "aside").replace(shard_path(paths.rollouts(1), 1))
                return original(self, values, what)

            OneOfTwo.sum = put_back
        try:
            collect_rollouts.run(context)
        finally:
            if rank == 0:
                OneOfTwo.sum = original
    folder_two = context.paths.rollouts(1)
    assert contents(folder_two) == contents(folder)
    shards = read_shards(folder_two)
    assert shards.num_duplicates == 0
    sizes = [shard_path(folder_two, rank).read_bytes().count(b"\n") for rank in (0, 1)]
    assert sizes == [3, 3]


def test_shards_of_another_policy_or_temperature_are_refused(tmp_path, policies, resident):
    context = make_context(tmp_path, policies, resident)
    collect_rollouts.run(context)
    before = shard_path(context.paths.rollouts(1), 0).read_bytes()
    (tmp_path / "model").unlink()
    (tmp_path / "model").symlink_to(policies / "2")
    with pytest.raises(RecordError, match="delete the folder"):
        collect_rollouts.run(context)
    assert shard_path(context.paths.rollouts(1), 0).read_bytes() == before


def test_a_trajectory_of_another_task_is_refused(tmp_path, policies, resident):
    context = make_context(tmp_path, policies, resident)
    collect_rollouts.run(context)
    path = shard_path(context.paths.rollouts(1), 0)
    stranger = json.loads(path.read_text().splitlines()[0]) | {"task_id": "train/elsewhere"}
    path.write_text(path.read_text() + json.dumps(stranger) + "\n")
    with pytest.raises(RecordError, match="trajectory train/elsewhere#0 is of no task of rollouts 1; delete its line"):
        collect_rollouts.run(context)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert collect_rollouts.run(context).counts["played_now"] == 0


def test_errors_are_counted_apart_and_played_again_on_resume(tmp_path, policies, resident):
    class FailsOnce(CorridorAdapter):
        def tasks(self, split):
            fault = {"fault": "raise", "at": 1, "marker": None if not healed else str(tmp_path)}
            first, *others = super().tasks(split)[:6]
            return [dataclasses.replace(first, payload={**first.payload, **fault}), *others]

    healed = False
    env = dataclasses.replace(CONFIG.env, name="tests.corridor:FaultyCorridorAdapter")
    config = dataclasses.replace(CONFIG, env=env)
    adapter = FailsOnce(CorridorAdapter.Options())
    context = make_context(tmp_path, policies, resident, config=config, adapter=adapter)
    with pytest.raises(RolloutError, match=r"1 of 6 episodes failed(.|\n)*the floor gave way"):
        collect_rollouts.run(context)
    patient = dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, max_error_share=1.0))
    result = collect_rollouts.run(dataclasses.replace(context, config=patient))
    assert (result.counts["errors"], result.metrics["rollout/errors"]) == (1, 1.0)
    lines = [json.loads(line) for line in context.paths.errors.read_text().splitlines()]
    assert [(one["stage"], one["iteration"], one["error"], one["stopped"]) for one in lines] == [
        ("collect_rollouts", 1, "EpisodeLost", False)
    ] * 2  # once in each of the two attempts
    assert lines[0]["message"].endswith("RuntimeError: the floor gave way") and "Traceback" in lines[0]["lines"][0]
    healed = True
    result = collect_rollouts.run(context)
    assert (result.counts["errors"], result.counts["trajectories"], result.counts["played_now"]) == (0, 6, 1)


def test_a_killed_collection_goes_on(tmp_path, policies, resident):
    """A real process, kill -9 in the middle of the rollouts, then the same stage again."""
    config = dataclasses.replace(CONFIG, rollout=RolloutConfig(trajectories=12, slots=1, workers=1))
    uncut = make_context(tmp_path / "uncut", policies, resident, config=config)
    collect_rollouts.run(uncut)
    context = make_context(tmp_path / "cut", policies, resident, config=config)
    path = shard_path(context.paths.rollouts(1), 0)
    code = f"""
from pathlib import Path
from runtime.rollouts import play
import stages.sweep, time
from stages import collect_rollouts
from stages.context import Resident
from tests.stages.test_sweep_stages import *
def slowly(*arguments):
    for one in play(*arguments):
        yield one
        time.sleep(0.2)
stages.sweep.play = slowly
config = dataclasses.replace(CONFIG, rollout=RolloutConfig(trajectories=12, slots=1, workers=1))
collect_rollouts.run(make_context(Path({str(tmp_path / "cut")!r}), Path({str(policies)!r}), Resident(), config=config))
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_bytes().count(b"\n") >= 3) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = path.read_bytes()
    assert 3 <= kept.count(b"\n") < 12
    result = collect_rollouts.run(context)
    assert path.read_bytes().startswith(kept)
    assert result.counts["played_now"] == 12 - kept.count(b"\n")
    assert contents(context.paths.rollouts(1)) == contents(uncut.paths.rollouts(1))


def episode(kind="x", turns=2, success=False, status="terminated", invalid=0, score=0.0):
    turn = Turn("o", None, (1,), "r", (2,), (-0.5,), "a", True, 0.5, 0.0, 0.0)
    all_turns = tuple(dataclasses.replace(turn, valid=i >= invalid) for i in range(turns))
    return Trajectory("t", 0, "near", kind, "g", 1, 0, "p", 1.0, status, success, score, all_turns)


def test_metrics_of_hand_made_episodes():
    lost = episode(status="error", turns=1, invalid=1, success=False)
    metrics = rollout_metrics([episode(turns=4, success=True, score=1.0), episode(status="truncated", invalid=1), lost])
    # two episodes count: 4 + 2 turns of reward 0.5, one of the 6 invalid
    expected = {
        "rollout/success": 0.5, "rollout/score": 0.5, "rollout/return": 1.5, "rollout/turns": 3.0,
        "rollout/truncated_share": 0.5, "rollout/invalid_share": 1 / 6, "rollout/prompt_tokens": 1.0,
        "rollout/response_tokens": 1.0, "rollout/errors": 1.0,
    }  # fmt: skip
    assert metrics == pytest.approx(expected)
    with pytest.raises(RecordError, match="all 1 episodes"):
        rollout_metrics([lost])


def test_numbers_of_a_sweep_by_hand():
    lost = episode(status="error", turns=1)
    found = numbers([episode(turns=3, success=True, score=1.0), episode(turns=5, invalid=2), lost])
    low, high = wilson_interval(1, 2)
    assert found == {
        "n": 2, "success": 0.5, "success_low": low, "success_high": high, "score": 0.5, "turns": 4.0,
        "turns_of_successes": 3.0, "invalid_share": 0.25, "errors": 1,
    }  # fmt: skip
    assert numbers([lost])["success"] is None


def test_stratified_by_hand():
    kinds = "aaaaaabbbc"  # 6, 3, 1 of 10
    tasks = [Task(f"t{i}", "near", kind) for i, kind in enumerate(kinds)]

    def chosen(count):
        return [task.task_id for task in stratified(tasks, count)]

    assert chosen(0) == chosen(10) == chosen(99) == [task.task_id for task in tasks]
    # 5: shares 3, 1.5, 0.5: the half that b comes first with
    assert chosen(5) == ["t0", "t1", "t2", "t6", "t7"]
    # 4: shares 2.4, 1.2, 0.4 -> 2, 1, 0 and the one left to a, first of the two remainders of .4
    assert chosen(4) == ["t0", "t1", "t2", "t6"]
    assert chosen(1) == ["t0"]


def test_evaluate_sweeps_every_split_once(tmp_path, policies, resident, capsys):
    context = make_context(tmp_path, policies, resident, iteration=0)
    result = evaluate.run(context)
    folder = context.paths.evaluation(0)
    results = json.loads((folder / "results.json").read_text())
    # before training: all 12 tasks of both splits, and greedy too
    assert [(one["split"], one["temperature"]) for one in results["sweeps"]] == [
        ("near", 0.4), ("near", 0.0), ("far", 0.4), ("far", 0.0),
    ]  # fmt: skip
    for one in results["sweeps"]:
        assert one["all"]["n"] == sum(row["n"] for row in one["types"].values()) == 12
        assert sorted(one["types"]) == ["rooms-1", "rooms-2", "rooms-3"]
        stored = read_trajectories(folder, f"{one['split']}-t{one['temperature']:g}-")
        assert one["all"]["success"] == sum(trajectory.success for trajectory in stored) / 12
        assert {trajectory.split for trajectory in stored} == {one["split"]}
    assert results["environment"] == {
        "name": "tests.corridor:CorridorAdapter",
        "engine": "corridor 1",
        "rooms": 3,
        "tasks": 12,
    }
    assert results["policy"] == policy_fingerprint(policies / "0")
    assert table(results) in capsys.readouterr().out
    assert result.metrics["evaluate/near/success"] == results["sweeps"][0]["all"]["success"]
    assert result.metrics["evaluate/near/greedy_success"] == results["sweeps"][1]["all"]["success"]
    assert result.counts["trajectories"] == 48

    path = shard_path(folder, 0, "near-t0.4-")
    whole, before = path.read_bytes(), (folder / "results.json").read_text()
    path.write_bytes(whole[: len(whole) // 2])
    again = evaluate.run(context)
    assert 0 < again.counts["played_now"] < 12
    assert (folder / "results.json").read_text() == before
    assert path.read_bytes().startswith(whole[: whole[: len(whole) // 2].rindex(b"\n")])


def test_evaluation_on_the_way_is_a_stratified_sample_with_the_same_luck(tmp_path, policies, resident):
    config = dataclasses.replace(CONFIG, run=RunConfig(iterations=9))
    for iteration in (1, 2):
        evaluate.run(make_context(tmp_path, policies, resident, iteration=iteration, config=config))
    first, second = (RunPaths(tmp_path).evaluation(i) for i in (1, 2))
    assert sorted(path.name for path in first.iterdir()) == [
        "far-t0.4-rank-00000.jsonl", "near-t0.4-rank-00000.jsonl", "results.json",
    ]  # fmt: skip
    seeds = [[(one.task_id, one.seed) for one in read_trajectories(folder, "near-t0.4-")] for folder in (first, second)]
    assert seeds[0] == seeds[1] and len(seeds[0]) == 5
    policies_seen = [{one.policy for one in read_trajectories(folder, "near-t0.4-")} for folder in (first, second)]
    assert policies_seen == [{policy_fingerprint(policies / "1")}, {policy_fingerprint(policies / "2")}]
