"""A rank forked from this process, which has everything imported: its start costs a tenth of a new one's."""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

from tests.processes import ROOT

MARK = "SAPO_FAULT_PRELOADED"  # set in a process that was started under the layer
MODULES = ("deepspeed", "transformers", "pipeline.driver", "runtime.model", "runtime.engine")


def under_the_layer(library: Path) -> None:
    """Start this program again with the layer between it and the disk (idle until a child gets an order)."""
    if MARK not in os.environ:
        environment = {**os.environ, "LD_PRELOAD": str(library), MARK: "1", "OMP_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def import_everything() -> None:
    """What a rank imports, once."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from pipeline.run_directory import STAGES

    for name in (*MODULES, *(f"stages.{stage}" for stage in STAGES)):
        importlib.import_module(name)


class Forked:
    """A child that runs the driver; what subprocess.Popen is for a program."""

    def __init__(self, arguments: list[str], environment: dict[str, str], out: Path, err: Path) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _become_a_rank(arguments, environment, out, err)
            finally:
                os._exit(70)  # the driver ends its process itself

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("the forked rank", timeout)
            time.sleep(0.02)
        return self.returncode


def _become_a_rank(arguments: list[str], environment: dict[str, str], out: Path, err: Path) -> None:
    os.setsid()
    os.chdir(ROOT)
    for path, number in ((out, 1), (err, 2)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
    os.environ.clear()
    os.environ.update(environment)
    ctypes.CDLL(None).sapo_fault_begin()
    from pipeline import driver

    try:
        driver.main(arguments)
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
