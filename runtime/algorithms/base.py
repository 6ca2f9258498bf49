"""What an algorithm decides, and what the stages give it. A stage knows no algorithm by name.

An algorithm says which episodes are played in an iteration (`next_sweep`), what the advantages are (`estimate`), and
whether a critic is trained besides the policy (`critic`). It is one small module with one class of the base below.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from env_adapters.base import Task
from runtime.records import Scores, Targets, Trajectory
from runtime.rollouts import Play

BASELINES = "baseline-"  # prefix of shards whose trajectories are not trained


@dataclass(frozen=True)
class Settings:
    """The numbers that all algorithms share; rewards and c_inv in reward units."""

    gamma: float
    gae_lambda: float
    c_inv: float
    epsilon: float
    min_std: float
    r_max: float
    response_tokens: int  # longest response


@dataclass(frozen=True)
class SweepPlan:
    """Episodes that are played together."""

    plays: tuple[Play, ...]
    prefix: str = ""  # of the shards: "" or BASELINES
    greedy: bool = False  # temperature 0 instead of the rollout's
    may_hold: frozenset[str] = frozenset()  # keys that a later sweep may have put into the same shards


@dataclass(frozen=True)
class Episode:
    """A finished trajectory as an estimator sees it."""

    trajectory: Trajectory
    rewards: tuple[float, ...]  # [K], scaled
    scores: Scores | None = None  # of the policy that sampled; None for what is not trained

    @property
    def total(self) -> float:
        """The undiscounted return."""
        return sum(self.rewards)

    @property
    def invalid(self) -> list[bool]:
        return [not turn.valid for turn in self.trajectory.turns]

    @property
    def lengths(self) -> list[int]:
        """Response tokens of each turn."""
        return [len(turn.response_ids) for turn in self.trajectory.turns]


@dataclass(frozen=True)
class Estimates:
    """The targets of what is trained, in the order of the episodes, and metrics of their making."""

    targets: list[Targets]
    metrics: dict[str, float] = field(default_factory=dict)


class Algorithm(ABC):
    """The base: one trajectory a task, no group, no critic. Targets with `q_targets` train V and Q of the policy."""

    @dataclass(frozen=True)
    class Options:
        """None."""

    critic: ClassVar[bool] = False  # a second model of the policy's size gives the values
    clip_high: float | None = None  # in place of optimize.clip_high
    critic_learning_rate: float = 0.0  # 0: that of the policy
    samples: int = 1  # trajectories a task

    def __init__(self, options: Any, settings: Settings) -> None:
        self.options, self.settings = options, settings

    def next_sweep(
        self, tasks: Sequence[Task], played: Sequence[Sequence[Trajectory]], more: Callable[[int], list[Task]]
    ) -> SweepPlan | None:
        """What to play next in an iteration, or None. A function of its arguments, so that a resumed stage goes on.

        Args:
            tasks: of the iteration.
            played: the trajectories of the sweeps before, errors included.
            more: n -> n further tasks (fewer where the split has no more), always the same ones first.
        """
        del more
        return None if played else SweepPlan(tuple(Play(task, n) for task in tasks for n in range(self.samples)))

    def select(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Those of the played trajectories that are scored and trained."""
        return [one for one in trajectories if one.status != "error"]

    @abstractmethod
    def estimate(self, episodes: Sequence[Episode], baselines: Sequence[Episode]) -> Estimates:
        """The advantages (and targets of values) of the selected episodes.

        Args:
            baselines: what was played under the prefix BASELINES, without scores and without errors.
        """


def by_task(episodes: Sequence[Episode]) -> Mapping[str, list[Episode]]:
    """The groups: episodes of the same task, in their order."""
    groups: dict[str, list[Episode]] = {}
    for one in episodes:
        groups.setdefault(one.trajectory.task_id, []).append(one)
    return groups
