"""One start of a run and what is done to it meanwhile."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.faults.forked import Forked
from tests.faults.layer import Layer
from tests.processes import ENVIRONMENT, ROOT

LIMIT_S = 900.0
ORPHAN_S = 10.0  # what a killed launcher leaves must have ended by itself within this
FROZEN_S = 1.5  # a rank stands still so long that the others wait for it in a collective
POLL_S = 0.01
LOOK_EVERY_S = 0.2  # a look through /proc costs milliseconds

ROLES = {
    "inner launcher": re.compile(r"-m deepspeed\.launcher\.launch "),
    "rank 1": re.compile(r"(driver|export|stages/\w+)\.py --local_rank=1"),
    "rank 0": re.compile(r"(driver|export|stages/\w+)\.py (--local_rank=0|--run-dir)"),
    "worker": re.compile(r"runtime\.environment_worker"),
    "expert": re.compile(r"runtime\.demonstration_worker"),
    "outer launcher": re.compile(r"/deepspeed "),
}


@dataclass(frozen=True)
class Act:
    """What is done to a running attempt once it has come to its `at`-th file event and `delay_s` have passed.

    do: SIGKILL, SIGTERM, SIGINT or SIGSTOP, to `role`; "SIGINT twice"; "freeze and kill" (a rank in a collective);
        "read-only" (the run directory).
    role: a key of ROLES; "command" is the process that the user started.
    """

    do: str
    role: str = "command"
    at: int = 0
    delay_s: float = 0.0
    name: str = ""  # for the table; default: what is done


@dataclass
class Outcome:
    """How an attempt ended."""

    code: int | None  # exit code of the command; None: it had to be ended after LIMIT_S
    out: str
    err: str
    done: list[Act]  # acts whose moment came
    orphans: list[str]  # command lines of what outlived it by ORPHAN_S
    seconds: float
    stop_s: float | None  # from the last act to the end of the command
    events: int


def roles(processes: dict[int, str], command: int) -> dict[str, int]:
    """Which process is what; of several workers the first."""
    found = {"command": command}
    for pid, line in sorted(processes.items()):
        for role, pattern in ROLES.items():
            if pattern.search(line):
                if pid != command:
                    found.setdefault(role, pid)
                break
    if "rank 0" not in found and "outer launcher" not in found and ROLES["rank 0"].search(processes.get(command, "")):
        found["rank 0"] = command  # started without a launcher
    return found


def start(
    command: list[str], layer: Layer, acts: list[Act], logs: Path, forked: bool = False, **environment: str
) -> Outcome:
    """Start a command, do the acts in order, wait for its end, look for orphans and end them.

    Args:
        forked: the command is `python pipeline/driver.py ...`, as a child of this process (see tests/faults/forked.py).
    """
    begun = time.monotonic()
    out, err = logs.with_suffix(".out"), logs.with_suffix(".err")
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1", **environment, **layer.environment}
    with open(out, "w") as out_file, open(err, "w") as err_file:
        if forked:
            process = Forked(command[2:], environment, out, err)
        else:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out_file, stderr=err_file,
                                       stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
        done: list[Act] = []
        acted_at = None
        try:
            for act in acts:
                target = _wait_for(act, process, layer, begun)
                if target is None:
                    break
                acted_at = time.monotonic()
                _do(act, target, layer)
                layer.open_gate()
                done.append(act)
            code: int | None = process.wait(max(1.0, LIMIT_S - (time.monotonic() - begun)))
        except subprocess.TimeoutExpired:
            code = None
        ended = time.monotonic()
        orphans = _end_orphans(layer, process, patient=code is not None)
    stop_s = None if acted_at is None else ended - acted_at
    return Outcome(code, out.read_text(errors="replace"), err.read_text(errors="replace"), done, orphans,
                   ended - begun, stop_s, layer.events)  # fmt: skip


def _wait_for(act: Act, process: subprocess.Popen | Forked, layer: Layer, begun: float) -> int | None:
    """Return the process to hit when the moment has come; None: the command ended first, or has no such process."""
    while process.poll() is None:
        if time.monotonic() - begun > LIMIT_S:
            return None
        if layer.events < act.at and not layer.waits:
            time.sleep(POLL_S)
            continue
        if act.delay_s and not layer.waits:
            time.sleep(act.delay_s)
        found = roles(layer.processes(), process.pid)
        if act.role in found and (act.role != "worker" or _at_rest(found[act.role])):
            return found[act.role]
        if layer.waits:  # nobody goes on before it is opened, so no process will come
            layer.open_gate()
            return None
        time.sleep(LOOK_EVERY_S)
    return None


def _at_rest(pid: int) -> bool:
    """Whether a process sleeps, and still does a little later: a worker that is ready, not one that is starting."""
    for _ in range(2):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "S":
                return False
        except OSError:
            return False
        time.sleep(LOOK_EVERY_S / 2)
    return True


def _do(act: Act, pid: int, layer: Layer) -> None:
    if act.do == "read-only":
        make_read_only(layer.root)
        return
    try:
        if act.do == "freeze and kill":
            os.kill(pid, signal.SIGSTOP)
            time.sleep(FROZEN_S)
            os.kill(pid, signal.SIGKILL)
        elif act.do == "SIGINT twice":
            os.kill(pid, signal.SIGINT)
            time.sleep(0.5)
            os.kill(pid, signal.SIGINT)
        elif act.role == "command":  # a terminal signals the whole foreground group
            os.killpg(pid, signal.Signals[act.do]) if act.do == "SIGINT" else os.kill(pid, signal.Signals[act.do])
        else:
            os.kill(pid, signal.Signals[act.do])
    except ProcessLookupError:
        pass  # it has just ended


def _end_orphans(layer: Layer, process: subprocess.Popen | Forked, patient: bool) -> list[str]:
    """Wait for everything of the attempt to end; what is left is killed and named."""
    layer.open_gate()
    end = time.monotonic() + (ORPHAN_S if patient else 0.0)
    left = layer.processes()
    while left and time.monotonic() < end:
        time.sleep(LOOK_EVERY_S)
        left = layer.processes()
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()
    return sorted(line.strip() for line in left.values()) if patient else []


def make_read_only(folder: Path) -> None:
    """Mount a folder over itself, read-only (root ignores the modes of files)."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)


def make_writable(folder: Path) -> None:
    """Undo `make_read_only`, however often it was done."""
    for _ in range(_mounts().count(str(folder.resolve()))):
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _mounts() -> list[str]:
    """Where something is mounted. (os.path.ismount does not see a folder that is mounted over itself.)"""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1].replace("\\040", " ") for line in lines]


def may_mount(scratch: Path) -> bool:
    """Whether this process may mount anything."""
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        make_read_only(scratch)
        return True
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        make_writable(scratch)
