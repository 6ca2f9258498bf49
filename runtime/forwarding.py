"""Sends the lines of metrics.jsonl on to Weights & Biases or to Trackio, from a process of its own.

Training never waits for a service: it appends to metrics.jsonl as always, and this process reads that file. What it
imports, hangs in or dies of stays with it. How many lines have gone out is kept in <service>.json beside that file, so
a run that goes on continues where it was; `python -m runtime.forwarding wandb runs/X` sends what is left of one that
has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from runtime.errors import append_error
from runtime.files import atomic_write_text
from runtime.metrics import read_metrics

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "sapo"  # where WANDB_PROJECT or TRACKIO_PROJECT does not say otherwise
POLL_S = 1.0
PATIENCE_S = 20.0  # how long the end of a run waits for a service
PARTS = ("stage", "iteration")  # of a line, beside its metrics


@dataclass(frozen=True)
class Service:
    """An open connection. `place` is where the numbers can be seen, for people."""

    send: Callable[[int, Mapping[str, float]], None]  # iteration, metrics
    finish: Callable[[], None]
    place: str


@dataclass
class Sent:
    """What a service has of a run: <service>.json."""

    id: str  # of the run there
    lines: int = 0  # of metrics.jsonl


class Forwarder:
    """The forwarding process, as the run sees it. Nothing but `close` waits, and that not for long."""

    def __init__(self, service: str, run_dir: Path) -> None:
        command = [sys.executable, "-m", "runtime.forwarding", service, str(Path(run_dir).resolve()), "--follow"]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        except OSError as fault:
            print(f"warning: {service}: its process cannot be started ({fault}); training goes on", file=sys.stderr)

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """Let the last lines go out. A service that does not take them in time is left alone, the lines are kept."""
        if self._process is None:
            return
        self._process.stdin.close()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(argv: list[str] | None = None) -> None:
    """The forwarding process. Ends at once where the service fails: some hang in their own tidying up."""
    parser = argparse.ArgumentParser(prog="python -m runtime.forwarding", description=__doc__, allow_abbrev=False)
    parser.add_argument("service", choices=sorted(SERVICES))
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--follow", action="store_true", help="go on until the standard input ends")
    arguments = parser.parse_args(argv)
    if arguments.follow:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, whose end ends our input
    terminal = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
    code = 0
    try:
        with open(arguments.run_dir / f"{arguments.service}.log", "a") as log:  # what the library says goes there
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        forward(arguments.service, arguments.run_dir, arguments.follow, lambda text: print(text, file=terminal))
    except Exception as fault:
        code = 1
        message = f"{arguments.service}: {explain(fault, arguments.service)}; the numbers are in metrics.jsonl, and "
        message += f"`python -m runtime.forwarding {arguments.service} {arguments.run_dir}` sends them later"
        print(f"warning: {message}", file=terminal)
        with contextlib.suppress(OSError):
            append_error(
                arguments.run_dir / "errors.jsonl", "logging", 0, 0, type(fault).__name__, message, stopped=False
            )
    for stream in (sys.stdout, terminal):  # nothing else empties their buffers
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def explain(fault: Exception, service: str) -> str:
    """Why a service gave up, in one line."""
    if isinstance(fault, ModuleNotFoundError):
        return f"{fault.name} is not installed (pip install {service})"
    return " ".join(f"{type(fault).__name__}: {fault}".split())[:300]


def forward(service: str, run_dir: Path, follow: bool, say: Callable[[str], None]) -> None:
    """Send the lines that the service does not have yet; with `follow` also those to come, until stdin ends.

    Raises:
        whatever the service raises.
    """
    memory = run_dir / f"{service}.json"
    sent = read_sent(memory)
    connection = SERVICES[service](run_dir, sent.id, read_settings(run_dir / "config.yaml"))
    say(f"{service}: {connection.place}")
    more = True
    while more:
        more = follow and not input_ended(POLL_S)
        lines = read_metrics(run_dir / "metrics.jsonl")[sent.lines :]  # after the end of the input, the last ones
        for line in lines:
            numbers = {name: value for name, value in line.items() if name not in PARTS and is_number(value)}
            numbers[f"time/{line['stage']}_s"] = numbers.pop("seconds", 0.0)
            connection.send(line["iteration"], numbers)
        if lines:
            sent.lines += len(lines)
            atomic_write_text(memory, json.dumps(asdict(sent)) + "\n")
    connection.finish()


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def input_ended(timeout_s: float) -> bool:
    """Wait for the end of the standard input; whether it has come. Nobody writes to it: the run holds it open."""
    ready, _, _ = select.select([0], [], [], timeout_s)
    return bool(ready) and os.read(0, 1) == b""


def read_sent(path: Path) -> Sent:
    """What went out before; a new name where nothing did."""
    try:
        return Sent(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return Sent(id=secrets.token_hex(4))


def read_settings(path: Path) -> dict[str, Any]:
    """config.yaml, for the service to show."""
    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError):
        return {}


def open_wandb(run_dir: Path, identity: str, settings: Mapping[str, Any]) -> Service:
    """Weights & Biases, with the user's own login and WANDB_* variables; without a login into files of the run."""
    import wandb

    options = {
        "project": os.environ.get("WANDB_PROJECT", PROJECT), "name": run_dir.name, "id": identity, "resume": "allow",
        "dir": str(run_dir), "config": dict(settings),
    }  # fmt: skip
    try:
        run = wandb.init(**options)
    except wandb.errors.UsageError:  # no API key
        run = wandb.init(**options, mode="offline")
    run.define_metric("iteration")
    run.define_metric("*", step_metric="iteration")  # its own steps would have to grow, and a late evaluation's do not
    offline = f"offline in {run.dir}; `wandb sync` sends it"
    return Service(lambda iteration, line: run.log({"iteration": iteration, **line}), run.finish, run.url or offline)


def open_trackio(run_dir: Path, identity: str, settings: Mapping[str, Any]) -> Service:
    """Trackio: a local database, or the Space that TRACKIO_SPACE_ID names."""
    import trackio

    project = os.environ.get("TRACKIO_PROJECT", PROJECT)
    name = f"{run_dir.name}-{identity}"  # a name is all that tells runs apart there
    run = trackio.init(project=project, name=name, config=dict(settings), resume="allow", embed=False)
    place = os.environ.get("TRACKIO_SPACE_ID") or f'`trackio show --project "{project}"` shows it'
    return Service(lambda iteration, line: run.log(dict(line), step=iteration), run.finish, f"{name}, {place}")


SERVICES = {"wandb": open_wandb, "trackio": open_trackio}


if __name__ == "__main__":
    main()
