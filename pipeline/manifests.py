"""A stage's manifest: what it read, what it wrote, what came out. Written last; a stage is complete when it is there.

Example (shortened):
    {"format": 1, "stage": "collect_rollouts", "iteration": 3, "config": "c555f06e22931b82",
     "inputs": {"policy": "9f2c..."}, "outputs": {"rank-00000.jsonl": {"bytes": 81234, "sha256": "77ab..."}},
     "counts": {"trajectories": 64}, "metrics": {"rollout/success": 0.41}, "seconds": {"total": 3.2, ...},
     "cpu_s": 3.1, "peak_memory_mib": {"cpu": 812.0, "cuda": 0.0}, "ranks": 1, "versions": {...}, "removed": []}
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import resource
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from pipeline import VERSION
from pipeline.run_directory import EXPORT, RunError, RunPaths, redo
from runtime.files import atomic_write_text, is_inside, remove_tree, sha256

FORMAT = 1
NAME = "manifest.json"
ENGINE = "engine/"  # twelve bytes a parameter, read by no other stage: no hash, but the checksums that torch writes
CRITIC_ENGINE = "critic_engine/"
ENGINES = (ENGINE, CRITIC_ENGINE)
POLICY = "policy/"
CRITIC = "critic/"


class Output(TypedDict):
    """A file that a stage has written."""

    bytes: int
    sha256: str | None  # None for archives of engine state
    members: NotRequired[str]  # of these: hash of the names, sizes and checksums inside


@dataclass(frozen=True)
class Manifest:
    stage: str
    iteration: int
    config: str  # fingerprint of the settings that may not change
    inputs: Mapping[str, str]  # name -> digest of what was read (`digest` of the manifest that made it)
    outputs: Mapping[str, Output]  # by path below the folder
    counts: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)  # "total" and the stage's own parts
    cpu_s: float | None = None  # of all ranks, their environment workers included; None: a version that did not count
    peak_memory_mib: Mapping[str, float] = field(default_factory=dict)  # of the highest rank's process until then
    ranks: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)  # `Adapter.description()`: data, grammar, hashes
    removed: tuple[str, ...] = ()  # folders that retention took away ("engine/", "policy/")
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """Hash of the content that later stages read: names and hashes of the outputs, without the engine's state."""
        names = {name: entry["sha256"] for name, entry in self.outputs.items() if not name.startswith(ENGINES)}
        return hashlib.sha256(json.dumps(names, sort_keys=True).encode()).hexdigest()[:16]


def describe_outputs(folder: Path) -> dict[str, Output]:
    """Size and hash of every file below a stage's folder, but for the manifest and temporaries."""
    names = {path: path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    files = sorted(path for path, name in names.items() if name != NAME and ".tmp-" not in name)
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        entries = pool.map(lambda path: _describe(path, names[path]), files)
        return dict(entries)


def _describe(path: Path, name: str) -> tuple[str, Output]:
    size = path.stat().st_size
    if name.startswith(ENGINES) and zipfile.is_zipfile(path):
        return name, {"bytes": size, "sha256": None, "members": hash_of_members(path)}
    return name, {"bytes": size, "sha256": sha256(path)}


def hash_of_members(path: Path) -> str:
    """A hash of a zip archive that reads its table of contents alone: every member's name, size and CRC-32."""
    with zipfile.ZipFile(path) as archive:
        members = [(member.filename, member.file_size, member.CRC) for member in archive.infolist()]
    return hashlib.sha256(json.dumps(members).encode()).hexdigest()


def check_outputs(manifest: Manifest, folder: Path, prefix: str | tuple[str, ...] = "", hashes: bool = False) -> None:
    """Check that the files which a manifest lists are there, whole and unchanged.

    Args:
        prefix: check only names that start with it (or with one of them).
        hashes: read the files and compare hashes too, not only sizes.

    Raises:
        RunError: names the first file that differs and the remedy.
    """
    remedy = redo(manifest.stage, folder)
    for name, entry in manifest.outputs.items():
        if not name.startswith(prefix) or name.startswith(manifest.removed):
            continue
        path = folder / name
        if not path.is_file():
            raise RunError(f"{path}: missing, though the manifest of {manifest.stage} lists it; {remedy}")
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise RunError(f"{path}: {size} bytes, its manifest says {entry['bytes']}; {remedy}")
        if hashes and not is_unchanged(path, entry):
            raise RunError(f"{path}: its content is not what its manifest says; {remedy}")


def is_unchanged(path: Path, entry: Output) -> bool:
    """Whether a file has its hash. Engine state has none, but torch saves zip archives, which hold checksums."""
    if entry["sha256"] is not None:
        return sha256(path) == entry["sha256"]
    try:
        if not zipfile.is_zipfile(path):
            return "members" not in entry  # a manifest of an earlier version: whoever loads the file finds out
        if entry.get("members", hash_of_members(path)) != hash_of_members(path):
            return False
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, RuntimeError, ValueError, OverflowError):
        return False  # damaged names, offsets, flags and methods each end in another error


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write it, whole or not at all. Metrics that are not finite are left out: JSON has no such numbers."""
    metrics = {name: value for name, value in manifest.metrics.items() if math.isfinite(value)}
    content = {**asdict(manifest), "metrics": metrics}
    atomic_write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_manifest(path: Path, stage: str = "") -> Manifest | None:
    """The manifest (of `stage`), or None where there is none.

    Raises:
        RunError: it is unreadable, of another format, or names a file outside its folder.
    """
    remedy = f"use the version that wrote it, or {redo(stage, path.parent)}"
    try:
        data = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IsADirectoryError) as fault:
        raise RunError(f"{path}: not a manifest ({fault}); {remedy}") from fault
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else None
        raise RunError(f"{path}: manifest format {found!r}, this version reads {FORMAT}; {remedy}")
    unknown = data.keys() - {item.name for item in fields(Manifest)}
    try:
        manifest = msgspec.convert(data, Manifest)
    except msgspec.ValidationError as fault:
        raise RunError(f"{path}: not a manifest ({fault}); {remedy}") from fault
    if unknown:
        raise RunError(f"{path}: not a manifest (it has {min(unknown)!r}, which none has); {remedy}")
    outside = [name for name in (*manifest.outputs, *manifest.removed) if not is_inside(name)]
    if outside:
        raise RunError(f"{path}: lists {outside[0]!r}, which is not below its folder; {remedy}")
    return manifest


def stage_names(paths: RunPaths) -> list[tuple[str, int]]:
    """(stage, iteration) of all that has a folder in a run, complete or not, whatever the configuration wants."""
    names = [("reserve_vocab", 0), ("warm_start", 0), (EXPORT, 0)]
    for folder in _numbered(paths.root / "iterations"):
        names += [("collect_rollouts", folder), ("compute_advantages", folder)]
    names += [("optimize", folder) for folder in _numbered(paths.root / "checkpoints") if folder > 0]
    names += [("evaluate", folder) for folder in _numbered(paths.root / "evaluations")]
    return names


def read_manifests(paths: RunPaths) -> dict[tuple[str, int], Manifest]:
    """Every manifest of a run, by (stage, iteration)."""
    found = {name: read_manifest(paths.manifest(*name), name[0]) for name in stage_names(paths)}
    return {name: manifest for name, manifest in found.items() if manifest is not None}


def _numbered(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal() and path.is_dir())


def versions() -> dict[str, str]:
    """What made the files: python, the packages that decide numbers, and ours."""
    found = {"python": platform.python_version(), "pipeline": VERSION}
    for package in ("torch", "transformers", "deepspeed"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    with contextlib.suppress(metadata.PackageNotFoundError):  # decides numbers where it generates
        found["vllm"] = metadata.version("vllm")
    return found


def peak_memory_mib(cuda_bytes: int = 0) -> dict[str, float]:
    """The highest resident memory of this process so far, and the accelerator's as given."""
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux
    return {"cpu": round(rss / 1024, 1), "cuda": round(cuda_bytes / 2**20, 1)}


def retained(newest: int, keep_last: int, keep_every: int, present: Iterable[int]) -> dict[int, set[str]]:
    """Which parts of which checkpoints stay.

    The newest `keep_last` keep weights and engine state, every `keep_every`-th its weights, and policy 0
    (the reference of the KL term and the start of the comparison) its weights for ever.

    Returns:
        For each checkpoint in `present`: the subset of {"policy/", "engine/"} that is kept. A critic stays as long as
        the engine's state.
    """
    kept = {}
    for iteration in present:
        if iteration > newest - keep_last:
            kept[iteration] = {POLICY, ENGINE}
        elif iteration == 0 or (keep_every and iteration % keep_every == 0):
            kept[iteration] = {POLICY}
        else:
            kept[iteration] = set()
    return kept


def apply_retention(
    paths: RunPaths, manifests: Mapping[tuple[str, int], Manifest], keep_last: int, keep_every: int
) -> dict[tuple[str, int], Manifest]:
    """Remove what `retained` does not keep of the complete checkpoints; returns the manifests that changed.

    The manifest is told first and the folder is renamed before it is removed, so that a kill at any
    moment leaves no half folder that looks whole. The manifests stay: they say what has been done.
    """
    names = {iteration: (stage, iteration) for stage, iteration in manifests if stage in ("warm_start", "optimize")}
    if not names:
        return {}
    changed = {}
    for iteration, kept in retained(max(names), keep_last, keep_every, names).items():
        name, folder = names[iteration], paths.checkpoint(iteration)
        manifest = manifests[name]
        gone = {POLICY, ENGINE} - kept | set(manifest.removed)
        if ENGINE in gone and any(name.startswith(CRITIC) for name in manifest.outputs):
            gone |= {CRITIC, CRITIC_ENGINE}
        gone = tuple(sorted(gone))
        if gone != manifest.removed:
            changed[name] = replace(manifest, removed=gone)
            write_manifest(changed[name], folder / NAME)
        for part in gone:
            remove_tree(folder / part)
    return changed
