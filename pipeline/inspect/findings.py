"""What `verify` finds: a place below the run directory, and what is wrong there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pipeline.inspect.reading import Run


class Finding(NamedTuple):
    """Example: Finding("iterations/0003/rollouts/rank-00000.jsonl:17", "response_ids hold the value token 35")"""

    place: str
    fact: str


def found(run: Run, path: Path, fact: str, line: int | None = None) -> Finding:
    """A finding about a file of a run, or one line of it."""
    place = os.path.relpath(path, run.paths.root)
    return Finding(place if line is None else f"{place}:{line}", fact)


def from_message(run: Run, path: Path, message: object) -> Finding:
    """A finding out of an error message, which names the path again."""
    text = str(message)
    for prefix in (f"{path}: ", f"{path}:"):
        text = text.removeprefix(prefix)
    return found(run, path, text)


def from_damage(run: Run, line: str) -> Finding:
    """A finding out of a line of `Run.damage`, which begins with the path."""
    place, _, fact = line.removeprefix(f"{run.paths.root}{os.sep}").partition(": ")
    return Finding(place, fact)
