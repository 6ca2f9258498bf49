"""Play recorded responses on the real environment again, and compare what it says and pays with the record.

Finds drift between data and engine versions. The environment must be installed and its data be there. The exit code is
0 where everything is as recorded, 1 otherwise.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from env_adapters.base import Adapter, Environment, EnvironmentFault, Observation, StepResult, Task
from env_adapters.registry import make_adapter
from pipeline.inspect.choosing import find_episode
from pipeline.inspect.reading import Run
from pipeline.inspect.terminal import printable
from pipeline.run_directory import RunError
from runtime.progress import Progress, ProgressReport
from runtime.records import Trajectory, Turn

TEXT_LIMIT = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("addresses", nargs="+", metavar="ADDRESS", help="12:task-00031, or e10:… for an evaluation's")


def run(opened: Run, arguments: argparse.Namespace, console: Console) -> int:
    """Replay each episode; one line a difference."""
    episodes = [find_episode(opened, address).trajectory for address in arguments.addresses]
    adapter = _adapter(opened)
    environment = _environment(adapter)
    differing = 0
    try:
        for address, one in zip(arguments.addresses, episodes, strict=True):
            differences = list(replay(one, task_of(one, adapter), environment))
            differing += bool(differences)
            state = f"{len(differences)} differences" if differences else f"as recorded, {len(one.turns)} turns"
            place = address.partition(":")[0]
            console.print(printable(f"{place}:{one.task_id}: {state}"), soft_wrap=True)
            for line in differences:
                console.print(printable(f"  {line}"), soft_wrap=True)
    finally:
        environment.close()
    return 1 if differing else 0


def _adapter(opened: Run) -> Adapter:
    name, options = opened.setting("env", "name"), opened.setting("env", "options")
    if not isinstance(name, str):
        raise RunError(f"{opened.paths.config}: env.name is missing; it says which environment to replay on")
    adapter = make_adapter(name, options or {})
    report = ProgressReport(Progress(True))
    adapter.prepare(report)
    report.close()
    return adapter


def _environment(adapter: Adapter) -> Environment:
    try:
        return adapter.make()
    except ImportError as fault:
        raise EnvironmentFault(
            f"environment {adapter.name}: cannot be started ({fault}); install its packages"
        ) from None


def task_of(one: Trajectory, adapter: Adapter) -> Task:
    """The task as the environment was given it: its payload is in the record, or else in the adapter's list.

    Raises:
        EnvironmentFault: neither has it.
    """
    if one.task:
        return Task(one.task_id, one.split, one.task_type, dict(one.task))
    for task in adapter.tasks(one.split):
        if task.task_id == one.task_id:
            return task
    raise EnvironmentFault(f"task {one.task_id}: not among the environment's; replay with the data it was played on")


def replay(one: Trajectory, task: Task, environment: Environment) -> Iterator[str]:
    """Play the responses of an episode; yields what differs from the record, turn by turn.

    An environment that ends an episode earlier than the record is asked nothing more.
    """
    shown = environment.reset(task)
    yield from _compare("goal", one.goal, shown.goal)
    for index, turn in enumerate(one.turns):
        yield from (f"turn {index}: {line}" for line in _compare_observation(turn, shown))
        result = environment.step(turn.response)
        yield from (f"turn {index}: {line}" for line in _compare_result(turn, result))
        if result.terminated and index + 1 < len(one.turns):
            yield f"turn {index}: the episode ended, the record has {len(one.turns) - index - 1} more turns"
            return
        shown = result.observation
    if one.turns and one.status != "error":
        yield from _compare("success", one.success, bool(result.success))
        yield from _compare("score", one.score, float(result.score))


def _compare_observation(turn: Turn, shown: Observation) -> Iterator[str]:
    yield from _compare("observation", turn.observation, shown.text)
    actions = None if shown.admissible_actions is None else tuple(shown.admissible_actions)
    yield from _compare("admissible actions", turn.admissible_actions, actions)


def _compare_result(turn: Turn, result: StepResult) -> Iterator[str]:
    yield from _compare("action", turn.action, result.action)
    yield from _compare("valid", turn.valid, bool(result.valid))
    yield from _compare("reward", turn.reward, float(result.reward))
    yield from _compare("terminated", turn.terminated, bool(result.terminated))


def _compare(what: str, recorded: Any, now: Any) -> Iterator[str]:
    if recorded != now:
        yield f"{what} was {_shown(recorded)}, is {_shown(now)}"


def _shown(value: Any) -> str:
    return printable(repr(value) if not isinstance(value, str) else f'"{value}"', TEXT_LIMIT)
