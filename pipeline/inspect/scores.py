"""What the scoring pass said of one trajectory's tokens, and the tokens as text; without torch or transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.inspect.reading import Run
from runtime.records import Trajectory
from runtime.weight_files import ModelFilesError, WeightFile, read_weight_file

SCORES_PATTERN = "scores-*.safetensors"
FLOAT = np.dtype("<f4")  # what scores are stored as


@dataclass(frozen=True)
class TurnScores:
    """Of one turn's response: one number a token, in the order of response_ids."""

    old_logprobs: tuple[float, ...]
    ref_logprobs: tuple[float, ...] | None  # None: the run has no KL term
    entropies: tuple[float, ...] | None  # None: a run of a version that did not keep them


def turn_scores(run: Run, trajectory: Trajectory) -> list[TurnScores] | None:
    """The scores of a trajectory of `run.trajectories`, by turn; None where there are none that fit."""
    lengths = [len(turn.response_ids) for turn in trajectory.turns]
    for path in sorted(run.paths.advantages(trajectory.iteration).glob(SCORES_PATTERN)):
        try:
            file = read_weight_file(path)
            contents = json.loads(file.metadata["contents"])
            if trajectory.key not in contents["keys"]:
                continue
            index = contents["keys"].index(trajectory.key)
            start, count = sum(contents["num_tokens"][:index]), contents["num_tokens"][index]
            if count != sum(lengths):
                return None
            series = [read_floats(file, name, start, count) for name in ("old_logprobs", "ref_logprobs", "entropies")]
        except (ModelFilesError, OSError, ValueError, KeyError, TypeError) as fault:
            run.damage.append(f"{path}: damaged scores ({fault})")
            continue
        ends = np.cumsum([0, *lengths])
        parts = [[None] * len(lengths) if one is None else _cut(one, ends) for one in series]
        return [TurnScores(*one) for one in zip(*parts, strict=True)]
    return None


def read_floats(file: WeightFile, name: str, start: int, count: int) -> np.ndarray | None:
    """`count` numbers of a flat float32 tensor from `start` on; None where the file has no such tensor."""
    entry = file.tensors.get(name)
    if entry is None:
        return None
    if entry.dtype != "F32" or (start + count) * FLOAT.itemsize > entry.end - entry.start:
        raise ValueError(f"{name}: {entry.dtype} {entry.shape} has no elements {start} to {start + count}")
    with open(file.path, "rb") as opened:
        opened.seek(entry.start + start * FLOAT.itemsize)
        return np.frombuffer(opened.read(count * FLOAT.itemsize), FLOAT)


def _cut(numbers: np.ndarray, ends: np.ndarray) -> list[tuple[float, ...]]:
    return [tuple(numbers[a:b].tolist()) for a, b in zip(ends, ends[1:], strict=False)]


class TokenTexts:
    """Ids as text, where the `tokenizers` package and the run's tokenizer are there; else as numbers."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = None
        try:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        except Exception:  # not installed, no such file, or one it cannot read: it raises plain Exceptions
            pass

    @property
    def known(self) -> bool:
        """Whether ids can be told as text."""
        return self._tokenizer is not None

    def each(self, ids: Sequence[int]) -> list[str]:
        """The text that each token adds. A character of several tokens shows as one mark a token."""
        if self._tokenizer is None:
            return [f"<{i}>" for i in ids]
        texts, before = [], ""
        for end in range(1, len(ids) + 1):
            whole = self._tokenizer.decode(list(ids[:end]), skip_special_tokens=False)
            texts.append(whole[len(before) :] if whole.startswith(before) else self.all(ids[end - 1 : end]))
            before = whole
        return texts

    def all(self, ids: Sequence[int]) -> str:
        """The text of all tokens."""
        if self._tokenizer is None:
            return " ".join(f"<{i}>" for i in ids)
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)
