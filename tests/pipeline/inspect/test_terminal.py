"""Text that must not act on a terminal, and small pictures."""

from __future__ import annotations

import pytest

from pipeline.inspect.terminal import chart, number, printable, size, sparkline

HOSTILE = {
    "\x1b[31mred": r"\x1b[31mred",
    "bell\x07 and \r back": r"bell\x07 and \x0d back",
    "\x9b2J": r"\x9b2J",  # the one-byte form of ESC [
    "right \u202eleft\u2069": r"right \u202eleft\u2069",
    "mark\u200f": r"mark\u200f",
    "zero\u200bwidth\ufeff": r"zero\u200bwidth\ufeff",
    "lone \ud800": r"lone \ud800",
    "tag \U000e0041": r"tag \U000e0041",
    "\u2028line": r"\u2028line",
    "nul\x00": r"nul\x00",
    "مرحبا 你好 é": "مرحبا 你好 é",
    "[bold]markup[/bold]": "[bold]markup[/bold]",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_becomes_escapes(text):
    assert printable(text) == HOSTILE[text]
    assert printable(text, lines=True) == HOSTILE[text]


def test_lines_are_kept_where_they_are_wanted():
    assert printable("a\nb\x1b", lines=True) == "a\nb\\x1b"
    assert printable("a\nb") == "a b"


def test_a_long_text_is_cut_and_says_so():
    assert printable("x" * 1_000_000, 3) == "xxx… (1,000,000 characters)"
    assert printable("\x1b" * 5, 3) == r"\x1b\x1b\x1b… (5 characters)"
    assert printable("xxx", 3) == "xxx"


def test_a_sparkline_goes_in_eighths():
    assert sparkline([0.0, 0.5, 1.0, None], 0, 1) == "▁▄█ "
    assert sparkline([3.0, 3.0], 3, 3) == "▁▁"


def test_a_chart_fills_rows_from_below():
    """Two rows are 16 eighths: 0.25 is 4, 0.5 is 8, 0.75 is 12."""
    assert chart([0.25, 0.5, 0.75, 1.0], 0, 1, 10, 2) == ["  ▄█", "▄███"]
    assert chart([0.0, 1.0, 0.5, 0.5], 0, 1, 2, 1) == ["▄▄"]  # two columns, each the mean of two
    assert chart([0.0], 0, 1, 5, 2) == [" ", "▁"]
    assert chart([], 0, 1, 5, 2) == ["", ""]


def test_numbers():
    assert (number(None), number(1.005, 1), number(0.5, sign=True)) == ("-", "1.0", "+0.50")
    assert [size(n) for n in (17, 2048, 3.5 * 2**20, 5e12)] == ["17 B", "2.0 KiB", "3.5 MiB", "4656.6 GiB"]
