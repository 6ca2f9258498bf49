"""Real child processes for tests."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
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


def run_trials(
    command: Sequence[str], script: str, mode: str, root: Path, environment: Mapping[str, str], limit_s: float
) -> dict:
    """Run a script of trials by a launcher's command; returns what it wrote to ROOT/<mode>.json."""
    done = subprocess.run(
        [*command, script, mode, str(root)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit_s, check=False,
    )  # fmt: skip
    assert (root / f"{mode}.json").exists(), done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads((root / f"{mode}.json").read_text())
