"""Reserve w+ and w- on a model's files, before any engine exists (SAPO, arXiv 2608.19842, Eq. 1-3).

The head's two rows become zero: both logits are 0 after every context, so V = Q = 0 in the middle of the clip range,
and the gradient of the margin with respect to the rows is the hidden state, which is not zero. (The paper leaves the
initialisation open; zero rows are our choice, others an option.) Only files with a tensor concerned are rewritten, as a
stream.
"""

from __future__ import annotations

import fnmatch
import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime.files import atomic_folder, atomic_write_text
from runtime.model import Policy, check_complete
from runtime.pretrained import empty_causal_lm, load_config, load_tokenizer
from runtime.vocabulary import (
    VALUE_TOKENS_FILE,
    RowChoice,
    ValueTokens,
    choose_rows,
    read_value_tokens,
    write_value_tokens,
)
from runtime.weight_files import (
    INDEX_FILE,
    SINGLE_FILE,
    ModelFilesError,
    RowEdit,
    TensorEntry,
    WeightFile,
    link_or_copy,
    policy_fingerprint,
    read_json,
    read_pieces,
    read_weight_file,
    read_weights,
    rewrite_rows,
)

COMPANIONS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "LICENSE*", "NOTICE*")
JSON_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
NOT_COMPANIONS = (INDEX_FILE, VALUE_TOKENS_FILE, "manifest.json")  # a run's manifest is not the model's
RESERVED_NAME = re.compile(r"<\|reserved_special_token_\d+\|>")
MEAN_BYTES = 1 << 22
RANDOM_STD = 0.02  # of the random rows: the usual deviation of initial weights
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True)
class Reservation:
    """What was done: the record that lies in the folder, the rows, and the bytes that were written anew."""

    tokens: ValueTokens
    kind: str  # "spare", "reserved", "grown", or "kept" where the model had been reserved before
    num_rows: int
    rewritten_bytes: int


def reserve_value_tokens(
    source: Path, target: Path, r_max: float, temperature: float, initial_rows: str = "zero", seed: int = 0
) -> Reservation:
    """Make `target` a copy of the model in `source` in which two vocabulary entries are reserved.

    A model that has been reserved before (a run's export) keeps its ids and its rows. `target` appears whole or not
    at all; an older folder of that name is replaced.

    Args:
        source: a plain transformers folder: safetensors, config.json, tokenizer.
        r_max: bound of the discounted return, reward units.
        temperature: tau_v.
        initial_rows: what the two rows hold: "zero", "mean" (both the mean of all rows) or "random" (normal numbers
            with RANDOM_STD, from `seed`).

    Raises:
        ModelFilesError: the model cannot be used or its files are damaged.
    """
    if not source.is_dir():
        raise ModelFilesError(f"{source}: no such model folder; give the path of a folder with a model's weights")
    if source.resolve() == target.resolve():
        raise ModelFilesError(f"{source}: cannot be reserved in place; name another folder")
    for name in JSON_FILES:
        if (source / name).is_file():
            read_json(source / name)
    files = read_weights(source)
    matrices = _matrices(source, files)
    fingerprint = policy_fingerprint(source)
    tokenizer = load_tokenizer(source)
    if tokenizer.eos_token_id is None:
        raise ModelFilesError(f"{source}: the tokenizer has no eos_token, which ends a turn; name one in its config")
    vocabulary = tokenizer.get_vocab()
    if (source / VALUE_TOKENS_FILE).is_file():
        tokens = _kept_tokens(source, vocabulary, r_max, temperature)
        choice = RowChoice(tokens.positive_id, tokens.negative_id, matrices.num_rows, "kept")
    else:
        choice = choose_rows(matrices.num_rows, vocabulary, _named_ids(source), _removable_ids(source))
        tokens = ValueTokens(choice.positive_id, choice.negative_id, r_max, temperature, fingerprint)
    with atomic_folder(target) as folder:
        rewritten = _write_weights(files, folder, _edits(files, matrices, choice, initial_rows, seed))
        _copy_companions(source, folder)
        _adjust_companions(source, folder, choice, matrices.num_rows)
        write_value_tokens(folder, tokens)
        _check_reserved(folder, tokens, choice, vocabulary)
    return Reservation(tokens, choice.kind, choice.num_rows, rewritten)


@dataclass(frozen=True)
class Matrices:
    """The vocabulary matrices by their names in the files; a tied model's files may hold the head or not."""

    embedding: str
    head: str
    tied: bool
    num_rows: int


def _matrices(source: Path, files: list[WeightFile]) -> Matrices:
    """Find the input embedding and the head; check them, and all other weights, against the config."""
    model, embedding, head = _empty_model(source)
    config = model.config
    entries = {name: entry for file in files for name, entry in file.tensors.items()}
    for name in (embedding,) if config.tie_word_embeddings else (embedding, head):
        if name not in entries:
            raise ModelFilesError(f"{source}: the weights lack {name}; copy the model again")
    for name in {embedding, head} & entries.keys():
        entry = entries[name]
        if entry.dtype not in _DTYPES:
            raise ModelFilesError(f"{source}: {name} is stored as {entry.dtype}; use a model that is not quantised")
        if len(entry.shape) != 2 or entry.shape[0] != config.vocab_size:
            raise ModelFilesError(
                f"{source}: {name} has shape {list(entry.shape)}, config.json says vocab_size {config.vocab_size}; "
                "use the config that belongs to the weights"
            )
    check_complete(model, files, source)
    return Matrices(embedding, head, bool(config.tie_word_embeddings), config.vocab_size)


def _empty_model(source: Path) -> tuple[Any, str, str]:
    """(transformers' own model, built without storage; name of its input embedding; name of its head)."""
    config, model = load_config(source), empty_causal_lm(source)
    if config.get_text_config() is not config or not isinstance(getattr(config, "vocab_size", None), int):
        raise ModelFilesError(
            f"{source}: a {config.model_type} model is not a plain text model; use a model such as Qwen2.5 or Llama"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise ModelFilesError(f"{source}: config.json has a quantization_config; use a model that is not quantised")
    modules = {id(module): name for name, module in model.named_modules()}
    embedding, head = modules[id(model.get_input_embeddings())], modules.get(id(model.get_output_embeddings()))
    Policy(model, ValueTokens(0, 1, 1.0, 1.0, "none"), 1.0)  # refuses a head that the readout cannot use
    return model, f"{embedding}.weight", f"{head}.weight"


def _kept_tokens(source: Path, vocabulary: Mapping[str, int], r_max: float, temperature: float) -> ValueTokens:
    tokens = read_value_tokens(source)
    for key, had, asked in (("r_max", tokens.r_max, r_max), ("temperature", tokens.temperature, temperature)):
        if had != asked:
            raise ModelFilesError(
                f"{source}: its values were trained with {key} {had}, this run has value.{key} {asked}; set "
                f"value.{key}={had}, or delete {VALUE_TOKENS_FILE} there to start the values again from 0"
            )
    made = {tokens.positive_id, tokens.negative_id}.intersection(vocabulary.values())
    if made:
        raise ModelFilesError(f"{source}: its tokenizer produces value token {min(made)}; use the tokenizer of the run")
    return tokens


def _named_ids(source: Path) -> set[int]:
    """Every id that config.json or generation_config.json names (eos_token_id, pad_token_id, ...)."""
    ids: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        if (source / name).is_file():
            for key, value in read_json(source / name).items():
                if key.endswith("_token_id"):
                    ids.update(i for i in (value if isinstance(value, list) else [value]) if type(i) is int)
    return ids


def _removable_ids(source: Path) -> set[int]:
    """Ids of the model's reserved special tokens that nothing names and that can be taken out of tokenizer.json.

    Typing `<|reserved_special_token_0|>` gives the token's id, so a reserved token serves only where it can be
    removed: it must be an added token and no entry of the tokenizer's own model.
    """
    if not (source / "tokenizer.json").is_file():
        return set()
    tokenizer = read_json(source / "tokenizer.json")
    added = [token for token in tokenizer.get("added_tokens") or [] if RESERVED_NAME.fullmatch(token["content"])]
    own = tokenizer["model"].get("vocab", ())
    elsewhere = json.dumps(tokenizer.get("post_processor"))
    for path in _companions(source):
        if path.name in ("tokenizer.json", "added_tokens.json"):
            continue
        if path.name == "tokenizer_config.json":
            elsewhere += json.dumps({k: v for k, v in read_json(path).items() if k != "added_tokens_decoder"})
        else:
            elsewhere += path.read_text("utf-8", errors="replace")
    return {token["id"] for token in added if token["content"] not in own and token["content"] not in elsewhere}


def _edits(
    files: list[WeightFile], matrices: Matrices, choice: RowChoice, initial_rows: str, seed: int
) -> dict[str, RowEdit]:
    """The edit of each matrix concerned. An untied embedding changes only where it grows: its rows are never input."""
    if choice.kind == "kept":
        return {}
    value_ids = (choice.positive_id, choice.negative_id)
    edits = {}
    for file in files:
        for name in {matrices.embedding, matrices.head} & file.tensors.keys():
            entry = file.tensors[name]
            is_head = name == matrices.head or matrices.tied
            rows = initial_value_rows(initial_rows if is_head else "zero", file, entry, seed)
            if choice.kind == "grown" or is_head:
                fill = mean_row(file, entry) if choice.kind == "grown" else b""
                edits[name] = RowEdit(choice.num_rows, fill, dict(zip(value_ids, rows, strict=True)))
    return edits


def initial_value_rows(kind: str, file: WeightFile, entry: TensorEntry, seed: int) -> tuple[bytes, bytes]:
    """The bytes of the rows of w+ and w- in the dtype of a matrix; zero is all bytes 0 in every floating dtype."""
    if kind == "zero":
        return bytes(entry.row_bytes), bytes(entry.row_bytes)
    if kind == "mean":
        return mean_row(file, entry), mean_row(file, entry)
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(2, entry.shape[1], generator=generator) * RANDOM_STD
    positive, negative = (row.to(_DTYPES[entry.dtype]).view(torch.uint8).numpy().tobytes() for row in numbers)
    return positive, negative


def mean_row(file: WeightFile, entry: TensorEntry) -> bytes:
    """The mean of a matrix's rows, in its own dtype: what the rows that only pad a grown matrix hold.

    The logit of such a row is the mean of the logits, so its probability is at most the mean probability 1/V after
    every context (Jensen); a zero row's has no such bound.
    """
    dtype, width = _DTYPES[entry.dtype], entry.shape[1]
    total = torch.zeros(width, dtype=torch.float64)
    piece_bytes = max(1, MEAN_BYTES // entry.row_bytes) * entry.row_bytes
    with open(file.path, "rb") as reader:
        for piece in read_pieces(reader, entry, piece_bytes):
            total += torch.frombuffer(bytearray(piece), dtype=dtype).view(-1, width).sum(0, dtype=torch.float64)
    return (total / entry.shape[0]).to(dtype).view(torch.uint8).numpy().tobytes()


def _write_weights(files: list[WeightFile], folder: Path, edits: Mapping[str, RowEdit]) -> int:
    """Rewrite the files that hold an edited tensor, link or copy the others. Returns the bytes written anew."""
    rewritten = 0
    for file in files:
        target = folder / file.path.name
        own = {name: edit for name, edit in edits.items() if name in file.tensors}
        if own:
            rewrite_rows(file, target, own)
            rewritten += target.stat().st_size
        else:
            link_or_copy(file.path, target)
    return rewritten


def _companions(source: Path) -> list[Path]:
    """What lies beside the weights and belongs to the model: configs, tokenizer, templates, licence."""
    return [
        path
        for path in sorted(source.iterdir())
        if path.is_file()
        and path.name not in NOT_COMPANIONS
        and any(fnmatch.fnmatchcase(path.name, pattern) for pattern in COMPANIONS)
    ]


def _copy_companions(source: Path, folder: Path) -> None:
    for path in _companions(source):
        shutil.copyfile(path, folder / path.name)
    if (source / "additional_chat_templates").is_dir():
        shutil.copytree(source / "additional_chat_templates", folder / "additional_chat_templates")


def _adjust_companions(source: Path, folder: Path, choice: RowChoice, old_rows: int) -> None:
    """Make index, config and tokenizer agree with the new matrices."""
    if choice.num_rows != old_rows:
        _edit_json(folder / "config.json", {"vocab_size": choice.num_rows})
    if not (source / SINGLE_FILE).is_file():
        index = read_json(source / INDEX_FILE)
        names = sorted(set(index["weight_map"].values()))
        entries = [entry for name in names for entry in read_weight_file(folder / name).tensors.values()]
        metadata = dict(index.get("metadata") or {})
        metadata["total_size"] = sum(entry.end - entry.start for entry in entries)
        if "total_parameters" in metadata:
            metadata["total_parameters"] = sum(math.prod(entry.shape) for entry in entries)
        _write_json(folder / INDEX_FILE, {**index, "metadata": metadata})
    if choice.kind == "reserved":
        _remove_added_tokens(folder, {choice.positive_id, choice.negative_id})


def _remove_added_tokens(folder: Path, ids: set[int]) -> None:
    """Take added tokens out of the tokenizer's files: their text is then split into ordinary pieces."""
    data = read_json(folder / "tokenizer.json")
    _edit_json(folder / "tokenizer.json", {"added_tokens": [t for t in data["added_tokens"] if t["id"] not in ids]})
    decoder = read_json(folder / "tokenizer_config.json").get("added_tokens_decoder")
    if decoder is not None:
        kept = {key: token for key, token in decoder.items() if int(key) not in ids}
        _edit_json(folder / "tokenizer_config.json", {"added_tokens_decoder": kept})
    if (folder / "added_tokens.json").is_file():
        added = read_json(folder / "added_tokens.json")
        _write_json(folder / "added_tokens.json", {text: i for text, i in added.items() if i not in ids})


def _check_reserved(folder: Path, tokens: ValueTokens, choice: RowChoice, before: Mapping[str, int]) -> None:
    """Read the folder back: rows, config and tokenizer agree, no text gives a value token, no other id has moved."""
    ids = {tokens.positive_id, tokens.negative_id}
    rows = _matrices(folder, read_weights(folder)).num_rows
    after = load_tokenizer(folder).get_vocab()
    if rows != choice.num_rows or ids.intersection(after.values()) or read_value_tokens(folder) != tokens:
        raise ModelFilesError(f"{folder}: the files written do not agree about the value tokens {sorted(ids)}")
    if after != {text: i for text, i in before.items() if i not in ids}:
        raise ModelFilesError(f"{folder}: the tokenizer gives other ids than before; use another copy of the tokenizer")


def _edit_json(path: Path, fields: Mapping[str, Any]) -> None:
    _write_json(path, {**read_json(path), **fields})


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    atomic_write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
