"""A person plays an environment in the terminal: `python -m env_adapters.webshop play`, works with every adapter.

Actions are typed as they stand in the list; `?` lists them, an empty line or `q` ends the session. At the end of the
episode the parts of the reward are shown where the environment tells them (`StepResult.info`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from env_adapters.base import Adapter, Environment, EnvironmentFault, Observation, StepResult, Task
from env_adapters.registry import make_adapter

HELP = "type an action; ? lists them, ! plays the expert's, q ends"
QUIT = ("", "q", "quit", "exit")


def main(name: str, argv: Sequence[str] | None = None) -> int:
    """The command line of `python -m env_adapters.<name>`. Returns the exit status."""
    flags = argparse.ArgumentParser(prog=f"python -m env_adapters.{name}", description=__doc__.splitlines()[0])
    flags.add_argument("command", choices=("play",))
    flags.add_argument("--split", help="one of the adapter's; the training split where it is not given")
    flags.add_argument("--task", type=int, default=0, help="number of the task in its split, from 0")
    flags.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of the adapter")
    arguments = flags.parse_args(argv)
    try:
        adapter = make_adapter(name, dict(_option(text) for text in arguments.set))
        adapter.prepare(_progress)
        tasks = adapter.tasks(arguments.split or adapter.train_split)
        if not 0 <= arguments.task < len(tasks):
            raise EnvironmentFault(f"task {arguments.task}: the split has {len(tasks)}, numbered from 0")
        environment = adapter.make()
        try:
            play(adapter, environment, tasks[arguments.task], _typed(), print)
        finally:
            environment.close()
    except EnvironmentFault as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print()
    return 0


def play(
    adapter: Adapter, environment: Environment, task: Task, typed: Iterable[str], show: Callable[[str], None]
) -> None:
    """One episode with actions from `typed`; what a person is to see goes through `show`."""
    observation, turns = environment.reset(task), 0
    show(f"{task.task_id}  ({task.task_type})\ntask: {observation.goal}\n{HELP}\n\n{observation.text}")
    for line in typed:
        action = line.strip()
        if action in QUIT:
            return
        if action == "?":
            show("\n".join(observation.admissible_actions or ["this environment lists no actions"]))
            continue
        if action == "!":
            action = environment.expert_action()
            show(f"> {action}" if action else "the expert knows no action here")
            if action is None:
                continue
        result = environment.step(adapter.response(action))
        turns += 1
        show(_outcome(result, observation))
        if result.terminated:
            show(_ending(result, turns))
            return
        observation = result.observation


def _outcome(result: StepResult, before: Observation) -> str:
    if not result.valid:
        return f"not an action here: {HELP}"
    note = "(nothing happened)\n" if result.observation == before else ""
    return f"\n{note}{result.observation.text}"


def _ending(result: StepResult, turns: int) -> str:
    won = "success" if result.success else "no success"
    parts = [f"  {name}: {value}" for name, value in result.info.items()]
    return "\n".join([f"\n{won}, reward {result.reward:g}, score {result.score:g}, turns {turns}", *parts])


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise EnvironmentFault(f"--set {text}: must be option=value, such as --set seed=1")
    return name.removeprefix("env."), value


def _typed() -> Iterator[str]:
    while True:
        try:
            yield input("> ")
        except EOFError:
            return


def _progress(done: int, total: int, what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{what}: {done}/{total}", end="" if done < total else "\n", file=sys.stderr, flush=True)
