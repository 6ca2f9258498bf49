"""PPO (arXiv 1707.06347) with a critic of the policy's size: GAE over turns, or over response tokens.

The value of a turn is the critic's at the last token of its prompt; of a token, at the token before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from runtime.algorithms.base import Algorithm, Episode, Estimates, Settings
from runtime.algorithms.normalisation import normalised_targets, normalised_token_targets
from runtime.estimators import token_gae
from runtime.targets import plus, turn_advantages


class PPO(Algorithm):
    critic = True

    @dataclass(frozen=True)
    class Options:
        credit: Literal["turn", "token"] = "turn"  # what a step of GAE is
        critic_learning_rate: float = 0.0  # of the critic; 0: that of the policy

        def __post_init__(self) -> None:
            if self.critic_learning_rate < 0:
                raise ValueError(f"critic_learning_rate = {self.critic_learning_rate}: must be >= 0")

    def __init__(self, options: Any, settings: Settings) -> None:
        super().__init__(options, settings)
        self.critic_learning_rate = options.critic_learning_rate

    def estimate(self, episodes: Sequence[Episode], baselines: Sequence[Episode]) -> Estimates:
        parts = [self._credit(one) for one in episodes]
        raw = [advantages for advantages, _ in parts]
        series = [own for _, own in parts]
        if self.options.credit == "token":
            return normalised_token_targets(episodes, raw, series, self.settings)
        return normalised_targets(episodes, raw, series, self.settings)

    def _credit(self, one: Episode) -> tuple[torch.Tensor, dict[str, Any]]:
        """Raw advantages of an episode, and its series of values and returns."""
        s, before = self.settings, one.scores.critic_values
        firsts = [sum(one.lengths[:turn]) for turn in range(len(one.lengths))]
        values = tuple(before[first] for first in firsts)
        if self.options.credit == "turn":
            advantages = turn_advantages(one.rewards, values, s.gamma, s.gae_lambda)
            return advantages, {"values": values, "returns": plus(values, advantages)}
        advantages = token_gae(one.rewards, one.lengths, before, s.gamma, s.gae_lambda)
        returns = plus(before, advantages)
        series = {"token_values": before, "token_returns": returns, "values": values}
        return advantages, {**series, "returns": tuple(returns[first] for first in firsts)}
