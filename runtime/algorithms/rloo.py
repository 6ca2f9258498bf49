"""RLOO (arXiv 2402.14740): N trajectories a task, each against the mean of the others, in units of r_max."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from runtime.algorithms.base import Episode
from runtime.algorithms.grpo import GRPO
from runtime.estimators import leave_one_out_advantages, turn_scores


class RLOO(GRPO):
    @dataclass(frozen=True)
    class Options:
        group_size: int = 8  # N, trajectories a task
        mean: Literal["trajectory", "token"] = "token"  # each token weighs the same in the loss; or each trajectory

        __post_init__ = GRPO.Options.__post_init__

    def advantages(self, group: Sequence[Episode]) -> list[torch.Tensor]:
        scores = [turn_scores(one.total, one.invalid, self.settings.c_inv) for one in group]
        return leave_one_out_advantages(scores, self.settings.r_max)
