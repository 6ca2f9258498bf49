"""errors.jsonl: what went wrong in a run, in one place."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

LAST_LINES = 20  # of a traceback, or of what a process said


def append_error(
    path: str | Path,
    stage: str,
    iteration: int,
    rank: int | None,
    error: str,
    message: str,
    *,
    lines: str = "",
    stopped: bool = True,
) -> None:
    """Add one line: a failure that stopped the run or, not `stopped`, one that it went on after.

    Several ranks may add lines at once: each is one write to the end of the file. Behind what a full disk has torn it
    begins a line of its own.

    Args:
        rank: None where it is not known.
        error: kind of the failure, such as the name of the exception.
        message: what the user was told.
        lines: a traceback or an output, of which the last lines are kept.
    """
    entry = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "stage": stage,
        "iteration": iteration,
        "rank": rank,
        "stopped": stopped,
        "error": error,
        "message": message,
        "lines": lines.splitlines()[-LAST_LINES:],
    }
    with open(path, "a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        torn = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * torn + json.dumps(entry).encode("ascii") + b"\n")
