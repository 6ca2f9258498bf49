"""Files that are either whole or absent: written under a temporary name, flushed to disk, then renamed.

A temporary is a sibling named `.<name>.tmp-<pid>-<random>`; whatever a killed process leaves behind is
found by that pattern and removed by `remove_leftovers`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CHUNK_BYTES = 1 << 20
GIB = 1 << 30


def temporary_name(path: Path) -> Path:
    """The sibling under which `path` is written before it is renamed."""
    return path.with_name(f".{path.name}.tmp-{os.getpid()}-{uuid.uuid4().hex[:8]}")


def flush_to_disk(path: Path) -> None:
    """fsync of one file or of a folder's list of names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path to write a file to; it gets the name `path` when the block ends without an error.

    A reader sees the old file or the whole new one. The parent folder is made where it is missing. An
    error inside the block leaves `path` as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        yield temporary
        flush_to_disk(temporary)
        os.replace(temporary, path)
        flush_to_disk(path.parent)
    finally:
        with suppress(OSError):  # what is left over goes at the next start; the first error counts
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Like `atomic_path` for a whole folder; an older folder of that name is replaced.

    Between the two renames of a replacement there is a moment without any folder, never one with a mixture.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            flush_to_disk(file)
        remove_tree(path)
        os.replace(temporary, path)
        flush_to_disk(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def atomic_write_bytes(path: str | Path, data: bytes) -> None:
    """Write a whole file, or leave the old one."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def atomic_write_text(path: str | Path, text: str) -> None:
    """Write a whole file as UTF-8, or leave the old one."""
    atomic_write_bytes(path, text.encode("utf-8"))


def remove_tree(path: str | Path) -> None:
    """Remove a folder by renaming it first: a kill in the middle leaves no half folder under its name."""
    path = Path(path)
    if not path.exists():
        return
    doomed = temporary_name(path)
    os.replace(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(root: str | Path) -> list[Path]:
    """Remove the temporaries that killed processes left below `root`; returns what was removed.

    Only for the owner of the run's lock: a living process may own a temporary.
    """
    leftovers = sorted(Path(root).rglob(".*.tmp-*"))
    for path in leftovers:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return leftovers


def is_inside(name: str) -> bool:
    """Whether a relative path that was read from a file stays below the folder it belongs to.

    Example: is_inside("policy/model.safetensors"), but not "../x", "/x", "a/../../x", "" or what holds a NUL.
    """
    return bool(name) and not name.startswith("/") and "\0" not in name and ".." not in name.split("/")


def sha256(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file's content, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def free_gib(path: str | Path) -> float:
    """Free space in GiB on the disk that holds `path`, or would hold it once it is made."""
    path = Path(path).absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free / GIB


def gib(size: float) -> str:
    """Bytes for people. Example: 3221225472 -> 3.00 GiB; small sizes in MiB."""
    return f"{size / GIB:.2f} GiB" if size >= GIB // 10 else f"{size / 2**20:.1f} MiB"


def in_one_line(fault: BaseException) -> str:
    """What a library said, as one line of bounded length. Example: `KeyError: 'model'`"""
    return " ".join(f"{type(fault).__name__}: {fault}".split())[:200]
