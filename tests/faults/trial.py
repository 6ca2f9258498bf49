"""A run that is hit again and again: attempts with faults, then the same command until it is complete."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.run_directory import RunPaths
from tests.faults.attempt import Act, Outcome, make_writable, start
from tests.faults.layer import Layer, Order
from tests.faults.run import Memory, check_end, command, look, prepare_command
from tests.processes import ENVIRONMENT, ROOT

GIVE_UP_AFTER = 3  # starts without a fault that do not get further
STAGE_STARTS = 12  # a run of one iteration has 8 steps
STOP_LIMIT_S = 10.0
STOPS = ("SIGTERM", "SIGINT", "SIGINT twice")
RESUMES = "--run-dir"  # every message that ends a run for good or for now names how to go on
JIT_OPERATORS = ("deepspeed_shm_comm", "cpu_adam", "fused_adam", "utils", "async_io")


@dataclass(frozen=True)
class Blow:
    """What is done in one attempt: an order to the file layer, acts from outside, and what lies about before it.

    Example: Blow(Order(at=40, do="fail 28", stays=True, name="ENOSPC"))
    """

    order: Order = Order()
    acts: tuple[Act, ...] = ()
    stale_lock: bytes | None = None  # content of run.lock before the start
    stale_jit_lock: bool = False


@dataclass
class Attempt:
    """A start, what came to pass in it, and what was wrong afterwards."""

    blow: Blow
    outcome: Outcome
    faults: list[str] = field(default_factory=list)
    lost: int = 0  # trajectories

    @property
    def dealt(self) -> list[str]:
        """Names of the faults whose moment came."""
        blow, outcome = self.blow, self.outcome
        names = ["stale lock"] * (blow.stale_lock is not None) + ["stale JIT lock"] * blow.stale_jit_lock
        names += [blow.order.name] * (0 < blow.order.at <= outcome.events)
        return names + [act.name or act.do for act in outcome.done]

    @property
    def message(self) -> str:
        return said(self.outcome)


@dataclass
class Trial:
    """One run directory and all that was done to it."""

    run_dir: Path
    reference: Path
    library: Path
    mode: str = "resident"
    ranks: int = 1
    iterations: int = 2
    memory: Memory = field(default_factory=Memory)
    attempts: list[Attempt] = field(default_factory=list)

    def prepare(self) -> None:
        """Make the run directory where the mode needs one that is there."""
        if self.mode != "resident":
            whole = [*prepare_command(self.run_dir, self.ranks, self.iterations), "--prepare-only"]
            subprocess.run(whole, cwd=ROOT, env=ENVIRONMENT, check=True, capture_output=True)

    @property
    def complete(self) -> bool:
        return self.next_command() is None

    def next_command(self) -> list[str] | None:
        return command(self.mode, self.run_dir, self.ranks, self.iterations)

    def strike(self, blow: Blow) -> Attempt:
        """Start the run's next command, deal the blow, and look at what is left."""
        side = self.run_dir.with_name(f"{self.run_dir.name}-side")
        side.mkdir(exist_ok=True)
        environment = {"DS_ACCELERATOR": "cpu"}
        if blow.stale_lock is not None and self.run_dir.is_dir():
            RunPaths(self.run_dir).lock.write_bytes(blow.stale_lock)
        if blow.stale_jit_lock:
            environment["TORCH_EXTENSIONS_DIR"] = str(leave_jit_locks(side / "extensions"))
        layer = Layer(self.library, side / f"state-{len(self.attempts)}", self.run_dir, blow.order)
        try:
            outcome = start(
                self.next_command(),
                layer,
                list(blow.acts),
                side / f"{len(self.attempts)}",
                self.mode == "forked",
                **environment,
            )
        finally:
            make_writable(self.run_dir)
            layer.close()
        attempt = Attempt(blow, outcome)
        attempt.lost, attempt.faults = look(self.run_dir, self.memory)
        attempt.faults += [f"orphan: {line}" for line in outcome.orphans] + judge(attempt, self.mode)
        self.attempts.append(attempt)
        return attempt

    def finish(self) -> list[str]:
        """The same command, undisturbed, until the run is complete; what is wrong with it then."""
        faults = []
        for _ in range(GIVE_UP_AFTER if self.mode != "stages" else STAGE_STARTS):
            if self.complete:
                break
            attempt = self.strike(Blow())
            faults += attempt.faults
            if attempt.outcome.code != 0:
                faults.append(f"undisturbed, the command ends with {attempt.outcome.code}: {attempt.message}")
        if not self.complete:
            return [*faults, "the run does not come to its end"]
        if self.attempts[-1].outcome.code == 0:  # what a kill behind the last step leaves goes at the next start
            faults += [f"{path.name} is left over" for path in self.run_dir.rglob(".*.tmp-*")]
        return faults + check_end(self.run_dir, self.reference)


def said(outcome: Outcome) -> str:
    """The line of an attempt's stderr that tells the user most."""
    lines = [line for line in outcome.err.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("error:") or "go on with" in line]
    return (told or lines or ["nothing"])[-1]


def judge(attempt: Attempt, mode: str) -> list[str]:
    """What is wrong with how the command ended and what it said."""
    outcome = attempt.outcome
    if outcome.code is None:
        return [f"hangs: {said(outcome)}"]
    faults = []
    if "Traceback" in outcome.err and (mode != "stages" or "defect in" in outcome.err):  # deepspeed shows its own
        own = [line for line in outcome.err.splitlines() if "Error" in line or "defect" in line or "Interrupt" in line]
        faults.append(f"a traceback instead of a line: {' | '.join(own)[:300]}")
    if outcome.code > 0 and mode == "resident" and RESUMES not in outcome.err and "error:" not in outcome.err:
        faults.append(f"ends with {outcome.code} and does not say how to go on: {said(outcome)}")
    asked = mode == "resident" and any(act.do in STOPS and act.role == "command" for act in outcome.done)
    if asked and outcome.stop_s is not None and outcome.stop_s > stop_limit_s():
        faults.append(f"took {outcome.stop_s:.1f} s to stop")
    return faults


def stop_limit_s() -> float:
    """How long a stop may take: longer where other programs want the cores too."""
    return STOP_LIMIT_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def leave_jit_locks(folder: Path) -> Path:
    """A folder of torch extensions in which builds were killed: a lock for each operator."""
    for name in JIT_OPERATORS:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "lock").touch()
    return folder


def make_reference(run_dir: Path, library: Path, ranks: int, iterations: int = 2, mode: str = "resident") -> int:
    """An uncut run, or the one that is there. Returns the number of its file events."""
    note = run_dir.with_name(f"{run_dir.name}-events.json")
    if note.exists():
        return json.loads(note.read_text())
    shutil.rmtree(run_dir, ignore_errors=True)
    trial = Trial(run_dir, run_dir, library, mode, ranks, iterations)
    trial.prepare()
    attempt = trial.strike(Blow())
    if attempt.outcome.code != 0 or attempt.faults:
        raise RuntimeError(f"{run_dir}: an undisturbed run fails: {attempt.faults}; {attempt.message}")
    note.write_text(json.dumps(attempt.outcome.events))
    return attempt.outcome.events


def owned_by_nobody(garbage: bool) -> bytes:
    """Text that a run.lock may hold though nobody has the lock: of a process that lives but is another, or none."""
    if garbage:
        return b"\0\xff{"
    return json.dumps({"host": os.uname().nodename, "pid": os.getpid(), "started": 1.0}).encode()
