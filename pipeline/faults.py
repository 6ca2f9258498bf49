"""Which failures get one line, and how a process of a run ends on one."""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path

from pipeline.run_directory import append_error
from runtime.distributed import CollectiveError

OUR_PACKAGES = ("pipeline", "stages", "runtime", "env_adapters")
USER_FAULT = 2  # exit code of a failure that names its remedy
DEFECT = 1
FIRST_WORD_S = 5.0


def names_its_remedy(fault: BaseException) -> bool:
    """Whether a failure is one of this project's own exceptions (or derived from one, as third-party adapters' are).

    Those are raised on purpose and their message names object, fact and remedy; anything else is a defect
    and shows its traceback.
    """
    ours = [kind for kind in type(fault).__mro__ if kind.__module__.partition(".")[0] in OUR_PACKAGES]
    return bool(ours)


def end_on(fault: BaseException, errors: Path | None, stage: str, iteration: int, rank: int = 0) -> int:
    """Say what went wrong on stderr and in errors.jsonl; returns the exit code.

    Ranks often fail together for one reason: the others give rank 0 some seconds to speak first, and a rank
    that only misses another gives that one the same. The end of the first makes the launcher end the others.
    """
    if rank > 0 or isinstance(fault, CollectiveError):
        time.sleep(FIRST_WORD_S)
    if errors is not None and errors.parent.is_dir():
        append_error(errors, stage, iteration, rank, fault)
    where = f"rank {rank}: " if rank > 0 else ""
    if names_its_remedy(fault):
        print(f"error: {where}{fault}", file=sys.stderr, flush=True)
        return USER_FAULT
    print(f"{where}defect in {stage} {iteration}:\n{''.join(traceback.format_exception(fault))}", file=sys.stderr)
    sys.stderr.flush()
    return DEFECT


def leave_process(code: int, world_size: int) -> None:
    """End this process. With peers at once: tidying up would wait for a process group that has lost a rank."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code and world_size > 1:
        os._exit(code)
    sys.exit(code)
