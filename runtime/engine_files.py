"""What an engine checkpoint says of itself, and what is copied beside exported weights. No torch, no deepspeed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from runtime.files import is_inside

STATE_SCHEMA = 1
STATE_TAG = "state"  # DeepSpeed's subfolder of an engine checkpoint
UNIVERSAL_TAG = "universal"
STATE_RECORD = "engine.json"
WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")
REMEDY = "delete this iteration's checkpoint folder and start again from the one before"


ROOT = Path(__file__).resolve().parents[1]
CONVERTER = """
import runpy
from runtime.engine import only_weights
with only_weights():
    runpy.run_module("deepspeed.checkpoint.ds_to_universal", run_name="__main__")
"""


class EngineError(Exception):
    """The engine cannot be built, loaded or saved. The message names object, fact and remedy."""


class StateRecord(TypedDict):
    """engine.json."""

    schema: int
    world_size: int
    zero_stage: int
    dtype: str
    num_updates: int
    skipped_steps: int
    skipped_in_row: NotRequired[int]  # older checkpoints lack it
    client_state: NotRequired[dict[str, Any]]
    files: dict[str, int]  # path below the folder -> bytes


def write_state_record(folder: Path, **facts: Any) -> None:
    """Write engine.json: the facts, and the size of every file in `folder`."""
    files = {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
    record = {"schema": STATE_SCHEMA, **facts, "files": files}
    (folder / STATE_RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def read_state_record(folder: Path) -> StateRecord:
    """Read engine.json and check that every file it names is there in full.

    Raises:
        EngineError: missing, unreadable, of another schema, or a file is missing, truncated, or not in the folder.
    """
    folder = Path(folder)
    try:
        record = msgspec.json.decode((folder / STATE_RECORD).read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise EngineError(f"{folder}: no engine checkpoint ({fault}); {REMEDY}") from fault
    if not isinstance(record, dict) or record.get("schema") != STATE_SCHEMA:
        raise EngineError(f"{folder}: an engine checkpoint of another version; use the version that wrote it")
    try:
        record = msgspec.convert(record, StateRecord)
    except msgspec.ValidationError as fault:
        raise EngineError(f"{folder}: {STATE_RECORD} is damaged ({fault}); {REMEDY}") from fault
    for name, size in record["files"].items():
        if not is_inside(name):
            raise EngineError(f"{folder}: {STATE_RECORD} lists {name!r}, which is not below that folder; {REMEDY}")
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} bytes"
            raise EngineError(f"{path}: {state}, {size} bytes were written; {REMEDY}")
    return record


def check_state_record(record: Mapping[str, Any], folder: Path, **expected: Any) -> None:
    """Refuse a checkpoint that was written with other settings than the running ones.

    Raises:
        EngineError: names the setting, what was written and what is asked for.
    """
    for key, value in expected.items():
        if record[key] != value:
            raise EngineError(f"{folder}: written with {key} {record[key]}, asked for {value}; use {record[key]}")


def copy_companions(source: Path, target: Path) -> None:
    """Copy what lies beside the weights (tokenizer, generation config, value_tokens.json) and is not there yet."""
    for path in sorted(Path(source).iterdir()):
        ours = path.name.endswith(WEIGHT_SUFFIXES) or path.name == "manifest.json"  # of a run, not of the model
        if path.is_file() and not ours and not (target / path.name).exists():
            shutil.copyfile(path, target / path.name)


def convert_to_universal(folder: Path, converted: Path, zero_stage: int) -> str | None:
    """Convert an engine checkpoint to DeepSpeed's universal format, which any number of ranks can load.

    Runs in a process of its own because the converter forks workers and prints. Returns the fault, or None.
    """
    shutil.rmtree(converted, ignore_errors=True)
    command = [sys.executable, "-c", CONVERTER]
    command += ["--input_folder", str(folder.absolute() / STATE_TAG)]
    command += ["--output_folder", str(converted.absolute() / UNIVERSAL_TAG)]
    command += ["--num_extract_workers", "1", "--num_merge_workers", "1"]
    if zero_stage < 3:
        command.append("--inject_missing_state")
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return None if result.returncode == 0 else (result.stderr.strip().splitlines() or ["no message"])[-1]
