"""One run's folder: what is where, who owns it, what is kept, and whether the disk has room.

The layout is documented in docs/run_directory.md. Manifests are in `pipeline.manifests`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from runtime.files import GIB, atomic_path, free_gib, gib

STAGES = ("reserve_vocab", "warm_start", "collect_rollouts", "compute_advantages", "optimize", "evaluate")
EXPORT = "export"  # the last step of a run: pipeline/export.py


class RunError(Exception):
    """The run directory cannot be used as asked. The message names object, fact and remedy."""


@dataclass(frozen=True)
class RunPaths:
    """Where every file of a run is. `iteration` is 0 before training.

    Example: RunPaths(Path("runs/X")).rollouts(3) is runs/X/iterations/0003/rollouts
    """

    root: Path
    advantages_name: str = "advantages"  # another folder for targets that are recomputed with other settings

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def lock(self) -> Path:
        return self.root / "run.lock"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def errors(self) -> Path:
        return self.root / "errors.jsonl"

    @property
    def skipped_steps(self) -> Path:
        return self.root / "skipped_steps.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def times(self) -> Path:
        return self.root / "times.json"

    @property
    def model(self) -> Path:
        """The base model with its two value tokens reserved."""
        return self.root / "model"

    @property
    def export(self) -> Path:
        """The final policy as a plain transformers folder."""
        return self.root / "export"

    def checkpoint(self, iteration: int) -> Path:
        return self.root / "checkpoints" / f"{iteration:04d}"

    def policy(self, iteration: int) -> Path:
        """Weights, tokenizer and value tokens. Policy 0 is the warm start's where there was one, else the model."""
        if iteration == 0 and not (self.checkpoint(0) / "manifest.json").exists():
            return self.model
        return self.checkpoint(iteration) / "policy"

    def engine(self, iteration: int) -> Path:
        """The engine's own checkpoint: fp32 masters and optimizer moments."""
        return self.checkpoint(iteration) / "engine"

    def critic(self, iteration: int) -> Path:
        """A critic's weights, where the algorithm has one; the first one is made with the first advantages."""
        return self.advantages(1) / "first_critic" if iteration == 0 else self.checkpoint(iteration) / "critic"

    def critic_engine(self, iteration: int) -> Path:
        return self.checkpoint(iteration) / "critic_engine"

    def rollouts(self, iteration: int) -> Path:
        return self.root / "iterations" / f"{iteration:04d}" / "rollouts"

    def advantages(self, iteration: int) -> Path:
        return self.root / "iterations" / f"{iteration:04d}" / self.advantages_name

    def evaluation(self, iteration: int) -> Path:
        return self.root / "evaluations" / f"{iteration:04d}"

    def stage(self, stage: str, iteration: int) -> Path:
        """The folder into which a stage writes, its manifest included."""
        return {
            "reserve_vocab": self.model,
            "warm_start": self.checkpoint(0),
            "collect_rollouts": self.rollouts(iteration),
            "compute_advantages": self.advantages(iteration),
            "optimize": self.checkpoint(iteration),
            "evaluate": self.evaluation(iteration),
            EXPORT: self.export,
        }[stage]

    def manifest(self, stage: str, iteration: int) -> Path:
        return self.stage(stage, iteration) / "manifest.json"


def redo(stage: str, folder: Path) -> str:
    """What to do about a step whose files are damaged. Everything was made from the first two: they stay or it ends."""
    if stage in ("reserve_vocab", "warm_start"):
        return "put it back, or start a new run with another --run-dir"
    return f"delete {folder} and start the same command again to make it anew"


def resume_command(paths: RunPaths) -> str:
    """What to type to go on with a run."""
    return f"bash run.sh --run-dir {shlex.quote(str(paths.root))}"


class RunLock:
    """Exclusive ownership of a run directory while the process lives.

    The kernel drops a record lock when its process ends, however it ends, and children do not inherit it;
    so a dead owner never blocks, and an orphaned worker of a dead owner does not either.
    """

    def __init__(self, path: str | Path, patience_s: float = 0.0) -> None:
        self._path = Path(path)
        self._patience_s = patience_s  # an owner that is just ending is waited for
        self._handle: int | None = None

    def acquire(self) -> None:
        """Take the lock and write down who we are.

        Raises:
            RunError: another living process has it; names the owner.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        end = time.monotonic() + self._patience_s
        while True:
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as fault:
                if time.monotonic() < end:
                    time.sleep(0.1)
                    continue
                owner = describe_owner(os.pread(handle, 4096, 0))
                os.close(handle)
                raise RunError(
                    f"{self._path.parent}: in use by {owner}; wait for it, stop it, or choose another --run-dir"
                ) from fault
        record = {"host": socket.gethostname(), "pid": os.getpid(), "started": process_start(os.getpid())}
        os.ftruncate(handle, 0)
        os.pwrite(handle, (json.dumps(record) + "\n").encode(), 0)
        os.fsync(handle)
        self._handle = handle

    def release(self) -> None:
        if self._handle is not None:
            with contextlib.suppress(OSError):  # the text blocks nobody, and a broken disk has had its say
                os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def describe_owner(content: bytes) -> str:
    """Example: `process 4711 on host gpu3, started 2026-01-31 12:00:00`"""
    try:
        record = json.loads(content)
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["started"]))
        return f"process {record['pid']} on host {record['host']}, started {started}"
    except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
        return "another process"


def owner_pid(path: str | Path) -> int | None:
    """The living process of this host that wrote a run's lock, or None. Takes no lock itself."""
    try:
        record = json.loads(Path(path).read_bytes())
        alive = record["host"] == socket.gethostname() and process_start(record["pid"]) == record["started"]
        return record["pid"] if alive else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def process_start(pid: int) -> float:
    """Seconds since the epoch at which a process began (Linux: /proc)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks_after_boot = int(fields[19])  # field 22 of proc(5), counted from field 3
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    return int(boot.split()[1]) + ticks_after_boot / os.sysconf("SC_CLK_TCK")


def check_disk(root: str | Path, needed_gib: float, min_free_gib: float, what: str) -> None:
    """Refuse to start work that would fill the disk.

    Raises:
        RunError: less is free than `needed_gib` + `min_free_gib`.
    """
    free = free_gib(root)
    if free < needed_gib + min_free_gib:
        raise RunError(
            f"{root}: {gib(free * GIB)} free; {what} needs about {gib(needed_gib * GIB)} and {min_free_gib:g} GiB must "
            "stay free (checkpoint.min_free_gib); free some disk or lower checkpoint.keep_last, then start again"
        )


def link_or_copy(source: str | Path, destination: str | Path) -> None:
    """Give a file a second name without copying its bytes; a copy where the disk cannot do that."""
    try:
        os.link(source, destination)
    except OSError:
        with open(source, "rb") as reader, atomic_path(destination) as temporary, open(temporary, "wb") as writer:
            while chunk := reader.read(1 << 22):
                writer.write(chunk)
