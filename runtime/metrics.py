"""metrics.jsonl and TensorBoard: one line for each completed stage.

The manifests hold the same numbers, so a line lost by a kill is written again at the next start
(`MetricsLog.has`), and no line is written twice.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def finite_or_none(value: float) -> float | None:
    """A JSON number, or None for NaN and infinities, which JSON does not have."""
    return float(value) if math.isfinite(value) else None


class MetricsLog:
    """Appends to metrics.jsonl and, where a folder is given, to TensorBoard. For rank 0 alone.

    A line: {"stage": "optimize", "iteration": 3, "seconds": 1.9, "sapo/approx_kl": 0.004, ...}
    """

    def __init__(self, path: str | Path, tensorboard: str | Path | None = None) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._written = {(line["stage"], line["iteration"]) for line in read_metrics(self._path, repair=True)}
        self._file = open(self._path, "a", encoding="utf-8")
        self._writer = None
        if tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter  # slow to import: only where it is wanted

            self._writer = SummaryWriter(str(tensorboard))

    def has(self, stage: str, iteration: int) -> bool:
        """Whether the line of this stage and iteration is in the file."""
        return (stage, iteration) in self._written

    def write(self, stage: str, iteration: int, seconds: float, metrics: Mapping[str, float]) -> None:
        """Append one line and hand the same numbers to TensorBoard (step = iteration)."""
        line: dict[str, Any] = {"stage": stage, "iteration": iteration, "seconds": round(seconds, 3)}
        line.update({name: finite_or_none(value) for name, value in metrics.items()})
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._written.add((stage, iteration))
        if self._writer is not None:
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, iteration)
            self._writer.add_scalar(f"time/{stage}_s", seconds, iteration)
            self._writer.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a line that the disk did not take is written from its manifest next time
            self._file.close()
        if self._writer is not None:
            self._writer.close()


def read_metrics(path: str | Path, repair: bool = False) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; what a kill tore (a last line without its newline) is left out.

    Lines that are no metrics are skipped: the manifests are the record, this file is a view of them.
    With `repair` a torn tail is cut off the file.
    """
    path = Path(path)
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if repair and len(whole) < len(data):
        os.truncate(path, len(whole))
    lines = []
    for text in whole.splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are both ValueErrors
            continue
        if isinstance(line, dict) and isinstance(line.get("stage"), str) and isinstance(line.get("iteration"), int):
            lines.append(line)
    return lines
