"""The test that every adapter passes. Third parties call it in their own suite:

from env_adapters.contract import check_adapter
def test_contract(): check_adapter(MyAdapter(MyAdapter.Options(...)))
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
from collections.abc import Iterator, Mapping
from typing import Any

from env_adapters.base import Adapter, Environment, EnvironmentFault, Observation, PastTurn, StepResult, Task

MAX_PAYLOAD_BYTES = 4096  # a task travels to workers and into records: it names data, it does not hold it
HOSTILE = (
    "", " ", "<action></action>", "<action>", "</action><action>", "<think>", "<action>look", "\x00", "\ud800",
    "<think></think>", "<think></think><action>   </action>", "a" * 100_000, "<action>" * 2000,
    "<think></think><action>" + "x" * 100_000 + "</action>",
)  # fmt: skip


class ContractBroken(AssertionError):
    """What an adapter promised and did not keep."""


def check_adapter(adapter: Adapter, *, games: int = 3, turns: int = 40) -> dict[str, Any]:
    """Play `games` tasks a split for at most `turns` turns and check every promise of env_adapters/base.py.

    Calls `prepare()` first. Returns counts of what was seen. Raises ContractBroken with the promise and the case.
    """
    _need(isinstance(adapter, Adapter), f"{type(adapter).__name__} lacks a part of the Adapter protocol")
    options = type(adapter).Options
    _need(dataclasses.is_dataclass(options) and options.__dataclass_params__.frozen, "Options is a frozen dataclass")
    _need(isinstance(options(), options), "every field of Options has a default")
    adapter.prepare()
    adapter.prepare()  # idempotent
    splits = list(dict.fromkeys((adapter.train_split, adapter.warm_start_split, *adapter.evaluation_splits)))
    held_out = set(adapter.evaluation_splits)
    _need(not held_out & {adapter.train_split, adapter.warm_start_split}, "evaluation splits differ from training's")
    _check_tasks(adapter, splits)
    environment = adapter.make()
    _need(
        isinstance(environment, Environment), f"{type(environment).__name__} lacks a part of the Environment protocol"
    )
    seen = {"splits": {s: len(adapter.tasks(s)) for s in splits}, "turns": 0, "expert_wins": 0, "expert_games": 0}
    try:
        for split in splits:
            for task in list(adapter.tasks(split))[:games]:
                _check_determinism(adapter, environment, task, turns)
                _check_invalid(adapter, environment, task)
                won, asked, played = _play_expert(adapter, environment, task, turns)
                seen["turns"] += played
                seen["expert_wins"] += won
                seen["expert_games"] += asked
        _check_slot_replays(adapter, environment, splits)
    finally:
        environment.close()
    _need(not seen["expert_games"] or seen["expert_wins"], "an expert that is offered wins at least one task")
    _need(all(isinstance(text, str) for text in adapter.vocabulary()), "vocabulary() is a sequence of texts")
    _need(isinstance(adapter.description(), Mapping), "description() is a mapping")
    json.dumps(dict(adapter.description()))  # it is logged with every result
    return seen


def _need(holds: bool, promise: str) -> None:
    if not holds:
        raise ContractBroken(promise)


def _check_tasks(adapter: Adapter, splits: list[str]) -> None:
    owner: dict[str, str] = {}
    for split in splits:
        tasks = list(adapter.tasks(split))
        _need(tasks == list(adapter.tasks(split)), f"tasks({split!r}) has one fixed order")
        for task in tasks:
            _need(isinstance(task, Task) and task.split == split, f"{task} says that it belongs to {split!r}")
            _need(
                task.task_id not in owner, f"task id {task.task_id!r} is in {owner.get(task.task_id)!r} and {split!r}"
            )
            _need(re.fullmatch(r"[A-Za-z0-9/_.-]+", task.task_id) is not None, f"task id {task.task_id!r}: characters")
            owner[task.task_id] = split
        for task in tasks[:50]:
            blob = pickle.dumps(task)
            _need(pickle.loads(blob) == task, f"task {task.task_id!r} survives pickling")
            _need(len(blob) <= MAX_PAYLOAD_BYTES, f"task {task.task_id!r} is small: {len(blob)} > {MAX_PAYLOAD_BYTES}")
            _need(_survives_json(dict(task.payload)), f"task {task.task_id!r}: its payload survives JSON")
    try:
        adapter.tasks("no such split")
    except EnvironmentFault:
        return
    raise ContractBroken("tasks() of an unknown split raises EnvironmentFault")


def _survives_json(payload: dict[str, Any]) -> bool:
    try:
        return json.loads(json.dumps(payload, allow_nan=False)) == payload
    except (TypeError, ValueError):
        return False


def _first_action(environment: Environment, observation: Observation) -> str | None:
    expert = environment.expert_action()
    if expert is not None:
        return expert
    listed = observation.admissible_actions
    return listed[0] if listed else None


def _episode(adapter: Adapter, environment: Environment, task: Task, turns: int) -> Iterator[Any]:
    """The reset observation, then each step's result, playing the expert's or the first listed action."""
    observation = environment.reset(task)
    yield observation
    for _ in range(turns):
        action = _first_action(environment, observation)
        if action is None:
            return
        result = environment.step(adapter.response(action))
        yield result
        if result.terminated:
            return
        observation = result.observation


def _check_determinism(adapter: Adapter, environment: Environment, task: Task, turns: int) -> None:
    first = list(_episode(adapter, environment, task, turns))
    again = list(_episode(adapter, environment, task, turns))
    _need(first == again, f"task {task.task_id!r} plays the same way twice")
    goals = {item.goal if isinstance(item, Observation) else item.observation.goal for item in first}
    _need(len(goals) == 1 and all(goals), f"task {task.task_id!r} has one goal, the same at every turn: {goals}")


def _check_invalid(adapter: Adapter, environment: Environment, task: Task) -> None:
    before = environment.reset(task)
    for text in HOSTILE:
        result = environment.step(text)
        where = f"task {task.task_id!r}, response {text[:40]!r}"
        _need(isinstance(result, StepResult) and not result.valid, f"{where}: counted as invalid")
        _need(result.action == "" and result.reward == 0 and not result.terminated, f"{where}: does nothing")
        _need(result.observation.admissible_actions == before.admissible_actions, f"{where}: changes nothing")


def _play_expert(adapter: Adapter, environment: Environment, task: Task, turns: int) -> tuple[bool, bool, int]:
    """(won, whether an expert is offered, turns played); checks prompts and the end of the episode on the way."""
    observation, history = environment.reset(task), []
    offered = environment.expert_action() is not None
    for turn in range(turns):
        prompt = adapter.prompt(observation, tuple(history), turn)
        _need(isinstance(prompt, str) and prompt.strip() != "", f"task {task.task_id!r}, turn {turn}: a prompt")
        _need(prompt == adapter.prompt(observation, tuple(history), turn), "prompt() is pure")
        shorter = adapter.prompt(observation, tuple(history[-1:]), turn)
        _need(len(shorter) <= len(prompt), "prompt() with less history is no longer")
        action = _first_action(environment, observation)
        if action is None:
            return False, offered, turn
        result = environment.step(adapter.response(action))
        _need(result.valid and result.action == action, f"response({action!r}) parses back: {result.action!r}")
        _need(0.0 <= result.score <= 1.0, f"score in [0, 1]: {result.score}")
        _need(result.terminated or not result.success, "success comes with the end of the episode")
        history.append(PastTurn(observation.text, result.action))
        observation = result.observation
        if result.terminated:
            _check_refused(adapter, environment, task, action)
            return result.success, offered, turn + 1
    return False, offered, turns


def _check_refused(adapter: Adapter, environment: Environment, task: Task, action: str) -> None:
    for response in (adapter.response(action), "no action at all"):
        try:
            environment.step(response)
        except EnvironmentFault:
            continue
        raise ContractBroken(f"task {task.task_id!r}: a step after the end raises EnvironmentFault")


def _check_slot_replays(adapter: Adapter, environment: Environment, splits: list[str]) -> None:
    """One slot plays many tasks, also after an episode that was left in the middle."""
    tasks = [task for split in splits for task in list(adapter.tasks(split))[:8]]
    opening = {}
    for task in tasks:
        observation = environment.reset(task)
        opening[task.task_id] = observation
        action = _first_action(environment, observation)
        if action is not None:
            environment.step(adapter.response(action))
    for task in reversed(tasks):
        _need(environment.reset(task) == opening[task.task_id], f"task {task.task_id!r} starts the same after others")
