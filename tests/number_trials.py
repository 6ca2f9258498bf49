"""What tests/stages/test_skipped_steps.py starts: numbers that are not finite, in the real engine, on one rank.

`number_trials.py ROOT` reads the run ROOT/tied and writes ROOT/numbers.json.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from runtime.distributed import leave
from runtime.engine import EngineError, init_distributed
from runtime.records import Row
from stages import optimize
from stages.context import Resident
from stages.skipped_steps import SkippedStepsError
from tests.engine_trials import copy_run
from tests.training_run import context, settings

read_rows = optimize.read_rows


def trained(paths, distributed, harm: Callable[[int, Row], Row], iterations=(1,), **limits: int) -> dict:
    """Train with rows that are harmed on their way, an engine of its own an iteration; what came of it."""
    results, message = [], ""
    optimize.read_rows = lambda one: [harm(index, row) for index, row in enumerate(read_rows(one))]
    for iteration in iterations:
        one = context(paths, settings(**limits), iteration, distributed, Resident())
        try:
            results.append(optimize.run(one))
        except SkippedStepsError as fault:
            message = str(fault)
        one.resident.engine.close()
    optimize.read_rows = read_rows
    there = {number: (paths.engine(number) / "engine.json").exists() for number in iterations}
    return {
        "counts": [dict(result.counts) for result in results],
        "metrics": [dict(result.metrics) for result in results],
        "message": message,
        "engines": [number for number, saved in there.items() if saved],
    }


def poisoned(value: float, places: range | tuple[int, ...]) -> Callable[[int, Row], Row]:
    return lambda index, row: replace(row, advantages=(value,) * len(row.advantages)) if index in places else row


class Code:
    """Unpickled in full, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return Path.touch, (self.marker,)


def loaded_code(root: Path, distributed) -> dict:
    """A checkpoint into whose optimizer state someone has put code, which is to be loaded for iteration 2."""
    paths = copy_run(root, "later", "code", distributed)
    folder = paths.engine(1)
    file = next(folder.rglob("*optim_states.pt"))
    state = torch.load(file, weights_only=False)
    torch.save({**state, "extra": Code(root / "marker")}, file)
    record = json.loads((folder / "engine.json").read_text())
    record["files"][file.relative_to(folder).as_posix()] = file.stat().st_size
    (folder / "engine.json").write_text(json.dumps(record))
    try:
        optimize.run(context(paths, settings(), 2, distributed, Resident()))
    except EngineError as fault:
        return {"message": str(fault), "ran": (root / "marker").exists()}
    return {"message": "", "ran": (root / "marker").exists()}


def main(root: Path) -> None:
    distributed = init_distributed(60.0)
    found = {}
    for name, value in (("nan", math.nan), ("inf", math.inf)):
        paths = copy_run(root, "tied", name, distributed)
        found[name] = trained(paths, distributed, poisoned(value, (0,)))
    every = range(1000)
    found["all"] = trained(
        copy_run(root, "tied", "all", distributed), distributed, poisoned(math.nan, every), max_skipped_steps=2
    )
    found["later"] = trained(  # two steps, then one of an engine that was loaded: 2 + 1 in a row
        copy_run(root, "tied", "later", distributed), distributed, poisoned(math.nan, every), (1, 2),
        max_skipped_steps=3,
    )  # fmt: skip
    found["far"] = trained(  # ratios of exp(+-200): old log-probs 200 off, half of them each way
        copy_run(root, "tied", "far", distributed),
        distributed,
        lambda index, row: replace(row, old_logprobs=tuple(x + 200 * (-1) ** index for x in row.old_logprobs)),
    )
    found["code"] = loaded_code(root, distributed)
    (root / "numbers.json").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
