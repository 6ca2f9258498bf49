"""GRPO (arXiv 2402.03300): N trajectories a task, each against its group's mean, no critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from runtime.algorithms.base import Algorithm, Episode, Estimates, Settings, by_task
from runtime.algorithms.normalisation import plain_targets
from runtime.estimators import group_advantages, same, turn_scores


class GRPO(Algorithm):
    @dataclass(frozen=True)
    class Options:
        group_size: int = 8  # N, trajectories a task (published 8)
        use_std: bool = True  # divide by the group's standard deviation (False: Dr. GRPO, arXiv 2503.20783)
        # what weighs the same in the loss: each trajectory, or each token
        mean: Literal["trajectory", "token"] = "trajectory"

        def __post_init__(self) -> None:
            if self.group_size < 2:
                raise ValueError(
                    f"group_size = {self.group_size}: must be >= 2, a trajectory alone has no group to compare with"
                )

    def __init__(self, options: Any, settings: Settings) -> None:
        super().__init__(options, settings)
        self.samples = options.group_size

    def estimate(self, episodes: Sequence[Episode], baselines: Sequence[Episode]) -> Estimates:
        groups = {task: group for task, group in by_task(episodes).items() if len(group) > 1}  # others lost to errors
        advantages = {}
        for group in groups.values():
            for one, own in zip(group, self.advantages(group), strict=True):
                advantages[one.trajectory.key] = own
        flat = sum(same(map(self.total, group)) for group in groups.values())
        metrics = {"advantage/groups": float(len(groups)), "advantage/groups_without_variance": float(flat)}
        return plain_targets(episodes, advantages, metrics, by_trajectory=self.options.mean == "trajectory")

    def total(self, one: Episode) -> float:
        """The return that trajectories of a group are compared by."""
        return one.total

    def advantages(self, group: Sequence[Episode]) -> list[torch.Tensor]:
        """Of each trajectory's turns, float64 [K_i] each."""
        s = self.settings
        totals = [self.total(one) for one in group]
        scores = [turn_scores(total, one.invalid, s.c_inv) for total, one in zip(totals, group, strict=True)]
        return group_advantages(totals, scores, use_std=self.options.use_std, unit=s.r_max, epsilon=s.epsilon)
