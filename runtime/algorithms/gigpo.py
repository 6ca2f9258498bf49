"""GiGPO (arXiv 2505.10978): GRPO's groups of trajectories, plus groups of turns at which the agent saw the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from runtime.algorithms.base import Episode
from runtime.algorithms.grpo import GRPO
from runtime.estimators import anchor_advantages, discounted_returns


class GiGPO(GRPO):
    @dataclass(frozen=True)
    class Options:
        group_size: int = 8  # N, trajectories a task (published 8)
        use_std: bool = True  # divide by the groups' standard deviations, of both levels
        mean: Literal["trajectory", "token"] = "token"  # each token weighs the same in the loss; or each trajectory
        step_weight: float = 1.0  # omega, of the turn level (published 1)

        def __post_init__(self) -> None:
            GRPO.Options.__post_init__(self)
            if self.step_weight < 0:
                raise ValueError(f"step_weight = {self.step_weight}: must be >= 0")

    def advantages(self, group: Sequence[Episode]) -> list[torch.Tensor]:
        """A = A^trajectory + omega A^turn; a turn's anchor is the observation that it began with."""
        s = self.settings
        of_turns = anchor_advantages(
            [[turn.observation for turn in one.trajectory.turns] for one in group],
            [discounted_returns(one.rewards, s.gamma) for one in group],
            use_std=self.options.use_std,
            unit=s.r_max,
            epsilon=s.epsilon,
        )
        whole = super().advantages(group)
        return [a + self.options.step_weight * b for a, b in zip(whole, of_turns, strict=True)]
