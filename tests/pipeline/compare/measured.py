"""Runs that were never played, with numbers small enough to reckon with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.compare.measuring import Costs, Evaluation, Measured, Outcomes

TYPES = ("heat", "heat", "cool", "cool")
TASKS = tuple(f"near/{kind}-{number}" for number, kind in enumerate(TYPES))
STAGES = {
    "collect_rollouts": {"times": 2, "cpu_s": 3.0, "peak_memory_gib": 0.5, "total": 4.0, "generation_s": 2.0,
                         "environment_wait_s": 1.0},
    "compute_advantages": {"times": 2, "cpu_s": 1.0, "peak_memory_gib": 0.75, "total": 2.0, "old_logprobs_s": 1.5},
    "optimize": {"times": 2, "cpu_s": 2.0, "peak_memory_gib": 1.5, "total": 3.0, "steps_s": 2.5},
    "evaluate": {"times": 3, "cpu_s": 9.0, "peak_memory_gib": 2.0, "total": 9.0},
}  # fmt: skip


def make(
    variant: str = "sapo",
    seed: int = 0,
    success: Sequence[float | None] = (0.0, 0.5, 1.0),
    won: str = "1100",
    wall_s: Sequence[float] = (4.0, 5.0),
    split: str = "near",
    settings: Mapping[str, object] = {},  # noqa: B006 - never changed
    start: str = "",
) -> Measured:
    """A run of two iterations: its success before, between and after, and which of four tasks it won at the end."""
    evaluations = [
        Evaluation(i, split, 4, value, value, 8.0 - i, {} if value is None else {"heat": value, "cool": value / 2})
        for i, value in enumerate(success)
    ]
    return Measured(
        variant=variant,
        seed=seed,
        iterations=len(wall_s),
        settings={"env.name": "corridor", "run.seed": seed, "optimize.q_coef": 0.5, **settings},
        environment={"engine": "corridor 1"},
        start=start or f"weights {seed}",
        evaluations=tuple(evaluations),
        outcomes={split: Outcomes(TASKS, TYPES, won)},
        costs=Costs((10,) * len(wall_s), (100,) * len(wall_s), (500,) * len(wall_s), tuple(wall_s), tuple(wall_s)),
        stages=STAGES,
    )
