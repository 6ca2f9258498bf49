"""The runs of a comparison as child processes, a few at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from pipeline.compare.planning import PlannedRun
from pipeline.signals import LAUNCHER_PID
from runtime.progress import clock

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.2
TAIL_BYTES = 4000


@dataclass(frozen=True)
class Child:
    process: subprocess.Popen
    run: PlannedRun
    share: int  # of the cores: its place in `core_shares`
    started: float  # monotonic seconds


@dataclass
class Runner:
    """Starts runs, waits for them, and hands signals on: the first asks them to stop, a second ends them at once.

    A child dies with this process, however it ends; what it has finished is on disk, and the same command goes on.
    """

    jobs: int
    say: Callable[[str], None]
    failures: dict[Path, str] = field(default_factory=dict)  # folder of the run -> what it said last
    stopped_by: int = 0  # the last signal that asked to stop
    asked: int = 0  # how often one has
    told: int = 0  # how often the runs have been told

    def run(self, runs: Sequence[PlannedRun]) -> None:
        """Run all, each on cores of its own; a run that fails is noted in `failures` and the others go on."""
        waiting, living, shares = list(runs), {}, core_shares(self.jobs)
        before = {number: signal.signal(number, self._remember) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while living or (waiting and not self.stopped_by):
                while waiting and len(living) < self.jobs and not self.stopped_by:
                    one = waiting.pop(0)
                    taken = [child.share for child in living.values()]
                    share = next(share for share in range(self.jobs) if share not in taken)
                    living[one.name] = Child(self._start(one, shares[share]), one, share, time.monotonic())
                    self.say(f"{one.name}: started, {len(waiting)} waiting; {one.log}")
                time.sleep(POLL_S)
                self._pass_on(living)
                self._collect(living)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self, run: PlannedRun, cores: set[int]) -> subprocess.Popen:
        run.log.parent.mkdir(parents=True, exist_ok=True)
        with open(run.log, "ab") as log:
            command = [sys.executable, "-m", "pipeline", *run.arguments]
            process = subprocess.Popen(
                command, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        os.sched_setaffinity(process.pid, cores)  # its children have it too; the run counts these cores
        return process

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, LAUNCHER_PID: str(os.getpid())}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return environment

    def _collect(self, living: dict[str, Child]) -> None:
        for name, child in list(living.items()):
            if child.process.poll() is None:
                continue
            del living[name]
            run, took = child.run, clock(time.monotonic() - child.started)
            if child.process.returncode == 0:
                self.say(f"{name}: finished in {took}")
            elif self.stopped_by:
                self.say(f"{name}: stopped")
            else:
                self.failures[run.folder] = last_line(run.log)
                self.say(f"{name}: failed after {took} ({self.failures[run.folder]}); see {run.log}")

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.stopped_by, self.asked = number, self.asked + 1

    def _pass_on(self, living: dict[str, Child]) -> None:
        while self.told < self.asked:
            if not self.told:
                self.say("stopping after the stages in progress; once more to stop at once")
            self.told += 1
            for child in living.values():
                child.process.send_signal(signal.SIGTERM)


def core_shares(jobs: int) -> list[set[int]]:
    """This process's cores dealt out to `jobs` runs; where there are fewer cores than runs, some share one.

    Example: of cores 0-4, 2 jobs get {0, 2, 4} and {1, 3}.
    """
    cores = sorted(os.sched_getaffinity(0))
    return [set(cores[job::jobs]) or {cores[job % len(cores)]} for job in range(jobs)]


def last_line(log: Path) -> str:
    """What a run said at its end: its last line with `error: `, else its last line."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("error: ")]
    return (named or lines or ["it said nothing"])[-1].removeprefix("error: ")
