"""`python -m pipeline.export_dataset runs/X --format sft`: episodes as chats, one JSON object a line, for others.

    sft         {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}, ...]}
    preference  {"prompt": [user], "chosen": [assistant, user, ...], "rejected": [assistant, user, ...]}

A chat is a successful episode: the goal and the first observation, the response as it was sampled, the next
observation, and so on. A preference is two episodes of one task, a success and a failure, from the same start. The
value tokens are in neither: they have no text, and an episode whose ids hold one is left out and counted.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.command_line import Flags
from pipeline.inspect.choosing import add_place_arguments, chosen_episodes
from pipeline.inspect.faults import FAULTS, USER_FAULT
from pipeline.inspect.reading import Run, open_run
from pipeline.inspect.terminal import printable
from runtime.files import atomic_path
from runtime.records import Trajectory
from runtime.vocabulary import read_value_tokens

Message = dict[str, str]


@dataclass
class Counts:
    """What became of the episodes."""

    read: int = 0
    written: int = 0
    with_value_tokens: int = 0  # left out: such ids are never sampled, so the data are damaged


def main(argv: list[str] | None = None) -> int:
    """Write one dataset; returns the exit code."""
    try:
        arguments = _parser().parse_args(argv)
        counts = export(open_run(arguments.run_dir), arguments)
    except FAULTS as fault:
        print(f"error: {printable(str(fault))}", file=sys.stderr)
        return USER_FAULT
    left_out = f", {counts.with_value_tokens} left out that hold a value token" if counts.with_value_tokens else ""
    print(f"{counts.written} lines from {counts.read} episodes{left_out}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Flags(
        prog="python -m pipeline.export_dataset",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run_dir", help="a run directory that `bash run.sh` made, or a copy of one")
    parser.add_argument("--format", choices=("sft", "preference"), default="sft", help="what a line holds")
    parser.add_argument("--output", type=Path, help="the file to write; default: the terminal")
    parser.add_argument("--actions", action="store_true", help="list the admissible actions below each observation")
    parser.add_argument("--valid-only", action="store_true", help="leave out episodes with an invalid action")
    add_place_arguments(parser)
    return parser


def export(run: Run, arguments: argparse.Namespace) -> Counts:
    """Stream the lines of a dataset to a file, whole or not at all, or to stdout."""
    counts = Counts()
    if arguments.iteration is None and arguments.evaluation is None:
        arguments.iteration = "all"
    lines = {"sft": chats, "preference": preferences}[arguments.format](run, arguments, counts)
    with atomic_path(arguments.output) if arguments.output else nullcontext() as path:
        with open(path, "w", encoding="ascii") if path else nullcontext(sys.stdout) as file:
            for line in lines:
                counts.written += 1
                file.write(json.dumps(line) + "\n")
    return counts


def chats(run: Run, arguments: argparse.Namespace, counts: Counts) -> Iterator[dict[str, Any]]:
    """The successful episodes."""
    for one in usable(run, arguments, counts):
        if one.success:
            yield {"messages": conversation(one, arguments.actions)}


def preferences(run: Run, arguments: argparse.Namespace, counts: Counts) -> Iterator[dict[str, Any]]:
    """One pair for each task that was both won and lost: its first success and its first failure.

    Reads the run twice, so that only half pairs of tasks that come to a pair are in memory.
    """
    outcomes: dict[str, set[bool]] = {}
    for one in usable(run, arguments, Counts()):
        outcomes.setdefault(one.task_id, set()).add(one.success)
    wanted = {task_id for task_id, seen in outcomes.items() if len(seen) == 2}
    halves: dict[str, tuple[bool, list[Message]]] = {}
    for one in usable(run, arguments, counts):
        if one.task_id not in wanted:
            continue
        success, messages = halves.setdefault(one.task_id, (one.success, conversation(one, arguments.actions)))
        if success == one.success:
            continue
        pair = {success: messages, one.success: conversation(one, arguments.actions)}
        wanted.discard(one.task_id)
        del halves[one.task_id]
        if pair[True][0] == pair[False][0]:  # an environment that starts differently each time has no pairs
            yield {"prompt": pair[True][:1], "chosen": pair[True][1:], "rejected": pair[False][1:]}


def usable(run: Run, arguments: argparse.Namespace, counts: Counts) -> Iterator[Trajectory]:
    """The episodes that the flags name, without those that ended in an error or hold a value token."""
    tokens = read_value_tokens(run.paths.model)
    value_ids = {tokens.positive_id, tokens.negative_id}
    for episode in chosen_episodes(run, arguments):
        one = episode.trajectory
        counts.read += 1
        if any(value_ids.intersection(turn.response_ids) for turn in one.turns):
            counts.with_value_tokens += 1
        elif one.status != "error" and not (arguments.valid_only and not all(turn.valid for turn in one.turns)):
            yield one


def conversation(one: Trajectory, actions: bool) -> list[Message]:
    """An episode as messages: user and assistant in turn, the assistant's last."""
    messages = []
    for index, turn in enumerate(one.turns):
        parts = [one.goal, turn.observation] if index == 0 else [turn.observation]
        if actions and turn.admissible_actions is not None:
            parts.append("Admissible actions: " + ", ".join(turn.admissible_actions))
        messages.append({"role": "user", "content": "\n\n".join(parts)})
        messages.append({"role": "assistant", "content": turn.response})
    return messages


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
