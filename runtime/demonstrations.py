"""Expert episodes: played by worker processes, kept as demonstrations.jsonl, turned into training rows."""

from __future__ import annotations

import json
import os
import pickle
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np

from env_adapters.base import Observation, PastTurn, Task
from runtime.files import atomic_write_text
from runtime.prompts import Prompt, PromptRenderer, PromptTooLong
from runtime.records import RecordError, Row, Turn
from runtime.rows import rows_of_turns
from runtime.seeding import permutation
from runtime.shards import read_jsonl

ROOT = Path(__file__).resolve().parents[1]


class DemonstrationError(Exception):
    """There are no demonstrations to learn from. The message names object, fact and remedy."""


@dataclass(frozen=True)
class Demonstration:
    """An episode that the expert won.

    Example: Demonstration(task_id="warm_start/heat-000017", goal="put a hot mug in cabinet.",
        observations=(Observation(...), Observation(...)), actions=("go to cabinet 1", "take mug 1"),
        imitated=(True, True))
    """

    task_id: str
    goal: str
    observations: tuple[Observation, ...]  # one a turn
    actions: tuple[str, ...]  # one a turn
    imitated: tuple[bool, ...]  # one a turn; False: an error that the demonstrator was made to play


@dataclass(frozen=True)
class DemonstrationRows:
    """Rows of demonstrations, and how many turns did not fit the token limits."""

    rows: tuple[Row, ...]
    num_too_long: int


def play_demonstrations(
    name: str,
    options: Mapping[str, Any],
    tasks: Sequence[Task],
    max_turns: int,
    workers: int,
    timeout_s: float,
    played: Callable[[], None],
    error_rate: float = 0.0,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Have the expert play every task; one record a task, in the order of `tasks`.

    Args:
        name, options: as for env_adapters.registry.make_adapter.
        workers: processes.
        timeout_s: longest silence of all workers together.
        played: called after each episode.
        error_rate, seed: as for demonstration_worker.play_expert.

    Raises:
        DemonstrationError: a worker died or is silent for too long.
    """
    shares = [list(tasks[start::workers]) for start in range(min(workers, len(tasks)))]
    processes = [_start((name, dict(options), share, max_turns, error_rate, seed)) for share in shares]
    records: dict[str, dict[str, Any]] = {}
    try:
        for line in _lines(processes, timeout_s):
            record = json.loads(line)
            records[record["task_id"]] = record
            played()
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()
    missing = [task.task_id for task in tasks if task.task_id not in records]
    if missing:
        raise DemonstrationError(
            f"{name}: the expert's process ended before {len(missing)} of {len(tasks)} episodes, first {missing[0]}; "
            "see its message above and start again"
        )
    return [records[task.task_id] for task in tasks]


def _start(work: tuple) -> subprocess.Popen:
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "runtime.demonstration_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    with suppress(BrokenPipeError):  # it has died: noticed when its episodes are missing
        imports = [entry or os.getcwd() for entry in sys.path]
        pickle.dump((imports, *work), process.stdin)
        process.stdin.close()
    return process


def _lines(processes: Sequence[subprocess.Popen], timeout_s: float) -> Iterator[bytes]:
    """Whole lines of all processes' output, until the last of them has closed it."""
    tails: dict[int, bytes] = {}
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.stdout, selectors.EVENT_READ)
        while selector.get_map():
            events = selector.select(timeout_s)
            if not events:
                raise DemonstrationError(f"the expert's processes said nothing for {timeout_s:g} s; start again")
            for key, _ in events:
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                    continue
                *lines, tails[key.fd] = (tails.get(key.fd, b"") + chunk).split(b"\n")
                yield from lines


def write_demonstrations(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """One JSON line a record; the file is whole or absent."""
    atomic_write_text(path, "".join(json.dumps(record) + "\n" for record in records))


def read_demonstrations(path: Path) -> list[Demonstration]:
    """The episodes that were won, in the order of the file.

    Raises:
        RecordError: a line of the wrong shape.
        DemonstrationError: none was won.
    """
    records, _ = read_jsonl(path)
    won = [_demonstration(data, where) for where, data in records if isinstance(data, dict) and data.get("success")]
    if not won:
        errors = [data["error"] for _, data in records if isinstance(data, dict) and "error" in data]
        raise DemonstrationError(
            f"{path}: of {len(records)} expert episodes none was won"
            + (f" (the first error: {str(errors[0]).strip().splitlines()[-1:]})" if errors else "")
            + "; raise env.max_turns or check the environment"
        )
    return won


class _ShownTurn(TypedDict):
    observation: str
    admissible_actions: list[str] | None
    action: str
    imitated: bool


class _Shown(TypedDict):
    task_id: str
    goal: str
    success: bool
    turns: Annotated[list[_ShownTurn], msgspec.Meta(min_length=1)]


def _demonstration(data: Mapping[str, Any], where: str) -> Demonstration:
    try:
        turns = msgspec.convert(data, _Shown)["turns"]
        observations = tuple(
            Observation(
                goal=data["goal"],
                text=turn["observation"],
                admissible_actions=None if turn["admissible_actions"] is None else tuple(turn["admissible_actions"]),
            )
            for turn in turns
        )
        actions, imitated = (tuple(turn[name] for turn in turns) for name in ("action", "imitated"))
        return Demonstration(data["task_id"], data["goal"], observations, actions, imitated)
    except (msgspec.ValidationError, UnicodeEncodeError) as fault:  # the latter for half a surrogate pair
        raise RecordError(f"{where}: not a demonstration ({fault}); delete the file to play them again") from fault


def demonstration_rows(
    demonstrations: Sequence[Demonstration], renderer: PromptRenderer, eos_id: int, response_tokens: int
) -> DemonstrationRows:
    """Rows of the imitated turns: the prompts that a rollout would show, the responses with their end-of-turn token.

    Args:
        renderer: the one that rollouts use.
        eos_id: ends every response.
        response_tokens: longest response, end-of-turn token included.
    """
    rows, num_too_long = [], 0
    for one in demonstrations:
        turns, imitated = _as_turns(one, renderer, eos_id)
        fits = [bool(turn.prompt_ids) and len(turn.response_ids) <= response_tokens for turn in turns]
        fits += [False] * (len(imitated) - len(turns))
        num_too_long += sum(good and not fit for good, fit in zip(imitated, fits, strict=True))
        rows += _learned(rows_of_turns(one.task_id, turns), [a and b for a, b in zip(imitated, fits, strict=True)])
    return DemonstrationRows(tuple(rows), num_too_long)


def _as_turns(one: Demonstration, renderer: PromptRenderer, eos_id: int) -> tuple[list[Turn], list[bool]]:
    """The turns as a rollout would record them, and which are imitated.

    A prompt that is too long is left empty, and ends a transcript.
    """
    turns: list[Turn] = []
    history: list[PastTurn] = []
    for observation, action in zip(one.observations, one.actions, strict=True):
        response = renderer.adapter.response(action)
        response_ids = (*renderer.tokenizer.encode(response, add_special_tokens=False), eos_id)
        try:
            prompt = renderer.next_prompt(observation, history, turns)
        except PromptTooLong:
            if renderer.transcript:
                break
            prompt = Prompt((), False)
        history.append(PastTurn(observation.text, action))
        turns.append(
            Turn(
                observation=observation.text,
                admissible_actions=observation.admissible_actions,
                prompt_ids=prompt.ids,
                response=response,
                response_ids=response_ids,
                sampling_logprobs=(0.0,) * len(response_ids),
                action=action,
                valid=True,
                reward=0.0,
                generation_s=0.0,
                environment_s=0.0,
                continues=prompt.continues,
            )
        )
    return turns, list(one.imitated)


def _learned(rows: Sequence[Row], wanted: Sequence[bool]) -> Iterator[Row]:
    """The rows with the spans of the wanted turns only, cut behind the last of them; none where there is none."""
    for row in rows:
        spans = tuple(span for turn, span in enumerate(row.spans, row.turn_index) if wanted[turn])
        if spans:
            yield replace(row, input_ids=row.input_ids[: spans[-1][1]], spans=spans)


def interchangeable_ids(tokenizer: Any, groups: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Token ids of each group's words, int64; words that are not one token of their own are left out."""
    found = []
    for group in groups:
        encoded = [tokenizer.encode(word, add_special_tokens=False) for word in group]
        found.append(np.unique(np.array([ids[0] for ids in encoded if len(ids) == 1], dtype=np.int64)))
    return found


def rename_words(row: Row, groups: Sequence[np.ndarray], run_seed: int, epoch: int) -> Row:
    """The row with the words of each group renamed at random, the same word the same way all over the row.

    Shows the model that a response copies its words from the prompt, whatever they are.
    """
    ids = np.array(row.input_ids, dtype=np.int64)
    renamed = ids.copy()
    for number, group in enumerate(groups):
        order = permutation(run_seed, "words", epoch, row.key, row.turn_index, number, n=len(group))
        for old, new in zip(group, group[order], strict=True):
            renamed[ids == old] = new
    return Row(row.key, row.turn_index, input_ids=tuple(renamed.tolist()), spans=row.spans)
