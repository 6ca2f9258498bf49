"""One reader of a file, what it may answer, and how its answer to a spoilt file is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.faults import LONGEST_LINE, one_line
from tests.fuzzing.mutations import mutations


@dataclass(frozen=True)
class Reader:
    """`read` is called after a spoilt form of `sample` was written to `path`.

    An answer is the name of the error it raised, LEFT_OUT where its result says that what cannot be read counts as
    absent, or TAKEN: the spoilt form is still a file of this kind.
    """

    name: str
    path: Path
    sample: bytes
    form: str  # "json", "jsonl" or "bytes", see mutations.mutations
    read: Callable[[], Any]
    errors: tuple[type[Exception], ...] = ()
    left_out: Callable[[Any], bool] = lambda result: False
    count: int = 120


LEFT_OUT = "left out"
TAKEN = "still well-formed"


class Undocumented(AssertionError):
    """A reader answered otherwise than it says."""


def answer(reader: Reader, kind: str, content: bytes) -> str:
    """What a reader says to a spoilt file.

    Raises:
        Undocumented: another exception than the documented ones, or a message that is no line of object, fact, remedy.
    """
    reader.path.write_bytes(content)
    try:
        result = reader.read()
    except reader.errors as fault:
        message = one_line(fault)  # what a user is told
        if message is None or not is_one_line(message):
            raise Undocumented(f"{reader.name}, {kind}: not one line of object, fact, remedy: {message!r}") from fault
        return type(fault).__name__
    except Exception as fault:
        raise Undocumented(f"{reader.name}, {kind}: {type(fault).__name__}: {str(fault)[:300]}") from fault
    return LEFT_OUT if reader.left_out(result) else TAKEN


def is_one_line(message: str) -> bool:
    """Whether a message is one printable line with an object, a fact and a remedy (or what is allowed)."""
    has_remedy = "; " in message or "must be" in message
    return message.isprintable() and len(message) <= LONGEST_LINE + 5 and has_remedy


def answers(reader: Reader) -> Counter[tuple[str, str]]:
    """(kind of mutation, answer) -> how many distinct spoilt forms."""
    found: Counter[tuple[str, str]] = Counter()
    for kind, content in mutations(reader.sample, reader.form, reader.name, reader.count):
        found[kind, answer(reader, kind, content)] += 1
    reader.path.write_bytes(reader.sample)
    return found
