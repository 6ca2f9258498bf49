"""`python -m pipeline.inspect runs/X [command]`: look at a run. Nothing is changed, and the run may be going on."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys

from rich.console import Console

from pipeline.command_line import Flags
from pipeline.config import ConfigError, did_you_mean
from pipeline.inspect.faults import FAULTS, USER_FAULT
from pipeline.inspect.reading import Run, open_run
from pipeline.inspect.terminal import make_console, printable

PROGRAM = "python -m pipeline.inspect"
COMMANDS = {  # name -> module of this package with add_arguments(parser) and run(run, arguments, console) -> exit code
    "overview": "overview",
    "trajectories": "table",
    "show": "transcript",
    "verify": "verify",
    "replay": "replay",
}
EPILOG = """commands (each has its own --help):
  overview      the run at a glance (the default): success, evaluations, time, disk, the last errors
  trajectories  a table of episodes: filtered, sorted, as a table, jsonl or csv
  show          one episode as a transcript with V, Q, advantages; --diff: beside another one
  verify        check every shard, manifest and checkpoint, and name what is wrong
  replay        play recorded actions on the real environment again and compare

examples:
  python -m pipeline.inspect runs/X
  python -m pipeline.inspect runs/X trajectories --iteration 12 --failed --task-type heat --sort value_drop
  python -m pipeline.inspect runs/X show 12:heat-000031 --diff 40
"""


def main(argv: list[str] | None = None, console: Console | None = None) -> int:
    """Do one command; returns the exit code."""
    try:
        return _main(sys.argv[1:] if argv is None else argv, console or make_console())
    except FAULTS as fault:
        print(f"error: {printable(str(fault))}", file=sys.stderr)
        return USER_FAULT


def _main(argv: list[str], console: Console) -> int:
    parser = Flags(prog=PROGRAM, description=__doc__, epilog=EPILOG,
                   formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)  # fmt: skip
    parser.add_argument("run_dir", help="a run directory that `bash run.sh` made, or a copy of one")
    parser.add_argument("command", nargs="?", default="overview", help="what to look at; see below")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    name = arguments.command
    if name not in COMMANDS:
        raise ConfigError(f"unknown command {name}{did_you_mean(name, COMMANDS)}; there are {', '.join(COMMANDS)}")
    module = importlib.import_module(f"pipeline.inspect.{COMMANDS[name]}")
    own = Flags(prog=f"{PROGRAM} RUN_DIR {name}", description=module.__doc__, allow_abbrev=False)
    module.add_arguments(own)
    rest = own.parse_args(arguments.rest)
    run = open_run(arguments.run_dir)
    code = module.run(run, rest, console)
    if name != "verify":  # which prints it itself
        _warn(run, shown=name == "overview")
    return code


def _warn(run: Run, shown: bool) -> None:
    """What could not be read belongs on stderr: stdout may be data."""
    if run.damage and not shown:
        first = printable(run.damage[0], 300)
        print(f"warning: {len(run.damage)} damaged places were left out, the first: {first}", file=sys.stderr)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it silently
    sys.exit(main())
