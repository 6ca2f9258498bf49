"""Success on held-out tasks, as evaluate wrote it: one `Sweep` for each split and temperature of each evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.inspect.reading import Run


@dataclass(frozen=True)
class Rate:
    """A share of successes with Wilson's 95 % interval, over `n` episodes.

    Example: Rate(success=0.5, low=0.24, high=0.76, n=10)
    """

    success: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Sweep:
    """What a policy reached on one split at one temperature."""

    iteration: int
    split: str
    temperature: float
    whole: Rate
    types: dict[str, Rate]  # by task type


def read_sweeps(run: Run) -> list[Sweep]:
    """All sweeps in which an episode could be judged, by iteration. Results of another form go to `run.damage`."""
    found = []
    for iteration, results in run.evaluations().items():
        for data in results["sweeps"]:
            try:
                whole, types = rate(data["all"]), {str(kind): rate(row) for kind, row in data["types"].items()}
                if whole is not None:
                    known = {kind: one for kind, one in types.items() if one is not None}
                    found.append(Sweep(iteration, str(data["split"]), float(data["temperature"]), whole, known))
            except (KeyError, TypeError, ValueError, AttributeError):
                run.damage.append(f"{run.paths.evaluation(iteration) / 'results.json'}: not results of an evaluation")
    return found


def rate(row: Mapping[str, Any]) -> Rate | None:
    """A line of results.json; None where no episode could be judged."""
    if row["success"] is None:
        return None
    return Rate(float(row["success"]), float(row["success_low"]), float(row["success_high"]), int(row["n"]))


def first_and_last(sweeps: Sequence[Sweep]) -> list[tuple[Sweep, Sweep | None]]:
    """Of each split, at the temperature that comes first in its results, the first sweep and the last where there
    are two."""
    by_split: dict[str, list[Sweep]] = {}
    for one in sweeps:
        own = by_split.setdefault(one.split, [])
        if not own or own[0].temperature == one.temperature:
            own.append(one)
    return [(own[0], own[-1] if len(own) > 1 else None) for own in by_split.values()]
