"""A table of episodes: filtered, sorted, as a table, jsonl or csv. Streams the shards, whatever their size.

value_drop is the largest fall of V from one turn to the next, drop_turn the turn before it (turns count from 0);
surprise is the discounted return that came minus V of turn 0. Both need the targets of the iteration.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from itertools import islice

from rich import box
from rich.console import Console
from rich.table import Table

from pipeline.config import did_you_mean
from pipeline.inspect.choosing import add_place_arguments, chosen_episodes
from pipeline.inspect.reading import Episode, Run
from pipeline.inspect.terminal import number, printable
from pipeline.run_directory import RunError
from runtime.records import STATUSES, Trajectory

TABLE_LIMIT = 40  # rows of a table where no --limit is given; jsonl and csv have no limit


@dataclass(frozen=True, slots=True)
class Summary:
    """One episode in numbers: a row of the table."""

    iteration: int
    task_id: str
    sample: int
    split: str
    task_type: str
    status: str
    success: bool
    score: float
    turns: int
    return_: float  # undiscounted sum of what the environment paid
    invalid: int  # turns without a valid action
    response_tokens: int
    first_value: float | None  # V of turn 0, reward units
    value_drop: float | None
    drop_turn: int | None
    surprise: float | None
    seconds: float  # of generation and environment


SORTABLE = [field.name.rstrip("_") for field in fields(Summary)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_place_arguments(parser)
    parser.add_argument("--failed", action="store_true", help="episodes without success (errors left out)")
    parser.add_argument("--succeeded", action="store_true", help="episodes with success")
    parser.add_argument("--status", choices=STATUSES, help="how the episode ended")
    parser.add_argument("--task-type", metavar="WORD", help="task types that have WORD in their name")
    parser.add_argument("--task", metavar="WORD", help="task ids that have WORD in them")
    parser.add_argument("--invalid", action="store_true", help="episodes with an invalid action")
    for name, what in (("turns", "turns"), ("return", "sum of the rewards")):
        parser.add_argument(f"--min-{name}", type=float, metavar="X", help=f"smallest {what}")
        parser.add_argument(f"--max-{name}", type=float, metavar="X", help=f"largest {what}")
    parser.add_argument("--text", metavar="WORDS", help="goal, observations, responses or error hold WORDS (any case)")
    parser.add_argument("--sort", metavar="FIELD", help=f"largest first: {', '.join(SORTABLE)}")
    parser.add_argument("--reverse", action="store_true", help="smallest first")
    parser.add_argument("--limit", type=int, metavar="N", help=f"rows; a table has {TABLE_LIMIT}, 0: all")
    parser.add_argument("--format", choices=("table", "jsonl", "csv"), default="table", help="what to print")


def run(opened: Run, arguments: argparse.Namespace, console: Console) -> int:
    """Print the episodes that pass the filters."""
    field = _sort_field(arguments.sort) if arguments.sort else None
    wanted = make_filter(arguments)
    gamma, scale = opened.setting("advantage", "gamma"), opened.setting("env", "success_reward_scale")
    gamma, scale = 1.0 if gamma is None else float(gamma), 1.0 if scale is None else float(scale)
    seen = _Seen()
    rows = (summarise(one, gamma, scale) for one in seen.count(chosen_episodes(opened, arguments)) if wanted(one))
    limit = arguments.limit if arguments.limit is not None else TABLE_LIMIT * (arguments.format == "table")
    kept = _ordered(rows, field, arguments.reverse, limit)
    if arguments.format == "table":
        found = list(kept)
        seen.check_task_type(arguments.task_type)
        _print_table(found, seen.number, console)
    else:
        {"jsonl": _print_jsonl, "csv": _print_csv}[arguments.format](kept)
        seen.check_task_type(arguments.task_type)
    return 0


class _Seen:
    """How many episodes went by, and which types of tasks."""

    def __init__(self) -> None:
        self.number = 0
        self.task_types: set[str] = set()

    def count(self, episodes: Iterable[Episode]) -> Iterator[Episode]:
        for episode in episodes:
            self.number += 1
            self.task_types.add(episode.trajectory.task_type)
            yield episode

    def check_task_type(self, word: str | None) -> None:
        if word and self.number and not any(word in kind for kind in self.task_types):
            raise RunError(f"--task-type {word}: no such type here; there are {', '.join(sorted(self.task_types))}")


def _sort_field(name: str) -> str:
    if name not in SORTABLE:
        raise RunError(f"--sort {name}: no such field{did_you_mean(name, SORTABLE)}; there are {', '.join(SORTABLE)}")
    return "return_" if name == "return" else name


def make_filter(arguments: argparse.Namespace) -> Callable[[Episode], bool]:
    """The flags as one test, the cheap parts first."""
    tests: list[Callable[[Trajectory], bool]] = []
    if arguments.failed:
        tests.append(lambda one: not one.success and one.status != "error")
    if arguments.succeeded:
        tests.append(lambda one: one.success)
    if arguments.status:
        tests.append(lambda one: one.status == arguments.status)
    if arguments.task_type:
        tests.append(lambda one: arguments.task_type in one.task_type)
    if arguments.task:
        tests.append(lambda one: arguments.task in one.task_id)
    if arguments.invalid:
        tests.append(lambda one: any(not turn.valid for turn in one.turns))
    for bound, value in (("turns", lambda one: len(one.turns)), ("return", lambda one: one.return_undiscounted)):
        low, high = getattr(arguments, f"min_{bound}"), getattr(arguments, f"max_{bound}")
        if low is not None:
            tests.append(lambda one, value=value, low=low: value(one) >= low)
        if high is not None:
            tests.append(lambda one, value=value, high=high: value(one) <= high)
    if arguments.text:
        words = arguments.text.lower()
        tests.append(lambda one: any(words in text.lower() for text in _texts(one)))
    return lambda episode: all(test(episode.trajectory) for test in tests)


def _texts(one: Trajectory) -> Iterator[str]:
    yield one.goal
    yield one.error or ""
    for turn in one.turns:
        yield turn.observation
        yield turn.response


def summarise(episode: Episode, gamma: float, reward_scale: float) -> Summary:
    """One episode in numbers.

    Example: V of 4, 3, 5, 1 falls by 1 after turn 0 and by 4 after turn 2: value_drop 4, drop_turn 2.
    """
    one, targets = episode.trajectory, episode.targets
    drop = drop_turn = surprise = first = None
    if targets is not None and targets.values:
        first = targets.values[0]
        falls = [before - after for before, after in zip(targets.values, targets.values[1:], strict=False)]
        if falls:
            drop = max(falls)
            drop_turn = falls.index(drop)
        surprise = sum(gamma**t * turn.reward * reward_scale for t, turn in enumerate(one.turns)) - first
    return Summary(
        iteration=one.iteration,
        task_id=one.task_id,
        sample=one.sample,
        split=one.split,
        task_type=one.task_type,
        status=one.status,
        success=one.success,
        score=one.score,
        turns=len(one.turns),
        return_=one.return_undiscounted,
        invalid=sum(not turn.valid for turn in one.turns),
        response_tokens=sum(len(turn.response_ids) for turn in one.turns),
        first_value=first,
        value_drop=drop,
        drop_turn=drop_turn,
        surprise=surprise,
        seconds=sum(turn.generation_s + turn.environment_s for turn in one.turns),
    )


def _ordered(rows: Iterable[Summary], field: str | None, reverse: bool, limit: int) -> Iterable[Summary]:
    """The first `limit` rows (0: all), sorted; rows without the field's number come last."""
    if field is None:
        return islice(rows, limit or None)
    present, absent = [], []

    def with_number() -> Iterator[Summary]:
        for row in rows:
            if getattr(row, field) is not None:
                yield row
            elif not limit or len(absent) < limit:
                absent.append(row)

    def key(row: Summary) -> tuple:
        return getattr(row, field), row.iteration, row.task_id

    if limit:
        present = (heapq.nsmallest if reverse else heapq.nlargest)(limit, with_number(), key=key)
    else:
        present = sorted(with_number(), key=key, reverse=not reverse)
    return (present + absent)[: limit or None]


def _print_table(rows: list[Summary], num_seen: int, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("episode", overflow="fold")
    table.add_column("type", overflow="fold")
    table.add_column("end")
    for name in ("won", "turns", "return", "invalid", "V0", "drop", "at", "surprise"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        key = f"{row.task_id}#{row.sample}" if row.sample else row.task_id
        table.add_row(
            printable(f"{row.iteration}:{key}", 200), printable(row.task_type, 80), row.status,
            "yes" if row.success else "no", str(row.turns), number(row.return_), str(row.invalid),
            number(row.first_value), number(row.value_drop), "-" if row.drop_turn is None else str(row.drop_turn),
            number(row.surprise, sign=True), style="" if row.success else "dim" if row.status == "error" else "yellow",
        )  # fmt: skip
    console.print(table)
    console.print(f"{len(rows)} shown of {num_seen} read")


def _as_dict(row: Summary) -> dict[str, object]:
    return {name.rstrip("_"): value for name, value in asdict(row).items()}


def _print_jsonl(rows: Iterable[Summary]) -> None:
    for row in rows:
        sys.stdout.write(json.dumps(_as_dict(row)) + "\n")  # ASCII: what is in it cannot act on a terminal


def _print_csv(rows: Iterable[Summary]) -> None:
    writer = csv.DictWriter(sys.stdout, SORTABLE, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: printable(v) if isinstance(v, str) else v for key, v in _as_dict(row).items()})
