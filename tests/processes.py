"""Real child processes for tests."""

from __future__ import annotations

import os
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
WAIT_S = 20.0


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True
    return state == "Z"


def wait_until_gone(*pids: int) -> None:
    end = time.monotonic() + WAIT_S
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < end, f"still alive: {[pid for pid in pids if not gone(pid)]}"
        time.sleep(0.05)
