"""Optimizer steps that were not applied because a loss or a gradient was not finite: noted, and limited in a row."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from runtime.engine import TrainingEngine
from runtime.records import Row
from stages.context import Context


class SkippedStepsError(Exception):
    """Too many optimizer steps in a row were not applied. The message names object, fact and remedy."""


def note_skipped_step(context: Context, engine: TrainingEngine, rows: Sequence[Row]) -> None:
    """Write down what an optimizer step that was not applied was about; every rank calls it.

    Adds a line to skipped_steps.jsonl: {"time": ..., "iteration": 3, "updates": 41 (before it), "in_row": 1,
    "turns": {"train/heat-000017#0": [0, 2]}}.

    Args:
        rows: the whole minibatch, of all ranks.

    Raises:
        SkippedStepsError: it is the last one in a row that `optimize.max_skipped_steps` allows.
    """
    path, limit = context.paths.skipped_steps, context.config.optimize.max_skipped_steps
    if context.distributed.is_main:
        turns: dict[str, list[int]] = {}
        for row in rows:
            turns.setdefault(row.key, []).append(row.turn_index)
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "iteration": context.iteration,
            "updates": engine.num_updates,
            "in_row": engine.skipped_in_row,
            "turns": {key: sorted(indices) for key, indices in sorted(turns.items())},
        }
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    if engine.skipped_in_row >= limit:
        raise SkippedStepsError(
            f"{path}: {engine.skipped_in_row} optimizer steps in a row had a loss or a gradient that is not finite; "
            "their turns are listed there, and the policy before this iteration is intact; start a new run with a "
            "lower learning rate, or go on past them with --set optimize.max_skipped_steps=<more>"
        )
