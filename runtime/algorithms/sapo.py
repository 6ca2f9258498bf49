"""SAPO (Single-Rollout Autoregressive Policy Optimization, arXiv 2608.19842): Eq. 4-7.

One trajectory a task; V and Q are read from the policy's own logits. Two options leave the paper, for ablations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from runtime.algorithms.base import Algorithm, Episode, Estimates
from runtime.algorithms.normalisation import normalised_targets
from runtime.targets import turn_targets


class SAPO(Algorithm):
    @dataclass(frozen=True)
    class Options:
        advantage: Literal["gae", "q_minus_v"] = "gae"  # the paper's; or Q - V, which it warns of
        normalise: Literal["turns", "tokens"] = "turns"  # statistics of Eq. 7 over turns; or each by its tokens

    def estimate(self, episodes: Sequence[Episode], baselines: Sequence[Episode]) -> Estimates:
        s = self.settings
        parts = [
            turn_targets(one.rewards, one.scores.values, one.scores.q_values, s.gamma, s.gae_lambda) for one in episodes
        ]
        raw = [part.advantages for part in parts]
        if self.options.advantage == "q_minus_v":
            raw = [
                torch.tensor(one.scores.q_values, dtype=torch.float64) - torch.tensor(one.scores.values)
                for one in episodes
            ]
        series = [
            {
                "values": one.scores.values,
                "q_values": one.scores.q_values,
                "returns": tuple(part.returns.tolist()),
                "q_targets": tuple(part.q_targets.tolist()),
            }
            for one, part in zip(episodes, parts, strict=True)
        ]
        return normalised_targets(episodes, raw, series, s, by_token=self.options.normalise == "tokens")
