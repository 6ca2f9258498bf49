"""What an engine checkpoint says of itself, and what is copied beside exported weights. No torch, no deepspeed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

STATE_SCHEMA = 1
STATE_TAG = "state"  # DeepSpeed's subfolder of an engine checkpoint
UNIVERSAL_TAG = "universal"
STATE_RECORD = "engine.json"
STATE_FACTS = {"world_size", "zero_stage", "dtype", "num_updates", "skipped_steps", "files"}
WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")
REMEDY = "delete this iteration's checkpoint folder and start again from the one before"


class EngineError(Exception):
    """The engine cannot be built, loaded or saved. The message names object, fact and remedy."""


def write_state_record(folder: Path, **facts: Any) -> None:
    """Write engine.json: the facts, and the size of every file in `folder`."""
    files = {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
    record = {"schema": STATE_SCHEMA, **facts, "files": files}
    (folder / STATE_RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def read_state_record(folder: Path) -> dict[str, Any]:
    """Read engine.json and check that every file it names is there in full.

    Raises:
        EngineError: missing, unreadable, of another schema, or a file is missing or truncated.
    """
    folder = Path(folder)
    try:
        record = json.loads((folder / STATE_RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise EngineError(f"{folder}: no engine checkpoint ({fault}); {REMEDY}") from fault
    if not isinstance(record, dict) or record.get("schema") != STATE_SCHEMA:
        raise EngineError(f"{folder}: an engine checkpoint of another version; use the version that wrote it")
    lacks = sorted(STATE_FACTS - record.keys())
    if lacks or not isinstance(record["files"], dict):
        raise EngineError(f"{folder}: {STATE_RECORD} lacks {', '.join(lacks) or 'a list of files'}; {REMEDY}")
    for name, size in record["files"].items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} bytes"
            raise EngineError(f"{path}: {state}, {size} bytes were written; {REMEDY}")
    return record


def check_state_record(record: dict[str, Any], folder: Path, **expected: Any) -> None:
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
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"]
    command += ["--input_folder", str(folder / STATE_TAG), "--output_folder", str(converted / UNIVERSAL_TAG)]
    command += ["--num_extract_workers", "1", "--num_merge_workers", "1"]
    if zero_stage < 3:
        command.append("--inject_missing_state")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if result.returncode == 0 else (result.stderr.strip().splitlines() or ["no message"])[-1]
