"""Stopping: on request at the next safe point, at once when asked twice, and never as an orphan."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

LAUNCHER_PID = "SAPO_LAUNCHER_PID"  # set by who starts a run or its ranks: the process whose death ends them
WATCH_EVERY_S = 1.0


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


def end_with_parents() -> None:
    """Start a thread that kills this process, and its group where the group is ours, when a parent has gone.

    The deepspeed launcher leaves its ranks behind when it is ended by a signal. Everything on disk can be
    resumed, so an orphan has nothing to lose.
    """
    threading.Thread(target=_watch, args=(os.getppid(), os.environ.get(LAUNCHER_PID)), daemon=True).start()


def end_with_launcher() -> None:
    """`end_with_parents` where another of our processes has started this one, as its children or its ranks."""
    if LAUNCHER_PID in os.environ:
        end_with_parents()


def _watch(parent: int, launcher: str | None) -> None:
    while os.getppid() == parent and (launcher is None or process_alive(int(launcher))):
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
