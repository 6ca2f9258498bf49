"""Which failures get one line, and how a process of a run ends on one."""

from __future__ import annotations

import errno
import os
import sys
import time
import traceback
from pathlib import Path

import torch

from runtime.distributed import CollectiveError
from runtime.errors import append_error

OUR_PACKAGES = ("pipeline", "stages", "runtime", "env_adapters")
USER_FAULT = 2  # exit code of a failure that names its remedy
DEFECT = 1
FIRST_WORD_S = 5.0
LONGEST_LINE = 1500  # characters; of a longer one the end stays too, where the remedy stands

IN_THE_WAY = "a file is where a folder should be: move it, or choose another --run-dir"
NOT_OURS = "make it writable, or choose another place, such as another --run-dir"
DISK_FULL = "free some disk, then start the same command again"
MACHINE_FAULTS = {  # what the operating system says no to, and what to do about it
    errno.ENOSPC: DISK_FULL,
    errno.EDQUOT: DISK_FULL,
    errno.EROFS: NOT_OURS,
    errno.EACCES: NOT_OURS,
    errno.EPERM: NOT_OURS,
    errno.EEXIST: IN_THE_WAY,
    errno.ENOTDIR: IN_THE_WAY,
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "raise the limit of open files (ulimit -n), then start the same command again",
    errno.EIO: "check the disk (dmesg), then start the same command again",
}
SMALLER = "lower optimize.microbatch_tokens, advantage.score_tokens or rollout.slots, or take a smaller model"
# Libraries that write or allocate for us put these texts into exceptions of their own.
FULL_TEXTS = ("No space left on device", "PytorchStreamWriter failed", "iostream error", "inline_container.cc")
MEMORY_TEXTS = ("can't allocate memory", "not enough memory", "Unable to allocate")


def one_line(fault: BaseException) -> str | None:
    """What to tell the user of a failure: object, fact and remedy; None for a defect, which shows its traceback.

    This project's own exceptions (or those derived from one, as third-party adapters' are) are raised on purpose and
    say all three. What the machine refuses (disk, rights, memory) gets its remedy here.
    """
    message = _message(fault)
    return None if message is None else printable(message)


def printable(text: str) -> str:
    """A text as one line of bounded length for any terminal: it may quote what a damaged file holds."""
    line = " ".join(text.split()) if not text.isprintable() else text
    line = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line)
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE * 2 // 3]} ... {line[-LONGEST_LINE // 4 :]}"


def _message(fault: BaseException) -> str | None:
    if any(kind.__module__.partition(".")[0] in OUR_PACKAGES for kind in type(fault).__mro__):
        return str(fault)
    text = " ".join(str(fault).split())
    if isinstance(fault, OSError) and fault.errno in MACHINE_FAULTS:
        return f"{fault.filename2 or fault.filename or 'the disk'}: {fault.strerror}; {MACHINE_FAULTS[fault.errno]}"
    if any(sign in text for sign in FULL_TEXTS):
        return f"the disk is full or cannot be written ({text[:200]}); {DISK_FULL}"
    out_of_memory = isinstance(fault, MemoryError | torch.OutOfMemoryError)
    if out_of_memory or any(sign in text for sign in MEMORY_TEXTS):
        return f"out of memory ({text[:200]}); {SMALLER}"
    return None


def names_its_remedy(fault: BaseException) -> bool:
    """Whether a failure gets one line."""
    return one_line(fault) is not None


def end_on(fault: BaseException, errors: Path | None, stage: str, iteration: int) -> int:
    """Say what went wrong on stderr and in errors.jsonl; returns the exit code.

    Ranks often fail together for one reason: the others give rank 0 some seconds to speak first, and a rank
    that only misses another gives that one the same. The end of the first makes the launcher end the others.
    """
    rank = int(os.environ.get("RANK", "0"))  # known also where the ranks could not be joined
    if rank > 0 or isinstance(fault, CollectiveError):
        time.sleep(FIRST_WORD_S)
    message, lines = one_line(fault), "".join(traceback.format_exception(fault))
    if errors is not None and errors.parent.is_dir():
        try:
            append_error(errors, stage, iteration, rank, type(fault).__name__, message or str(fault), lines=lines)
        except OSError:
            pass  # a disk that cannot be written is often the fault itself; stderr has it
    where = f"rank {rank}: " if rank > 0 else ""
    if message is not None:
        print(f"error: {where}{message}", file=sys.stderr, flush=True)
        return USER_FAULT
    print(f"{where}defect in {stage} {iteration}:\n{lines}", file=sys.stderr)
    sys.stderr.flush()
    return DEFECT


def leave_process(code: int) -> None:
    """End this process. With peers at once: tidying up would wait for a process group that has lost a rank."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        os._exit(code)
    sys.exit(code)
