"""Which episodes of a run are meant: the flags --iteration and --evaluation, and addresses such as 12:task-00031."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator

from pipeline.inspect.reading import Episode, Run
from pipeline.run_directory import RunError

EVALUATION = "e"  # e10:task is the task's episode in evaluation 10, 10:task its rollout in iteration 10
NAMES_SHOWN = 5


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """--iteration and --evaluation."""
    parser.add_argument("--iteration", metavar="N", help="12, 3-7 or all; default: the newest that has rollouts")
    parser.add_argument("--evaluation", metavar="N", help="episodes of evaluations instead: 10, 0-100 or all")
    parser.add_argument("--split", help="episodes of this split only, such as unseen")


def chosen_episodes(run: Run, arguments: argparse.Namespace) -> Iterator[Episode]:
    """The episodes that the flags name, one after another.

    Raises:
        RunError: there is no such iteration; names those that are near.
    """
    if arguments.evaluation is not None and arguments.iteration is not None:
        raise RunError("--iteration and --evaluation: give one of them")
    if arguments.evaluation is not None:
        numbers = parse_numbers(arguments.evaluation, run.evaluation_numbers(), "evaluation")
        sources = (run.evaluation_episodes(number) for number in numbers)
    else:
        available = run.iterations()
        if not available:
            raise RunError(f"{run.paths.root}: no rollouts in it yet; see its evaluations with --evaluation all")
        numbers = parse_numbers(arguments.iteration or str(available[-1]), available, "iteration")
        sources = (run.trajectories(number) for number in numbers)
    for source in sources:
        for episode in source:
            if arguments.split in (None, episode.trajectory.split):
                yield episode


def parse_numbers(text: str, available: list[int], what: str) -> list[int]:
    """ "12", "3-7" or "all" -> those of `available` that it names.

    Raises:
        RunError: not of this form, or none is there.
    """
    if text == "all" and available:
        return available
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise RunError(f"--{what} {text}: must be a number, a range such as 3-7, or all")
    low, high = int(first), int(last or first)
    found = [number for number in available if low <= number <= high]
    if not found:
        near = sorted(sorted(available, key=lambda number: abs(number - low))[:NAMES_SHOWN])
        there = f"near are {', '.join(map(str, near))}" if near else "there is none yet"
        raise RunError(f"{what} {text}: not in this run; {there}")
    return found


def find_episode(run: Run, address: str) -> Episode:
    """The episode behind an address ITERATION:TASK; a part of the task id will do where it fits one task only.

    TASK#2 is sample 2 of the task, where it was played several times; without a number it is the first.

    Raises:
        RunError: not an address, no such iteration, no such task (names those that are near), or several fit.
    """
    place, colon, task = address.partition(":")
    evaluated = place.startswith(EVALUATION)
    if not colon or not task or not place.removeprefix(EVALUATION).isdecimal():
        raise RunError(f"{address}: must be ITERATION:TASK such as 12:task-00031, or e10:TASK for evaluation 10")
    available = run.evaluation_numbers() if evaluated else run.iterations()
    what = "evaluation" if evaluated else "iteration"
    (number,) = parse_numbers(place.removeprefix(EVALUATION), available, what)
    episodes = run.evaluation_episodes if evaluated else run.trajectories
    names: dict[str, None] = {}
    parts: list[Episode] = []
    for episode in episodes(number):
        one = episode.trajectory
        if task in (one.task_id, one.key):
            return episode
        names[one.task_id] = None
        if task in one.task_id and one.task_id not in (part.trajectory.task_id for part in parts):
            parts.append(episode)
    if "#" in task and not evaluated:
        for episode in run.baselines(number):
            if task == episode.trajectory.key:
                return episode
    if len(parts) == 1:
        return parts[0]
    if parts:
        some = [part.trajectory.task_id for part in parts[:NAMES_SHOWN]]
        raise RunError(f"{address}: fits {len(parts)} tasks ({', '.join(some)}, …); give more of the id")
    near = difflib.get_close_matches(task, names, n=3, cutoff=0.3) or list(names)[:3]
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise RunError(f"{address}: no such task among the {len(names)} of {what} {number}{hint}")
