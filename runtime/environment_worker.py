"""The environment process: `python -m runtime.environment_worker FD`, started by runtime.environment_pool.

Several environments live here, one a slot, and are served one command after another. Nothing heavy is imported: no
torch, no transformers. Messages come and go as pickles over the socket FD:

    in   (import path, adapter name, adapter options)         once
    out  ("ready", None) or ("failed", traceback)              once
    in   (ticket, slot, "reset", Task) | (ticket, slot, "step", response)
    out  (ticket, Observation | StepResult | None, traceback | None, seconds)
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

PR_SET_PDEATHSIG = 1


def main(fd: int, parent: int) -> None:
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent shuts us down
    connection = Connection(fd)
    try:
        serve(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent has closed its end or is gone


def serve(connection: Connection) -> None:
    """Answer commands until the parent closes the connection (EOFError)."""
    sys.path[:], name, options = connection.recv()
    try:
        from env_adapters.registry import make_adapter

        adapter = make_adapter(name, options)
    except BaseException:
        connection.send(("failed", traceback.format_exc()))
        return
    connection.send(("ready", None))
    environments: dict[int, Any] = {}
    try:
        while True:
            ticket, slot, command, argument = connection.recv()
            start = time.perf_counter()
            try:
                result, error = _play(adapter, environments, slot, command, argument), None
            except (Exception, SystemExit) as fault:
                result, error = None, describe(fault)
                _discard(environments, slot)
            connection.send((ticket, result, error, time.perf_counter() - start))
    finally:
        for environment in environments.values():
            environment.close()


def _play(adapter: Any, environments: dict[int, Any], slot: int, command: str, argument: Any) -> Any:
    from env_adapters.base import Observation, StepResult

    if command == "step":
        result, wanted = environments[slot].step(argument), StepResult
    else:
        if slot not in environments:
            environments[slot] = adapter.make()
        result, wanted = environments[slot].reset(argument), Observation
    if not isinstance(result, wanted):
        raise TypeError(f"{adapter.name}: {command} returned {type(result).__name__}, expected {wanted.__name__}")
    if wanted is StepResult and not (math.isfinite(result.reward) and math.isfinite(result.score)):
        raise ValueError(f"{adapter.name}: reward {result.reward}, score {result.score}; both must be finite numbers")
    return result


def describe(fault: BaseException) -> str:
    """What an environment said: its message where that names its remedy, else the traceback. For use in `except`."""
    from env_adapters.base import EnvironmentFault

    return str(fault) if isinstance(fault, EnvironmentFault) else traceback.format_exc()


def _discard(environments: dict[int, Any], slot: int) -> None:
    """Its state is unknown after an exception: the next reset makes a new one."""
    environment = environments.pop(slot, None)
    if environment is not None:
        with contextlib.suppress(Exception):
            environment.close()


def die_with(parent: int) -> None:
    """Have the kernel kill us with the parent, even in the middle of a step that never returns (Linux)."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return  # elsewhere: we end at the next read from the closed socket
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
