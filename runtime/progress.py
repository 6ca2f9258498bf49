"""Progress on rank 0: bars with an ETA on a terminal, plain lines now and then elsewhere, silence on other ranks."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

LINE_EVERY_S = 30.0


class Bar:
    """How far one piece of work is. Use as a context manager, or call `close`.

    `before` units were done by an earlier process: they count as done, not for the speed.
    """

    def __init__(self, total: int, what: str, unit: str, before: int = 0) -> None:
        self.total = total
        self.what = what
        self.unit = unit
        self.before = self.done = before

    def update(self, amount: int = 1) -> None:
        self.done += amount

    def note(self, **facts: Any) -> None:
        """Facts to show behind the bar, such as success=0.41."""

    def close(self) -> None:
        """The work has ended, whether or not everything was done."""

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TerminalBar(Bar):
    def __init__(self, total: int, what: str, unit: str, before: int = 0) -> None:
        from tqdm import tqdm

        super().__init__(total, what, unit, before)
        self._bar = tqdm(total=total, initial=before, desc=what, unit=f" {unit}", leave=False, dynamic_ncols=True)

    def update(self, amount: int = 1) -> None:
        super().update(amount)
        self._bar.update(amount)

    def note(self, **facts: Any) -> None:
        self._bar.set_postfix(facts, refresh=False)

    def close(self) -> None:
        self._bar.close()


class LineBar(Bar):
    """At most one line every LINE_EVERY_S; short work prints nothing."""

    def __init__(self, total: int, what: str, unit: str, stream: TextIO, before: int = 0) -> None:
        super().__init__(total, what, unit, before)
        self._stream = stream
        self._facts = ""
        self._start = self._last = time.monotonic()

    def update(self, amount: int = 1) -> None:
        super().update(amount)
        now = time.monotonic()
        if now - self._last >= LINE_EVERY_S:
            self._last = now
            print(self.line(now - self._start), file=self._stream, flush=True)

    def note(self, **facts: Any) -> None:
        self._facts = "".join(f", {name} {value}" for name, value in facts.items())

    def line(self, elapsed_s: float) -> str:
        """Example: `rollouts: 48/64 tasks (75%), 00:30 gone, 00:10 left, success 0.41`"""
        if not self.total:
            return f"{self.what}: {self.done} {self.unit}, {clock(elapsed_s)} gone{self._facts}"
        now = self.done - self.before
        left = elapsed_s * (self.total - self.done) / now if now else 0.0
        share = 100 * self.done / self.total
        return (
            f"{self.what}: {self.done}/{self.total} {self.unit} ({share:.0f}%), "
            f"{clock(elapsed_s)} gone, {clock(left)} left{self._facts}"
        )


class Progress:
    """`progress(total, what, unit)` makes a bar."""

    def __init__(self, enabled: bool, stream: TextIO | None = None) -> None:
        self.enabled = enabled
        self._stream = stream if stream is not None else sys.stderr

    def __call__(self, total: int, what: str, unit: str = "it", before: int = 0) -> Bar:
        """A bar of `total` units, of which `before` are done already; total 0: the number is not known."""
        if not self.enabled:
            return Bar(total, what, unit, before)
        if self._stream.isatty():
            return TerminalBar(total, what, unit, before)
        return LineBar(total, what, unit, self._stream, before)


class ProgressReport:
    """What an adapter's `prepare` calls: report(done, total, what) -> a bar for each `what`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bar: Bar | None = None

    def __call__(self, done: int, total: int, what: str) -> None:
        if self._bar is None or self._bar.what != what:
            self.close()
            self._bar = self._progress(total, what, "done")
        self._bar.update(done - self._bar.done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def clock(seconds: float) -> str:
    """Example: 75 -> 01:15, 3675 -> 1:01:15."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"
