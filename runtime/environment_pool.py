"""Environments in worker processes, several slots a worker; a slot keeps its engine for the life of the worker.

A worker that dies or does not answer in time is replaced. The episode whose command it was working on is to blame;
the other episodes of that worker are lost with it, blameless.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from env_adapters.base import Observation, StepResult, Task

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 120.0  # importing an engine may take long on a busy machine
# Bytes of commands sent ahead to a worker. Many, so that it never waits for us while we generate; no more than a socket
# holds, so that we never wait for it while it waits for us to take its replies.
IN_FLIGHT_BYTES = 65536


class EnvironmentPoolError(Exception):
    """The workers cannot be started. The message names object, fact and remedy."""


@dataclass(frozen=True)
class Reply:
    """What came of the last command to a slot: a result, or an error and then the episode is lost."""

    slot: int
    result: Observation | StepResult | None
    error: str | None  # traceback or what became of the worker
    to_blame: bool  # with an error: this episode caused it
    seconds: float  # time in the environment


@dataclass
class _Command:
    ticket: int
    slot: int
    name: str
    message: bytes


@dataclass
class _Worker:
    process: subprocess.Popen
    connection: Connection
    ready: bool = False
    queued: deque[_Command] = field(default_factory=deque)
    sent: deque[_Command] = field(default_factory=deque)  # the first of them is being worked on
    busy_since: float = 0.0


class EnvironmentPool:
    """Worker processes for the adapter `name` with `options`. Slot s lives in worker s % workers.

    Use: `reset` or `step` on any slots, then `poll` for replies; `release` a slot whose episode has ended.

    Args:
        name, options: as for env_adapters.registry.make_adapter; each worker builds its own adapter.
        workers: number of processes, >= 1.
        timeout_s: longest a single reset or step may take.
    """

    def __init__(self, name: str, options: Mapping[str, Any], workers: int, timeout_s: float) -> None:
        self.name, self.options, self.timeout_s = name, dict(options), timeout_s
        self._tickets: dict[int, int] = {}  # live slot -> its newest command
        self._next_ticket = 0
        self.num_restarts = 0
        self._workers: list[_Worker] = []
        try:
            self._workers.extend(self._start() for _ in range(workers))
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> int:
        return len(self._workers)

    def pids(self) -> list[int]:
        """Process ids, by worker."""
        return [worker.process.pid for worker in self._workers]

    def reset(self, slot: int, task: Task) -> None:
        """Begin an episode; the reply brings its first Observation. A running episode of the slot is dropped."""
        self._submit(slot, "reset", task)

    def step(self, slot: int, response: str) -> None:
        """Play one response; the reply brings a StepResult."""
        self._submit(slot, "step", response)

    def release(self, slot: int) -> None:
        """The slot's episode is over: nothing more is reported of it."""
        self._tickets.pop(slot, None)

    def poll(self, timeout_s: float) -> list[Reply]:
        """Replies that have come in, waiting up to `timeout_s` for the first.

        Raises:
            EnvironmentPoolError: a worker cannot build the adapter, or dies while starting.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            limit = min([deadline, *(self._limit(worker) for worker in self._workers if self._occupied(worker))])
            ready = wait([worker.connection for worker in self._workers], max(0.0, limit - now))
            replies: list[Reply] = []
            for index, worker in enumerate(self._workers):
                if worker.connection in ready:
                    replies += self._receive(index)
            replies += self._check_limits()
            if replies or time.monotonic() >= deadline:
                return replies

    def close(self) -> None:
        """End all workers and wait for them."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            try:
                worker.process.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._workers.clear()
        self._tickets.clear()

    def __enter__(self) -> EnvironmentPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> _Worker:
        ours, theirs = socket.socketpair()
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "runtime.environment_worker", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=2,  # what an engine prints must not mix with our own output
            )
        worker = _Worker(process, Connection(ours.detach()), busy_since=time.monotonic())
        worker.connection.send(([entry or os.getcwd() for entry in sys.path], self.name, self.options))
        return worker

    def _submit(self, slot: int, command: str, argument: Any) -> None:
        ticket = self._next_ticket
        self._next_ticket += 1
        self._tickets[slot] = ticket
        worker = self._workers[slot % len(self._workers)]
        message = pickle.dumps((ticket, slot, command, argument))
        worker.queued.append(_Command(ticket, slot, command, message))
        self._send(worker)

    def _send(self, worker: _Worker) -> None:
        while worker.queued:
            ahead = sum(len(command.message) for command in worker.sent)
            if ahead and ahead + len(worker.queued[0].message) > IN_FLIGHT_BYTES:
                return
            if not worker.sent and worker.ready:
                worker.busy_since = time.monotonic()
            command = worker.queued.popleft()
            worker.sent.append(command)
            try:
                worker.connection.send_bytes(command.message)
            except OSError:  # it has died: the next poll sees that too, and reports it
                return

    def _receive(self, index: int) -> list[Reply]:
        worker, replies = self._workers[index], []
        try:
            while worker.connection.poll():
                message = worker.connection.recv()
                if not worker.ready:
                    self._greet(worker, *message)
                    continue
                replies += self._take(worker, *message)
        except (EOFError, OSError):
            replies += self._replace(index, f"exit code {_exit_code(worker.process)}")
        return replies

    def _greet(self, worker: _Worker, word: str, error: str | None) -> None:
        if word != "ready":
            raise EnvironmentPoolError(f"environment {self.name!r}: a worker cannot build its adapter\n{error}")
        worker.ready, worker.busy_since = True, time.monotonic()

    def _take(self, worker: _Worker, ticket: int, result: Any, error: str | None, seconds: float) -> list[Reply]:
        command = worker.sent.popleft()
        worker.busy_since = time.monotonic()
        self._send(worker)
        if self._tickets.get(command.slot) != ticket:
            return []  # of an episode that was dropped
        if error is not None:
            self.release(command.slot)
        return [Reply(command.slot, result, error, error is not None, seconds)]

    def _occupied(self, worker: _Worker) -> bool:
        return bool(worker.sent) or not worker.ready

    def _limit(self, worker: _Worker) -> float:
        return worker.busy_since + self._patience_s(worker)

    def _patience_s(self, worker: _Worker) -> float:
        return self.timeout_s if worker.ready else max(START_SECONDS, self.timeout_s)

    def _check_limits(self) -> list[Reply]:
        replies = []
        for index, worker in enumerate(self._workers):
            late = self._occupied(worker) and time.monotonic() >= self._limit(worker)
            if late and not worker.connection.poll():  # an answer that came in meanwhile is read at the next poll
                waited = f"no answer for {self._patience_s(worker):g} s (rollout.turn_timeout_s)"
                replies += self._replace(index, waited)
        return replies

    def _replace(self, index: int, reason: str) -> list[Reply]:
        """Start another worker in the place of a lost one; an error reply for each of its live slots."""
        worker = self._workers[index]
        worker.process.kill()
        worker.process.wait()
        worker.connection.close()
        text = f"environment {self.name!r}: worker {index} (process {worker.process.pid}): {reason}"
        if not worker.ready:
            raise EnvironmentPoolError(f"{text} while starting; run the adapter in a plain python process to see why")
        self._workers[index] = self._start()
        self.num_restarts += 1
        culprit = worker.sent[0] if worker.sent else None
        if culprit is not None and self._tickets.get(culprit.slot) not in (None, culprit.ticket):
            culprit = None  # a dropped episode's command: nobody that lives now
        replies = []
        for slot in sorted(slot for slot in self._tickets if slot % len(self._workers) == index):
            # A worker that dies with nothing to do leaves no culprit: then all are charged, so that it ends.
            to_blame = not worker.sent or (culprit is not None and slot == culprit.slot)
            doing = f" during {culprit.name}" if culprit is not None and to_blame else ""
            replies.append(Reply(slot, None, text + doing, to_blame, 0.0))
            self.release(slot)
        return replies


def _exit_code(process: subprocess.Popen) -> int | str:
    try:
        return process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        return "unknown"
