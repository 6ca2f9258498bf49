"""Text and small pictures for a terminal. What a model or an environment wrote is data: it never reaches the terminal
as a control character, and nothing in it is markup."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence

from rich.console import Console

BLOCKS = " ▁▂▃▄▅▆▇█"
PLAIN_WIDTH = 200  # columns where the output is no terminal


def make_console(error: bool = False) -> Console:
    """Where a command prints. Colours on a terminal only; in a pipe lines are wide and nothing is decorated."""
    stream = sys.stderr if error else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows ? for a block
    width = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def printable(text: str, limit: int = 0, lines: bool = False) -> str:
    """Text that a terminal shows and does not obey: control characters, direction marks and the like become escapes.

    Args:
        limit: longest result before a note of what is left out; 0: none.
        lines: keep line breaks; otherwise they become a blank.

    Example: printable("a\\x1b[31mb\\u202e") is the 15 characters a\\x1b[31mb\\u202e
    """
    shown = text[:limit] if limit else text
    if lines:
        shown = "\n".join(_escaped(line) for line in shown.split("\n"))
    else:
        shown = _escaped(shown.replace("\n", " "))
    return f"{shown}… ({len(text):,} characters)" if 0 < limit < len(text) else shown


def _escaped(line: str) -> str:
    return line if line.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in line)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def sparkline(values: Sequence[float | None], low: float, high: float) -> str:
    """One character a value, an eighth of the height each step. Example: sparkline([0, 0.5, 1], 0, 1) is `▁▄█`."""
    return "".join(" " if v is None else BLOCKS[max(1, min(8, _eighths(v, low, high, 1)))] for v in values)


def chart(values: Sequence[float], low: float, high: float, width: int, height: int) -> list[str]:
    """A filled curve as lines of text, the highest first; of more values than columns each column shows a mean."""
    columns = min(width, len(values))
    edges = [len(values) * column // columns for column in range(columns + 1)] if columns else [0]
    means = [sum(values[a:b]) / (b - a) for a, b in zip(edges, edges[1:], strict=False)]
    rows = []
    for row in reversed(range(height)):
        rows.append("".join(BLOCKS[max(0, min(8, _eighths(v, low, high, height) - 8 * row))] for v in means))
    if rows:  # a value of 0 is seen too
        rows[-1] = rows[-1].replace(" ", BLOCKS[1])
    return rows


def _eighths(value: float, low: float, high: float, height: int) -> int:
    share = (value - low) / (high - low) if high > low and math.isfinite(value) else 0.0
    return round(8 * height * min(1.0, max(0.0, share)))


def number(value: float | None, digits: int = 2, sign: bool = False) -> str:
    """A number for a column; `-` where there is none. Example: number(0.5) is `0.50`."""
    if value is None:
        return "-"
    return f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"


def size(num_bytes: float) -> str:
    """Example: size(3_500_000) is `3.3 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024 or unit == "GiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
