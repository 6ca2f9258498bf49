"""An algorithm of a user's own in one module: `--algorithm tests.own_algorithm:WinsOnly`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from runtime.algorithms.base import Algorithm, Episode, Estimates
from runtime.algorithms.normalisation import plain_targets


class WinsOnly(Algorithm):
    """Filtered behaviour cloning: the turns of an episode that was won are made likelier, all others are left out."""

    @dataclass(frozen=True)
    class Options:
        bonus: float = 0.0  # added to the advantage of the turn that won

    def estimate(self, episodes: Sequence[Episode], baselines: Sequence[Episode]) -> Estimates:
        advantages = {}
        for one in episodes:
            if one.total > 0:
                advantages[one.trajectory.key] = torch.ones(len(one.rewards), dtype=torch.float64)
                advantages[one.trajectory.key][-1] += self.options.bonus
        return plain_targets(episodes, advantages, {"advantage/won": float(len(advantages))})
