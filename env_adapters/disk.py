"""What adapters that keep a cache on disk share."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Held by one process at a time, others wait; the system frees it when the process dies."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def flush_to_disk(path: Path) -> None:
    """fsync of one file or of a folder's list of names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_inside(name: str) -> bool:
    """Whether a relative path that was read from a file stays below the folder it belongs to."""
    return bool(name) and not name.startswith("/") and "\0" not in name and ".." not in name.split("/")
