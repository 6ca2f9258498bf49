"""Eq. 4-7 of SAPO (arXiv 2608.19842) once more, as loops over plain numbers: what `verify` compares targets with.

Shares nothing with runtime/targets.py, so that a mistake there is not repeated here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

SERIES = ("raw_advantages", "returns", "q_targets")


def turn_targets(
    rewards: Sequence[float], values: Sequence[float], q_values: Sequence[float], gamma: float, gae_lambda: float
) -> tuple[list[float], list[float], list[float]]:
    """Advantages (Eq. 4, 5), returns and SARSA targets (Eq. 6) of one trajectory, which ends after its last turn.

    Example: rewards 0, 1; V 0.5, 0.8; Q 0.4, 0.7; gamma 0.9, lambda 0.5. Backwards: A_1 = 1 - 0.8 = 0.2, A_0 =
    0.9 * 0.8 - 0.5 + 0.45 * 0.2 = 0.31; returns 0.81, 1; Q targets 0.9 * 0.7 = 0.63, 1.
    """
    advantages = [0.0] * len(rewards)
    q_targets = list(rewards)
    following = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        last = t == len(rewards) - 1
        delta = rewards[t] + (0.0 if last else gamma * values[t + 1]) - values[t]
        following = delta + (0.0 if last else gamma * gae_lambda * following)
        advantages[t] = following
        q_targets[t] += 0.0 if last else gamma * q_values[t + 1]
    return advantages, [v + a for v, a in zip(values, advantages, strict=True)], q_targets


def normalised(
    advantages: Sequence[float], valid: Sequence[bool], c_inv: float, epsilon: float, min_std: float
) -> tuple[list[float], float, float]:
    """Eq. 7 over all turns of a batch, with their mean and population deviation; all 0 where there is no variance."""
    penalised = [a - (0.0 if good else c_inv) for a, good in zip(advantages, valid, strict=True)]
    mean = math.fsum(penalised) / len(penalised)
    std = math.sqrt(math.fsum((a - mean) ** 2 for a in penalised) / len(penalised))
    if std <= 1e-12 * max(abs(a) for a in penalised):
        return [0.0] * len(penalised), mean, std
    return [(a - mean) / (max(std, min_std) + epsilon) for a in penalised], mean, std
