"""The training targets of SAPO (arXiv 2608.19842), Eq. 4-7: turn-level GAE, lambda-return, SARSA, normalisation.

Everything here is per turn: how many tokens a turn has plays no part. All arithmetic is float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_ROUNDING = 1e-12  # a deviation below this share of the largest value is rounding, not variance


@dataclass(frozen=True)
class TurnTargets:
    """Targets of one trajectory, float64 [K] each, reward units."""

    advantages: torch.Tensor  # A_t, Eq. 5
    returns: torch.Tensor  # y^V_t = V_t + A_t: the lambda-return, Eq. 6
    q_targets: torch.Tensor  # y^Q_t: on-policy SARSA, Eq. 6


@dataclass(frozen=True)
class AdvantageStats:
    """Statistics of one batch's penalised advantages, reward units."""

    num_turns: int
    mean: float  # mu_B
    std: float  # sigma_B (population), before the floor
    floored: bool  # sigma_B was below min_std, so min_std stood in for it
    zero_variance: bool  # all penalised advantages are equal: the batch has no signal, every advantage is 0


def turn_advantages(
    rewards: Sequence[float] | torch.Tensor, values: Sequence[float] | torch.Tensor, gamma: float, gae_lambda: float
) -> torch.Tensor:
    """Eq. 4, 5 for ONE trajectory, backwards over its turns. The episode ends after the last turn (d = 1 there).

    A trajectory cut at the turn limit counts as terminal too: nothing is bootstrapped beyond the last turn.

    Args:
        rewards, values: [K], reward units; the values are those of the policy that sampled.
        gamma, gae_lambda: discount and trace decay a turn, in [0, 1].

    Returns:
        A_t, float64 [K].

    Raises:
        ValueError: the two are not vectors of one non-zero length, or not finite.
    """
    rewards, values = _vectors(rewards, values)
    deltas = rewards + gamma * torch.cat((values[1:], values.new_zeros(1))) - values  # Eq. 4
    advantages = torch.empty_like(deltas)
    following = 0.0
    for turn in reversed(range(len(deltas))):
        following = float(deltas[turn]) + gamma * gae_lambda * following  # Eq. 5
        advantages[turn] = following
    return advantages


def plus(values: Sequence[float], advantages: torch.Tensor) -> tuple[float, ...]:
    """V + A, the lambda-returns, as plain numbers [K]."""
    return tuple((torch.tensor(values, dtype=torch.float64) + advantages).tolist())


def turn_targets(
    rewards: Sequence[float] | torch.Tensor,
    values: Sequence[float] | torch.Tensor,
    q_values: Sequence[float] | torch.Tensor,
    gamma: float,
    gae_lambda: float,
) -> TurnTargets:
    """Eq. 4-6 for ONE trajectory: `turn_advantages`, and the targets of V and Q.

    Args:
        rewards, values, q_values: [K], reward units.

    Raises:
        ValueError: the three are not vectors of one non-zero length, or not finite.
    """
    rewards, values, q_values = _vectors(rewards, values, q_values)
    advantages = turn_advantages(rewards, values, gamma, gae_lambda)
    q_targets = rewards + gamma * torch.cat((q_values[1:], q_values.new_zeros(1)))
    return TurnTargets(advantages=advantages, returns=values + advantages, q_targets=q_targets)


def _vectors(*series: Sequence[float] | torch.Tensor) -> list[torch.Tensor]:
    vectors = [torch.as_tensor(x, dtype=torch.float64).detach() for x in series]
    shapes = [tuple(x.shape) for x in vectors]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1 or not shapes[0][0]:
        raise ValueError(f"rewards, values and q_values must be vectors of one length > 0, found {shapes}")
    if not torch.isfinite(torch.stack(vectors)).all():
        raise ValueError("rewards, values and q_values must be finite")
    return vectors


def normalise_advantages(
    advantages: torch.Tensor, invalid: torch.Tensor, c_inv: float, eps: float, min_std: float = 0.0
) -> tuple[torch.Tensor, AdvantageStats]:
    """Eq. 7 over all turns of the global batch: (A - c_inv * invalid - mu_B) / (sigma_B + eps).

    The paper leaves open the kind of deviation and what a batch without variance does. Ours: the population
    deviation, never below `min_std`; without any variance every advantage is exactly 0.

    Args:
        advantages: GAE of every valid turn of the batch, float [K], reward units.
        invalid: True where the environment called the action invalid, bool [K].
        c_inv: penalty, reward units.
        eps: eps_adv, added to the deviation.
        min_std: floor of the deviation, reward units.

    Returns:
        Normalised advantages, float64 [K], and the statistics.
    """
    if advantages.shape != invalid.shape or advantages.ndim != 1 or not advantages.numel():
        raise ValueError(
            f"advantages and invalid must be vectors of one length > 0, found {tuple(advantages.shape)} "
            f"and {tuple(invalid.shape)}"
        )
    penalised = advantages.detach().to(torch.float64) - c_inv * invalid.to(torch.float64)
    mean = penalised.mean()
    centred = penalised - mean
    std = float(centred.square().mean().sqrt())
    zero_variance = std <= _ROUNDING * float(penalised.abs().max())
    normalised = torch.zeros_like(centred) if zero_variance else centred / (max(std, min_std) + eps)
    return normalised, AdvantageStats(
        num_turns=penalised.numel(), mean=float(mean), std=std, floored=std < min_std, zero_variance=zero_variance
    )
