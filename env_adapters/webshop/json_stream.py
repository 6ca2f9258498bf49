"""Reads the elements of a JSON file too large for memory, one after the other.

The standard library's decoder runs over a window of the file. (ijson is as fast and refuses NaN, which Python's json
writes for missing values and the original loader takes.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from env_adapters.base import EnvironmentFault

WINDOW = 1 << 22  # characters read at a time
LARGEST = 1 << 26  # of one element; where none is complete after so many, the file is broken rather than cut
BLANK = " \t\r\n"
BEHIND = set(BLANK + ",:]}")  # what may follow a value


def elements(
    path: Path, opening: str, remedy: str, progress: Callable[[int, int], None] | None = None
) -> Iterator[Any]:
    """The elements of a JSON array, or the (key, value) pairs of a JSON object, in order.

    Args:
        opening: "[" for an array, "{" for an object.
        remedy: what the message of a fault tells to do.
        progress: called now and then with characters read and the bytes of the file.

    Raises:
        EnvironmentFault: the file cannot be read, opens otherwise, ends early, or is no JSON at some place.
    """
    try:
        with open(path, encoding="utf-8") as file:
            yield from _Window(path, file, remedy, progress).elements(opening)
    except (OSError, UnicodeDecodeError) as error:
        raise EnvironmentFault(f"{path}: cannot be read ({error}); {remedy}") from error


class _Window:
    """A stretch of the file's text and a place in it."""

    def __init__(self, path: Path, file: TextIO, remedy: str, progress: Callable[[int, int], None] | None) -> None:
        self._path, self._file, self._remedy, self._progress = path, file, remedy, progress
        self._text, self._place, self._ended, self._read, self._count = "", 0, False, 0, 0
        self._bytes = path.stat().st_size
        self._decode = json.JSONDecoder().raw_decode

    def elements(self, opening: str) -> Iterator[Any]:
        sign = self._next_sign()
        if sign != opening:
            raise self._fault(f"starts with {sign!r} where {opening} should be" if sign else "is empty")
        closing = "]" if opening == "[" else "}"
        self._place += 1
        if self._next_sign() == closing:
            return
        while True:
            yield self._value() if opening == "[" else (self._key(), self._value())
            self._count += 1
            sign = self._next_sign()
            if sign not in (",", closing):
                raise self._fault("ends early" if not sign else f"has {sign!r} where , or {closing} should be")
            self._place += 1
            if sign == closing:
                return

    def _key(self) -> Any:
        key = self._value()
        if self._next_sign() != ":":
            raise self._fault("has no : behind a key")
        self._place += 1
        return key

    def _value(self) -> Any:
        while True:
            if self._next_sign():
                try:
                    value, end = self._decode(self._text, self._place)
                except (ValueError, RecursionError):
                    value, end = None, None
                # A number that the window cuts is a number too: what follows must be seen.
                if end is not None and (self._ended or self._text[end : end + 1] in BEHIND):
                    self._place = end
                    return value
            if self._ended:
                raise self._fault("ends early or is no JSON")
            if len(self._text) - self._place > LARGEST:
                raise self._fault("is no JSON")
            self._more()

    def _next_sign(self) -> str:
        """The next character that is not blank, without taking it; "" at the end of the file."""
        while True:
            while self._place < len(self._text):
                if self._text[self._place] not in BLANK:
                    return self._text[self._place]
                self._place += 1
            if self._ended:
                return ""
            self._more()

    def _more(self) -> None:
        # A window that grows doubles, so that a long element is not decoded again for each small piece.
        found = self._file.read(max(WINDOW, len(self._text) - self._place))
        self._text, self._place = self._text[self._place :] + found, 0
        self._ended = not found
        self._read += len(found)
        if self._progress is not None:
            self._progress(self._read, self._bytes)

    def _fault(self, what: str) -> EnvironmentFault:
        return EnvironmentFault(f"{self._path}: {what}, after {self._count} whole elements; {self._remedy}")
