"""`python -m tests.fuzzing`: how every reader answers to spoilt files, as the tables of docs/reliability.md."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.fuzzing.environment_readers import environment_readers
from tests.fuzzing.reader import LEFT_OUT, TAKEN, answers
from tests.fuzzing.run_readers import run_readers


def main() -> None:
    """Print the tables; ends with an error where a reader answers otherwise than it says."""
    total: Counter[str] = Counter()
    kinds: dict[str, Counter[str]] = {}
    rows = ["| reader | spoilt files | refused | left out | still well-formed |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars of what makes the samples
            readers = [*run_readers(Path(folder) / "run"), *environment_readers(Path(folder) / "environments")]
        for reader in readers:
            found: Counter[str] = Counter()
            for (kind, answer), count in answers(reader).items():
                found[answer] += count
                kinds.setdefault(kind.removeprefix("root is "), Counter())[answer] += count
            total += found
            rows.append(_row(reader.name, found))
            print(reader.name, file=sys.stderr)
    print("\n".join([*rows, _row("**all**", total)]))
    print("\n| way of spoiling | files | refused or left out |\n|---|---|---|")
    for kind, found in sorted(kinds.items(), key=lambda item: -item[1].total()):
        print(f"| {kind} | {found.total()} | {found.total() - found[TAKEN]} |")


def _row(name: str, found: Counter[str]) -> str:
    refusals = {answer: count for answer, count in found.items() if answer not in (LEFT_OUT, TAKEN)}
    refused = ", ".join(f"{count} {answer}" for answer, count in sorted(refusals.items(), key=lambda item: -item[1]))
    return f"| {name} | {found.total()} | {refused or 0} | {found[LEFT_OUT]} | {found[TAKEN]} |"


if __name__ == "__main__":
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    main()
