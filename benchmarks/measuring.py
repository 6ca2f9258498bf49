"""What the benchmarks share: two clocks, sides that take turns, the machine, peaks of memory, a result's file."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Clock:
    """Seconds of a piece of work: on the wall, and of this process's own computing.

    On a machine that others use the wall's are longer than the work; those of the CPU are not.
    """

    wall_s: float
    cpu_s: float


def timed(work: Callable[[], Any], device: str = "cpu") -> tuple[Clock, Any]:
    """Do the work; its seconds (a GPU's queue is waited for) and its result."""
    _finish(device)
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    _finish(device)
    return Clock(time.perf_counter() - wall, time.process_time() - cpu), result


def turn_about(sides: Mapping[str, Callable[[], Any]], times: int, device: str = "cpu") -> dict[str, Clock]:
    """Every side once to warm up, then all of them in turn, `times` times; the medians by name."""
    for work in sides.values():
        work()
    found: dict[str, list[Clock]] = {name: [] for name in sides}
    for _ in range(times):
        for name, work in sides.items():
            found[name].append(timed(work, device)[0])
    return {name: median_clock(clocks) for name, clocks in found.items()}


def median_clock(clocks: list[Clock]) -> Clock:
    """The medians of both clocks."""
    return Clock(statistics.median(one.wall_s for one in clocks), statistics.median(one.cpu_s for one in clocks))


def _finish(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def reset_peak(device: str = "cpu") -> int:
    """Forget the highest memory so far; bytes held now: of the process (Linux), or of the GPU."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return _status_bytes("VmRSS")


def peak(device: str = "cpu") -> int:
    """Most bytes held since `reset_peak`."""
    return _status_bytes("VmHWM") if device == "cpu" else torch.cuda.max_memory_allocated()


def _status_bytes(name: str) -> int:
    return 1024 * int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def write(path: Path | None, name: str, result: Mapping[str, Any]) -> None:
    """Add the result to a json file under `name`; what else is there stays."""
    if path is None:
        return
    there = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**there, name: result}, indent=1) + "\n", encoding="utf-8")
