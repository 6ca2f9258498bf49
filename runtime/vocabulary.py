"""The two value tokens w+ and w- of SAPO (arXiv 2608.19842, Eq. 1, 2): which ids they are, and their record on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from runtime.files import atomic_write_text
from runtime.weight_files import ModelFilesError, read_json

VALUE_TOKENS_FILE = "value_tokens.json"
ROW_MULTIPLE = 64  # matrices with such row counts divide well over ranks and GPU tiles


@dataclass(frozen=True)
class ValueTokens:
    """The reserved entries and the readout they were reserved for; lies beside the weights of every policy of a run.

    Example:
        ValueTokens(positive_id=151665, negative_id=151666, r_max=10.0, temperature=1.0, fingerprint="8c1e…")
    """

    positive_id: int  # w+
    negative_id: int  # w-
    r_max: float  # reward units: V = r_max * p
    temperature: float  # tau_v
    fingerprint: str  # of the weights on which the ids were reserved; the policies trained from them keep it


@dataclass(frozen=True)
class RowChoice:
    """Which rows become w+ and w-, and how many rows the matrix then has."""

    positive_id: int
    negative_id: int
    num_rows: int
    kind: str  # "spare", "reserved" or "grown"


def write_value_tokens(folder: str | Path, tokens: ValueTokens) -> None:
    """Write `value_tokens.json` into a model folder."""
    atomic_write_text(Path(folder) / VALUE_TOKENS_FILE, json.dumps(asdict(tokens), indent=2) + "\n")


def read_value_tokens(folder: str | Path) -> ValueTokens:
    """The record of a model folder, checked in itself and against the config beside it.

    Raises:
        ModelFilesError: missing, unreadable, wrong fields or values, ids beyond the config's vocabulary.
    """
    path = Path(folder) / VALUE_TOKENS_FILE
    if not path.is_file():
        raise ModelFilesError(f"{folder}: no {VALUE_TOKENS_FILE}; run stages/reserve_vocab.py on the model first")
    data = read_json(path)
    try:
        tokens = ValueTokens(**data)
    except TypeError as fault:
        raise ModelFilesError(f"{path}: not a record of value tokens ({fault}); reserve the model again") from fault
    ids = (tokens.positive_id, tokens.negative_id)
    reals = (tokens.r_max, tokens.temperature)
    if not all(type(i) is int and i >= 0 for i in ids) or ids[0] == ids[1]:
        raise ModelFilesError(f"{path}: positive_id and negative_id must be two different ids, found {ids}")
    if not all(type(x) in (int, float) and math.isfinite(x) and x > 0 for x in reals):
        raise ModelFilesError(f"{path}: r_max and temperature must be numbers > 0, found {reals}")
    if type(tokens.fingerprint) is not str or not tokens.fingerprint:
        raise ModelFilesError(f"{path}: fingerprint must be a text, found {tokens.fingerprint!r}")
    rows = read_json(Path(folder) / "config.json").get("vocab_size")
    if type(rows) is int and max(ids) >= rows:
        raise ModelFilesError(f"{path}: id {max(ids)}, but config.json has vocab_size {rows}; reserve the model again")
    return tokens


def choose_rows(
    num_rows: int, vocabulary: Mapping[str, int], named_ids: Collection[int], reserved: Collection[int]
) -> RowChoice:
    """Pick the rows of w+ and w-: spare rows, else the model's own reserved tokens, else new rows. Never shrinks.

    Args:
        num_rows: rows of the embedding matrix.
        vocabulary: the tokenizer's texts and ids, added tokens included.
        named_ids: ids that the configs name (eos, pad, ...): taken even where the tokenizer lacks them.
        reserved: ids of unused reserved special tokens that can be taken out of the tokenizer.

    Example (Qwen2.5-1.5B): 151,936 rows, tokenizer ids 0..151,664: w+ = 151665, w- = 151666, no row is added.
    Example (full SmolLM2): 49,152 rows and ids: w+ = 49152, w- = 49153, 49154 rows up to 49,216 = 64 * 769.

    Raises:
        ModelFilesError: the tokenizer has ids beyond the matrix.
    """
    first_free = max(vocabulary.values(), default=-1) + 1
    if first_free > num_rows:
        raise ModelFilesError(
            f"the tokenizer has id {first_free - 1}, the embedding matrix {num_rows} rows; "
            "use the tokenizer that belongs to the model"
        )
    spare = [i for i in range(first_free, num_rows) if i not in named_ids][:2]
    if len(spare) == 2:
        return RowChoice(spare[0], spare[1], num_rows, "spare")
    last = sorted(i for i in reserved if i not in named_ids)[-2:]
    if last == [first_free - 2, first_free - 1]:  # taking out others would move the ids behind them
        return RowChoice(last[0], last[1], num_rows, "reserved")
    rows = -(-(num_rows + 2) // ROW_MULTIPLE) * ROW_MULTIPLE
    return RowChoice(num_rows, num_rows + 1, rows, "grown")
