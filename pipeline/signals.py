"""Stopping: on request at the next safe point, at once when asked twice, and never as an orphan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from pipeline.run_directory import STAGES, RunPaths
from runtime.shards import SHARD_PATTERN

LAUNCHER_PID = "SAPO_LAUNCHER_PID"  # set by who starts a run or its ranks: the process whose death ends them
WATCH_EVERY_S = 1.0
NEWLINE = b"\n"
INNER_LAUNCHER = b"deepspeed.launcher.launch"  # the process between the `deepspeed` command and the ranks


class StopRequest:
    """Remembers the first SIGTERM or SIGINT; a second one ends the process as if it were not handled.

    Rank 0 is asked and tells the others. The others obey at once: a signal to them comes from a launcher that
    ends what a lost rank has left.
    """

    def __init__(self, rank: int = 0) -> None:
        self.signal = 0
        self._owner = os.getpid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember if rank == 0 else signal.SIG_DFL)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.signal or os.getpid() != self._owner:  # a forked worker has nothing to finish
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.signal = number


def stop_at_once(what: Callable[[], str]) -> None:
    """From now on the first SIGTERM or SIGINT ends this process, with a line: for a stage that nothing follows."""

    def end(number: int, frame: FrameType | None) -> None:
        print(f"stopped {what()}; go on with the same command", file=sys.stderr, flush=True)
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def what_is_kept(paths: RunPaths, step: tuple[str, int]) -> str:
    """What there is of a step that was cut, and what will be done again.

    Example: `in collect_rollouts 3, of which 37 finished trajectories are kept; every step before it is complete`
    """
    stage, iteration = step
    kept = "which is done again from its start"
    if stage in ("collect_rollouts", "evaluate"):
        shards = paths.stage(stage, iteration).glob(f"*{SHARD_PATTERN}")
        kept = f"of which {sum(path.read_bytes().count(NEWLINE) for path in shards)} finished trajectories are kept"
    elif stage == "warm_start" and (paths.stage(stage, iteration) / "demonstrations.jsonl").exists():
        kept = "of which the demonstrations are kept"
    elif stage not in STAGES:
        return f"in {stage}; every step begun is complete"
    return f"in {stage} {iteration}, {kept}; every step before it is complete"


def start_guard(group: int) -> subprocess.Popen:
    """Start a small process that kills a process group when this process ends without having ended the guard.

    It waits for the end of a pipe, which the kernel closes whatever became of this process, and needs no time of its
    own: the ranks watch their parents too, but only once they have imported all they need.
    """
    script = 'read -r _; kill -s KILL -- "-$1"'
    return subprocess.Popen(
        ["sh", "-c", script, "guard", str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # of a group that has ended by itself
        start_new_session=True,
    )


def end_with_parents() -> None:
    """Start a thread that kills this process, and its group where the group is ours, when a parent has gone.

    The deepspeed launcher leaves its ranks behind when it is ended by a signal. Everything on disk can be
    resumed, so an orphan has nothing to lose.
    """
    threading.Thread(target=_watch, args=(ancestors(), os.environ.get(LAUNCHER_PID)), daemon=True).start()


def ancestors() -> list[int]:
    """The parent; and where that is deepspeed's inner launcher, the outer one. Nobody, where that has gone already."""
    parent = os.getppid()
    try:
        if INNER_LAUNCHER not in Path(f"/proc/{parent}/cmdline").read_bytes():
            return [parent]
        outer = parent_of(parent)
        orphan = outer == 1 and b"deepspeed" not in Path("/proc/1/cmdline").read_bytes()
        return [] if orphan else [parent, outer]
    except OSError:
        return [parent]


def parent_of(pid: int) -> int:
    """Raises OSError: there is no such process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def end_with_launcher() -> None:
    """`end_with_parents` where another of our processes has started this one, as its children or its ranks."""
    if LAUNCHER_PID in os.environ:
        end_with_parents()


def _watch(family: list[int], launcher: str | None) -> None:
    while family and ancestors() == family and (launcher is None or process_alive(int(launcher))):
        time.sleep(WATCH_EVERY_S)
    if launcher is not None:  # the launcher gave the run a session, and so a group, of its own
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(128 + signal.SIGTERM)


def process_alive(pid: int) -> bool:
    """Whether a process of this machine exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
