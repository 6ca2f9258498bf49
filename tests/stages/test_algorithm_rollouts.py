"""What the algorithms make of collect_rollouts and compute_advantages: real policies, real worker processes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from pipeline.config import AdvantageConfig, AlgorithmConfig, Config, ConfigError
from pipeline.config_loading import build_config
from runtime.rollouts import RolloutError
from runtime.shards import read_targets, read_trajectories, shard_path
from stages import collect_rollouts, compute_advantages
from stages.algorithm import algorithm_of
from stages.collect_rollouts import further_tasks, tasks_of_iteration
from tests.restless_corridor import RestlessCorridorAdapter
from tests.stages.test_sweep_stages import CONFIG, contents, make_context, policies, resident

__all__ = ["policies", "resident"]  # fixtures


def configured(name: str, trajectories: int = 8, **options) -> Config:
    full = algorithm_options(name) | options
    rollout = dataclasses.replace(CONFIG.rollout, trajectories=trajectories, slots=8)
    advantage = AdvantageConfig(invalid_action_coef=0.0)
    return dataclasses.replace(CONFIG, algorithm=AlgorithmConfig(name, full), rollout=rollout, advantage=advantage)


def algorithm_options(name: str) -> dict:
    """All options at their defaults, as a loaded configuration has them."""
    groups = {name: {"group_size": 2}} if name in ("grpo", "dapo") else {}
    tree = {"algorithm": {"name": name}, "rollout": {"trajectories": 32}, **groups}
    return dict(build_config(tree).algorithm.options)


def baseline_path(folder: Path) -> Path:
    return shard_path(folder, 0, "baseline-")


# -- groups ------------------------------------------------------------------------------------------------------


def test_the_samples_of_a_group_differ_and_their_tasks_are_the_first_ones(tmp_path, policies, resident):
    context = make_context(tmp_path, policies, resident, config=configured("grpo", group_size=4))
    result = collect_rollouts.run(context)
    played = read_trajectories(context.paths.rollouts(1))
    tasks = context.adapter.tasks("train")
    first = [task.task_id for task in tasks_of_iteration(tasks, 0, 1, 8)[:2]]  # of the 8 that another plays
    assert {one.key for one in played} == {f"{task}#{n}" for task in first for n in range(4)}
    assert len({one.seed for one in played}) == 8
    assert len({tuple(turn.response_ids for turn in one.turns) for one in played if one.task_id == first[0]}) > 1
    assert (result.counts["trajectories"], result.counts["baselines"]) == (8, 0)
    assert not baseline_path(context.paths.rollouts(1)).exists()


def test_a_group_of_one_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="group_size = 1: must be >= 2, a trajectory alone has no group"):
        build_config({"algorithm": {"name": "grpo"}, "grpo": {"group_size": 1}})
    with pytest.raises(ConfigError, match="rollout.trajectories = 9: must be a multiple of 4"):
        build_config({"algorithm": {"name": "rloo"}, "rloo": {"group_size": 4}, "rollout": {"trajectories": 9}})


def test_an_error_makes_its_group_smaller_and_the_last_of_a_group_is_not_trained(tmp_path, policies, resident):
    context = make_context(tmp_path, policies, resident, config=configured("grpo", group_size=4))
    collect_rollouts.run(context)
    path = shard_path(context.paths.rollouts(1), 0)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    large, small = sorted({line["task_id"] for line in lines})
    for line in lines:  # one of the first task's four, three of the second's
        if line["sample"] < (1 if line["task_id"] == large else 3):
            line |= {"status": "error", "error": "lost", "success": False, "turns": []}
        elif line["task_id"] == large:  # returns that differ: 1, 2 and 3
            line["turns"][-1]["reward"] += line["sample"] - sum(turn["reward"] for turn in line["turns"])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = compute_advantages.run(context)
    assert (result.counts["errors"], result.counts["trajectories"]) == (4, 4)
    assert (result.metrics["advantage/groups"], result.metrics["advantage/groups_without_variance"]) == (1, 0)
    found = {one.key: one for one in read_targets(context.paths.advantages(1) / "targets.jsonl")}
    # mean 2, deviation 1 of the three that are left
    assert {key: one.advantages[0] for key, one in found.items()} == pytest.approx(
        {f"{large}#1": -1.0, f"{large}#2": 0.0, f"{large}#3": 1.0}, abs=1e-5
    )


# -- DAPO --------------------------------------------------------------------------------------------------------


def useful(context) -> set[str]:
    algorithm = algorithm_of(context.config)
    return {one.task_id for one in algorithm.select(read_trajectories(context.paths.rollouts(1)))}


def test_rounds_of_further_tasks_are_the_same_after_a_kill_in_the_middle(tmp_path, policies, resident):
    config = configured("dapo", trajectories=8, max_extra_rounds=2)
    whole = make_context(tmp_path / "whole", policies, resident, config=config)
    collect_rollouts.run(whole)
    folder = whole.paths.rollouts(1)
    lines = shard_path(folder, 0).read_bytes().splitlines(keepends=True)
    assert 8 < len(lines) <= 8 * 3  # there were further tasks, or this test is blind
    for count in (0, 5, 8, 9, len(lines) - 1):  # in the first round, at its end, in a later one
        cut = make_context(tmp_path / f"cut-{count}", policies, resident, config=config)
        cut.paths.rollouts(1).mkdir(parents=True)
        shard_path(cut.paths.rollouts(1), 0).write_bytes(b"".join(lines[:count]))
        result = collect_rollouts.run(cut)
        assert contents(cut.paths.rollouts(1)) == contents(folder)
        assert result.counts["played_now"] == len(lines) - count
    assert [path.name for path in folder.iterdir()] == ["rank-00000.jsonl"]


def test_the_number_of_rounds_is_bounded_and_0_filters_nothing(tmp_path, policies, resident):
    tasks = make_context(tmp_path / "x", policies, resident).adapter.tasks("train")
    first = tasks_of_iteration(tasks, 0, 1, 4)
    order = [task.task_id for task in further_tasks(tasks, first, 0, 1)]
    played = {}
    for rounds in (0, 1, 2):
        config = configured("dapo", trajectories=8, max_extra_rounds=rounds)
        context = make_context(tmp_path / str(rounds), policies, resident, config=config)
        collect_rollouts.run(context)
        ids = {one.task_id for one in read_trajectories(context.paths.rollouts(1))}
        extra = [task for task in order if task in ids]
        assert extra == order[: len(extra)] and len(extra) <= 4 * rounds
        assert rounds == 0 or len(useful(context)) >= 4 or len(played) == rounds
        played[rounds] = extra
    assert not played[0] and set(played[1]) <= set(played[2])
    zero = make_context(tmp_path / "0", policies, resident, config=configured("dapo", max_extra_rounds=0))
    assert compute_advantages.run(zero).counts["not_selected"] == 0


def test_groups_without_variance_are_neither_scored_nor_trained(tmp_path, policies, resident):
    context = make_context(tmp_path, policies, resident, config=configured("dapo", max_extra_rounds=1))
    collect_rollouts.run(context)
    result = compute_advantages.run(context)
    kept = useful(context)
    trained = {one.key.partition("#")[0] for one in read_targets(context.paths.advantages(1) / "targets.jsonl")}
    assert trained == kept and result.counts["trajectories"] == 2 * len(kept)
    every = read_trajectories(context.paths.rollouts(1))
    assert result.counts["not_selected"] == len(every) - 2 * len(kept) > 0


# -- baselines ---------------------------------------------------------------------------------------------------


def test_greedy_baselines_are_greedy_and_not_trained(tmp_path, policies, resident):
    context = make_context(tmp_path, policies, resident, config=configured("remax"))
    result = collect_rollouts.run(context)
    folder = context.paths.rollouts(1)
    sampled, greedy = read_trajectories(folder), read_trajectories(folder, "baseline-")
    assert [one.task_id for one in sampled] == [one.task_id for one in greedy] and len(greedy) == 4
    assert {(one.temperature, one.sample) for one in greedy} == {(0.0, 1)}
    assert (result.counts["trajectories"], result.counts["baselines"]) == (8, 4)
    assert result.metrics["rollout/success"] == sum(one.success for one in sampled) / 4  # of what was sampled
    model = AutoModelForCausalLM.from_pretrained(policies / "0", dtype="float32")
    for turn in (turn for one in greedy for turn in one.turns if not turn.continues):
        ids = torch.tensor([turn.prompt_ids + turn.response_ids])
        with torch.no_grad():
            likeliest = model(ids).logits[0, len(turn.prompt_ids) - 1 : -1].argmax(-1)
        assert tuple(likeliest.tolist()) == turn.response_ids
    compute_advantages.run(context)
    trained = [one.key for one in read_targets(context.paths.advantages(1) / "targets.jsonl")]
    assert trained == sorted(one.key for one in sampled)


def test_continuations_start_at_the_states_of_the_turns(tmp_path, policies, resident):
    context = make_context(tmp_path, policies, resident, config=configured("vineppo", 6, continuations=2))
    collect_rollouts.run(context)
    folder = context.paths.rollouts(1)
    continued = {one.key: one for one in read_trajectories(folder, "baseline-")}
    num_turns = 0
    for one in read_trajectories(folder):
        for turn in range(len(one.turns)):
            for n in range(2):
                other = continued.pop(f"{one.task_id}#{1 + 2 * turn + n}")
                assert other.turns[:turn] == one.turns[:turn]  # to the last digit of the log-probs
                assert other.turns[turn].observation == one.turns[turn].observation
                assert other.turns[turn].prompt_ids == one.turns[turn].prompt_ids
            num_turns += 1
    assert not continued and num_turns > 6
    lines = baseline_path(folder).read_bytes().splitlines(keepends=True)
    whole = contents(folder, "baseline-")
    baseline_path(folder).write_bytes(b"".join(lines[:5]))
    assert collect_rollouts.run(context).counts["played_now"] == len(lines) - 5
    assert contents(folder, "baseline-") == whole


def test_an_environment_whose_states_cannot_be_restored_is_refused(tmp_path, policies, resident):
    env = dataclasses.replace(CONFIG.env, name="tests.restless_corridor:RestlessCorridorAdapter")
    config = dataclasses.replace(configured("vineppo", 6), env=env)
    adapter = RestlessCorridorAdapter(RestlessCorridorAdapter.Options())
    context = make_context(tmp_path, policies, resident, config=config, adapter=adapter)
    with pytest.raises(RolloutError, match="showed something else when the turns before were played again, so its"):
        collect_rollouts.run(context)
    plain = dataclasses.replace(context, config=dataclasses.replace(configured("remax"), env=env))
    collect_rollouts.run(dataclasses.replace(plain, iteration=2))  # which starts no episode in the middle
