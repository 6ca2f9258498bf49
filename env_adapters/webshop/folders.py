"""Folders that are there whole or not at all: filled under a temporary name, manifest last, then renamed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from env_adapters.base import EnvironmentFault
from env_adapters.disk import flush_to_disk, locked

MANIFEST = "manifest.json"


def build_folder(target: Path, is_ready: Callable[[], bool], fill: Callable[[Path], Mapping[str, Any]]) -> None:
    """Make `target` unless it is ready. Two callers at once wait for each other; a killed one leaves no half folder.

    Args:
        is_ready: whether `target` as it is will do; asked again once this caller has the lock.
        fill: writes files into the (empty, temporary) folder it is given and returns what the manifest shall say.
            The sizes of the files are added under "files".

    Raises:
        EnvironmentFault: the disk does not take it.
    """
    if is_ready():
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent / f".{target.name}.lock"):
            if not is_ready():
                _make(target, fill)
    except OSError as error:
        raise EnvironmentFault(f"{target}: cannot be written ({error}); free space or set env.cache_dir") from error


def _make(target: Path, fill: Callable[[Path], Mapping[str, Any]]) -> None:
    temporary, old = (target.with_name(f".{target.name}.{kind}") for kind in ("tmp", "old"))
    for left_over in (temporary, old):  # of a killed caller: nobody else is here
        shutil.rmtree(left_over, ignore_errors=True)
    temporary.mkdir()
    try:
        facts = fill(temporary)
        files = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
        (temporary / MANIFEST).write_text(json.dumps({**facts, "files": files}, indent=1), encoding="utf-8")
        for path in temporary.iterdir():
            flush_to_disk(path)
        if target.exists():
            os.replace(target, old)  # whoever has it open keeps what is mapped
        os.replace(temporary, target)
        flush_to_disk(target.parent)
    finally:
        for left_over in (temporary, old):
            shutil.rmtree(left_over, ignore_errors=True)


def read_manifest(folder: Path, version: int, **facts: type) -> dict[str, Any] | None:
    """The manifest of a folder whose files have the sizes it lists, else None.

    Args:
        version: the manifest's "format", else None.
        facts: what else it must hold, each of which type.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        whole = all((folder / name).stat().st_size == size for name, size in manifest["files"].items())
        whole &= manifest["format"] == version and all(type(manifest[name]) is kind for name, kind in facts.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return manifest if whole else None


def mapped(folder: Path, name: str) -> np.ndarray:
    """The array of `name`.npy, mapped: pages are read as they are needed, and shared. Never a pickle.

    Raises:
        EnvironmentFault: it is no such file.
    """
    path = folder / f"{name}.npy"
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy reads a damaged header with Python's own tokenizer
        reason = f"{type(error).__name__}: {error}"[:100]
        raise EnvironmentFault(f"{path}: damaged ({reason}); delete that folder and prepare again") from error
