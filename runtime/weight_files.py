"""Safetensors files read by their headers and rewritten as a stream: no tensor is ever whole in memory.

A safetensors file is 8 bytes (length of the header, little-endian), a JSON header that gives each tensor's dtype,
shape and byte range, and the tensors' bytes without gaps.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
COPY_BYTES = 1 << 24
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
FINGERPRINT_BLOCKS = 256  # of each file go into its fingerprint
FINGERPRINT_BLOCK_BYTES = 2**16


class ModelFilesError(Exception):
    """A model folder cannot be used. The message names object, fact and remedy."""


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies in its file; `start` and `end` count bytes from the start of the file.

    Example: TensorEntry(dtype="BF16", shape=(151936, 1536), start=1096, end=466748488)
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def row_bytes(self) -> int:
        return (self.end - self.start) // self.shape[0]


@dataclass(frozen=True)
class WeightFile:
    path: Path
    tensors: Mapping[str, TensorEntry]  # in the order of their bytes
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class RowEdit:
    """What to change of one matrix: its number of rows, what new rows hold, and rows that get other bytes."""

    num_rows: int  # >= the old number: a matrix never shrinks
    fill: bytes  # content of one new row
    rows: Mapping[int, bytes]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ModelFilesError: missing, unreadable, or no object.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        raise ModelFilesError(f"{path}: cannot be read as JSON ({fault}); copy the model again") from fault
    if not isinstance(data, dict):
        raise ModelFilesError(f"{path}: holds a {type(data).__name__}, not a JSON object; copy the model again")
    return data


def read_weight_file(path: Path) -> WeightFile:
    """Header of one safetensors file, checked against the file's size.

    Raises:
        ModelFilesError: missing, torn, truncated, or another format.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
                raise ModelFilesError(f"{path}: truncated or not safetensors ({size} bytes); copy the model again")
            header = json.loads(file.read(length))
        metadata = header.pop("__metadata__", None) or {}
        tensors = {name: _entry(fields, 8 + length) for name, fields in header.items()}
    except OSError as fault:
        raise ModelFilesError(f"{path}: cannot be read ({fault}); copy the model again") from fault
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise ModelFilesError(f"{path}: the safetensors header is damaged ({fault}); copy the model again") from fault
    ordered = dict(sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)))
    position = 8 + length
    for name, entry in ordered.items():
        if entry.start != position or entry.end < entry.start:
            raise ModelFilesError(f"{path}: tensor {name} does not follow the one before it; copy the model again")
        position = entry.end
    if position != size:
        raise ModelFilesError(f"{path}: {size} bytes, its header speaks of {position}: truncated; copy the model again")
    return WeightFile(path, ordered, metadata)


def _entry(fields: Mapping[str, Any], data_start: int) -> TensorEntry:
    (start, end), shape = fields["data_offsets"], tuple(fields["shape"])
    if any(type(n) is not int or n < 0 for n in (start, end, *shape)) or type(fields["dtype"]) is not str:
        raise ValueError(f"dtype {fields['dtype']!r}, shape {shape}, bytes {start} to {end}")
    return TensorEntry(fields["dtype"], shape, data_start + start, data_start + end)


def read_weights(folder: Path) -> list[WeightFile]:
    """Headers of all files that hold the model's weights: the single file, else the shards that the index names.

    Raises:
        ModelFilesError: no weights, pickled weights only, a missing, torn or truncated shard, a tensor that is not
            in the shard that the index names.
    """
    if (folder / SINGLE_FILE).is_file():
        return [read_weight_file(folder / SINGLE_FILE)]
    if not (folder / INDEX_FILE).is_file():
        raise ModelFilesError(_no_weights(folder))
    weight_map = read_json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(n, str) for n in weight_map.values()):
        raise ModelFilesError(f"{folder / INDEX_FILE}: has no weight_map; copy the model again")
    names = sorted(set(weight_map.values()))
    there = {path.name for path in folder.iterdir() if path.is_file()}
    missing = [name for name in names if name not in there]  # a name with a folder in it is not there either
    if missing:
        raise ModelFilesError(f"{folder}: shard {missing[0]} of {INDEX_FILE} is missing; copy the model again")
    files = {name: read_weight_file(folder / name) for name in names}
    for tensor, name in weight_map.items():
        if tensor not in files[name].tensors:
            raise ModelFilesError(f"{folder / name}: lacks tensor {tensor} of the index; copy the model again")
    return list(files.values())


def policy_fingerprint(directory: str | Path) -> str:
    """A short name for the weights of a folder: a hash over evenly spaced blocks of its safetensors files.

    Small files are hashed whole. 16 MiB of each large one are enough to tell versions of a policy apart (every
    optimizer step moves weights everywhere) and cost no more than a moment.

    Raises:
        ModelFilesError: no complete safetensors in the folder.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in (file.path for file in read_weights(Path(directory))):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}:".encode())
        stride = max(FINGERPRINT_BLOCK_BYTES, size // FINGERPRINT_BLOCKS)
        with open(path, "rb") as file:
            for start in range(0, size, stride):
                file.seek(start)
                digest.update(file.read(FINGERPRINT_BLOCK_BYTES))
    return digest.hexdigest()


def _no_weights(folder: Path) -> str:
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        return (
            f"{folder}: only pickled weights ({pickled[0]}), which are not loaded because unpickling runs code; "
            "save the model with save_pretrained as safetensors"
        )
    return f"{folder}: no {SINGLE_FILE} and no {INDEX_FILE}; give a folder with a model's weights"


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link to the file behind `source` where the file system allows one, else a copy."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def rewrite_rows(source: WeightFile, target: Path, edits: Mapping[str, RowEdit]) -> None:
    """Write a copy of a weight file with some matrices edited; everything else byte for byte, in pieces of 16 MiB."""
    header: dict[str, Any] = {"__metadata__": dict(source.metadata)} if source.metadata else {}
    position = 0
    for name, entry in source.tensors.items():
        rows = edits[name].num_rows if name in edits else None
        shape = entry.shape if rows is None else (rows, *entry.shape[1:])
        size = entry.end - entry.start if rows is None else rows * entry.row_bytes
        header[name] = {"dtype": entry.dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)  # the format keeps the tensors aligned to 8 bytes
    with open(source.path, "rb") as reader, open(target, "wb") as writer:
        writer.write(len(text).to_bytes(8, "little") + text)
        for name, entry in source.tensors.items():
            begin = writer.tell()
            for piece in read_pieces(reader, entry):
                writer.write(piece)
            if name in edits:
                _edit_rows(writer, begin, entry, edits[name])


def read_pieces(reader: BinaryIO, entry: TensorEntry, piece_bytes: int = COPY_BYTES) -> Iterator[bytes]:
    """The bytes of a tensor in order, in pieces."""
    reader.seek(entry.start)
    left = entry.end - entry.start
    while left:
        piece = reader.read(min(left, piece_bytes))
        if not piece:
            raise ModelFilesError(f"{reader.name}: ended while it was being copied; copy the model again")
        left -= len(piece)
        yield piece


def _edit_rows(writer: BinaryIO, begin: int, entry: TensorEntry, edit: RowEdit) -> None:
    writer.write(edit.fill * (edit.num_rows - entry.shape[0]))
    end = writer.tell()
    for row, content in edit.rows.items():
        writer.seek(begin + row * entry.row_bytes)
        writer.write(content)
    writer.seek(end)
