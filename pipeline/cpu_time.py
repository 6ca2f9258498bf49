"""CPU seconds of a process with all that it has started (Linux: /proc)."""

from __future__ import annotations

import os
from pathlib import Path

PARENT, TIMES = 1, slice(11, 15)  # of proc(5)'s stat after the name: ppid; utime, stime, cutime, cstime


def cpu_seconds(pid: int | None = None) -> float:
    """User and system seconds of a process (this one where none is named) and of all its descendants so far.

    `resource.getrusage` counts a child only when it has ended and been waited for; environment workers live as long
    as the run. An ended child is in its parent's cutime and cstime, a living one has its own entry: none counts twice.
    A descendant whose own parent has died is no longer found.
    """
    ticks, children = {}, {}
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
        except OSError:  # it has just ended
            continue
        ticks[int(entry)] = sum(map(int, fields[TIMES]))
        children.setdefault(int(fields[PARENT]), []).append(int(entry))
    total, waiting = 0, [os.getpid() if pid is None else pid]
    while waiting:
        one = waiting.pop()
        total += ticks.get(one, 0)
        waiting += children.get(one, [])
    return total / os.sysconf("SC_CLK_TCK")
