"""Trajectories and targets on disk: JSON, one record a line, ASCII (a lone surrogate or a NUL survives as an escape).

A line is a record if and only if it ends with a newline. What a killed writer leaves behind the last newline is a
torn tail: readers skip it, the next writer cuts it off before it appends. Anything wrong before that is damage and
raises `RecordError` naming file and line.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from runtime.files import atomic_write_text, flush_to_disk
from runtime.records import RecordError, Targets, Trajectory, from_json, to_json

SHARD_PATTERN = "rank-*.jsonl"
LONGEST_LINE = 1 << 28  # bytes; a trajectory's line has some ten thousand
SYNC_SECONDS = 2.0  # how much finished work a power cut (not a kill) can cost


def shard_path(folder: Path, rank: int, prefix: str = "") -> Path:
    """The shard that `rank` appends to: <folder>/<prefix>rank-00000.jsonl."""
    return Path(folder) / f"{prefix}rank-{rank:05d}.jsonl"


@dataclass(frozen=True)
class Shards:
    """What the shards of a folder hold."""

    trajectories: tuple[Trajectory, ...]  # by task id and sample, whatever the order of finishing
    num_duplicates: int  # records whose key an earlier line had: the first that is no error counts
    num_torn: int  # shards with a torn tail


def read_shards(folder: Path, prefix: str = "") -> Shards:
    """Read every shard of a folder; a missing folder holds none. In memory are the trajectories and one line.

    Raises:
        RecordError: a line that is complete but no trajectory.
    """
    found: dict[str, Trajectory] = {}
    num_duplicates = num_torn = 0
    for path in sorted(Path(folder).glob(prefix + SHARD_PATTERN)):
        num_torn += is_torn(path)
        for where, data in stream_jsonl(path):
            trajectory = from_json(data, where)
            num_duplicates += trajectory.key in found
            if trajectory.key not in found or (found[trajectory.key].status == "error" != trajectory.status):
                found[trajectory.key] = trajectory
    ordered = sorted(found.values(), key=lambda one: (one.task_id, one.sample))
    return Shards(tuple(ordered), num_duplicates, num_torn)


def read_trajectories(folder: Path, prefix: str = "") -> list[Trajectory]:
    """The trajectories of a folder, ordered by task id and sample: independent of who finished first."""
    return list(read_shards(folder, prefix).trajectories)


def read_jsonl(path: Path) -> tuple[list[tuple[str, Any]], bool]:
    """All complete lines as ("file:line", value), and whether there is a torn tail. Raises as `stream_jsonl`."""
    return list(stream_jsonl(path)), is_torn(path)


def is_torn(path: Path) -> bool:
    """Whether there is something behind the last newline."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")


def stream_jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    """Complete lines as ("file:line", value), one at a time.

    Raises:
        RecordError: a complete line that is not UTF-8, not JSON or longer than LONGEST_LINE.
    """
    with open(path, "rb") as file:
        for number in itertools.count(1):
            line, where = file.readline(LONGEST_LINE), f"{path}:{number}"
            if len(line) == LONGEST_LINE:
                raise RecordError(f"{where}: longer than {LONGEST_LINE} bytes; delete the line to replay it")
            if not line.endswith(b"\n"):
                return
            yield where, _value_of(line[:-1], where)


def _value_of(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as fault:
        raise RecordError(
            f"{where}: not UTF-8 (byte {fault.start} of the line); delete the line to replay it"
        ) from None
    except (ValueError, RecursionError) as fault:
        raise RecordError(f"{where}: not JSON ({fault}); delete the line to replay it") from None


def to_line(data: dict[str, Any], where: str) -> bytes:
    """One record as a line of bytes. Raises RecordError for what JSON does not have, such as a NaN or an infinity."""
    try:
        return json.dumps(data, ensure_ascii=True, allow_nan=False).encode("ascii") + b"\n"
    except (TypeError, ValueError) as fault:
        raise RecordError(
            f"{where}: cannot be stored ({fault}); rewards, scores and log-probs must be finite, a task's payload JSON"
        ) from fault


class ShardWriter:
    """Appends trajectories to one shard. Opening cuts off a torn tail and locks the file against a second writer.

    Raises:
        RecordError: another process has the shard open for writing.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise RecordError(f"{self.path}: another process is writing this shard; stop it first") from None
        self.num_torn_bytes = _cut_torn_tail(self._file)
        if self._file.tell() == 0:
            flush_to_disk(self.path.parent)  # the name of a new file
        self._unsynced = self.num_torn_bytes > 0
        self._synced_at = time.monotonic()

    def append(self, trajectory: Trajectory) -> None:
        """Add one line. It outlives a kill of the process at once, a power cut after SYNC_SECONDS or `sync`."""
        self._file.write(to_line(to_json(trajectory), f"{self.path}: trajectory {trajectory.key}"))
        self._file.flush()
        self._unsynced = True
        if time.monotonic() - self._synced_at > SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Return once everything appended is on the disk."""
        if self._unsynced:
            os.fsync(self._file.fileno())
        self._unsynced = False
        self._synced_at = time.monotonic()

    def close(self) -> None:
        if not self._file.closed:
            self.sync()
            self._file.close()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cut_torn_tail(file: Any) -> int:
    """Truncate behind the last newline; how many bytes that took away."""
    size = file.seek(0, os.SEEK_END)
    end = size
    while end > 0:  # backwards in blocks: a shard can be large, its tail is short
        start = max(0, end - 65536)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    file.truncate(end)
    file.seek(0, os.SEEK_END)
    return size - end


def write_targets(path: Path, targets: Iterable[Targets]) -> None:
    """Write targets.jsonl, one line a trajectory, all or nothing."""
    lines = [to_line(_targets_to_json(one), f"{path}: targets {one.key}") for one in targets]
    atomic_write_text(path, b"".join(lines).decode("ascii"))


def read_targets(path: Path) -> list[Targets]:
    """The inverse of `write_targets`, in the order of the file.

    Raises:
        RecordError: a torn or misshapen line; this file is written whole, so it has no legitimate torn tail.
    """
    records, torn = read_jsonl(path)
    if torn:
        raise RecordError(f"{path}: the last line is torn; run compute_advantages with --recompute")
    return [_targets_from_json(data, where) for where, data in records]


def _targets_to_json(targets: Targets) -> dict[str, Any]:
    """Without what the algorithm does not have."""
    absent = {item.name: item.default for item in fields(Targets)}
    return {name: value for name, value in vars(targets).items() if value != absent[name]}


def _targets_from_json(data: Any, where: str) -> Targets:
    try:
        numbers = {name: tuple(map(_finite, x)) for name, x in data.items() if name not in ("key", "weight")}
        targets = Targets(key=data["key"], weight=_finite(data.get("weight", 1.0)), **numbers)
        _ = data["raw_advantages"], data["advantages"]  # every algorithm has them
        if type(data["key"]) is not str:
            raise TypeError("key is no text")
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as fault:
        raise RecordError(f"{where}: not targets ({fault}); run compute_advantages with --recompute") from fault
    for of_tokens in (False, True):
        series = {len(x) for name, x in numbers.items() if name.startswith("token_") == of_tokens}
        if len(series) > 1:
            raise RecordError(f"{where}: series of different length; run compute_advantages with --recompute")
    return targets


def _finite(value: Any) -> float:
    if type(value) not in (float, int) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:40]!r} is no finite number")
    return float(value)
