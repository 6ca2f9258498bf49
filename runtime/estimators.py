"""Estimators of advantages beside Eq. 4-7 (runtime/targets.py): group statistics, leave-one-out, anchors, tokens.

Pure torch, float64, per trajectory or per turn; the algorithms in runtime/algorithms put them together. A trajectory's
return R is the undiscounted sum of its rewards unless a function says otherwise. What the environment called invalid
costs c_inv at the turn where it happened: a turn's score is R - c_inv * invalid_t, a trajectory's the mean of its
turns' scores, so that a baseline made of trajectories' scores is centred.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor


def discounted_returns(rewards: Sequence[float], gamma: float) -> Tensor:
    """G_t = r_t + gamma G_(t+1) of every turn of one trajectory, float64 [K].

    Example: rewards 0, 0, 8 with gamma 0.5 -> 2, 4, 8.
    """
    returns = torch.zeros(len(rewards), dtype=torch.float64)
    following = 0.0
    for turn in reversed(range(len(rewards))):
        following = rewards[turn] + gamma * following
        returns[turn] = following
    return returns


def turn_scores(total: float, invalid: Sequence[bool], c_inv: float) -> Tensor:
    """R - c_inv * invalid_t of each turn of a trajectory with return R, float64 [K]."""
    return total - c_inv * torch.tensor(invalid, dtype=torch.float64)


def same(numbers: Iterable[float]) -> bool:
    """All equal: a group without variance, which says nothing."""
    return len(set(numbers)) <= 1


def group_advantages(
    totals: Sequence[float], scores: Sequence[Tensor], *, use_std: bool, unit: float, epsilon: float
) -> list[Tensor]:
    """GRPO (arXiv 2402.03300, outcome supervision): a trajectory against its group's mean.

        A_i,t = (s_i,t - mean_j S_j) / (std_j R_j + epsilon)      or / unit without the deviation (arXiv 2503.20783)

    The deviation is the sample's (N - 1), as in the published implementations. A group of equal returns has advantages
    of 0: its penalties alone would be blown up by a deviation of 0.

    Args:
        totals: R of the group's N >= 2 trajectories. scores: their turns' scores s, [K_i] each; S is the mean of them.
        unit: what advantages are divided by without the deviation, reward units.

    Returns:
        Advantages of each trajectory's turns, float64 [K_i] each.
    """
    if len(totals) < 2:
        raise ValueError(f"a group needs 2 trajectories or more, this one has {len(totals)}")
    if same(totals):
        return [torch.zeros_like(one) for one in scores]
    mean = torch.stack([one.mean() for one in scores]).mean()
    scale = torch.tensor(totals, dtype=torch.float64).std() + epsilon if use_std else unit
    return [(one - mean) / scale for one in scores]


def leave_one_out_advantages(scores: Sequence[Tensor], unit: float) -> list[Tensor]:
    """RLOO (arXiv 2402.14740): A_i,t = (s_i,t - mean over j != i of S_j) / unit, float64 [K_i] each."""
    if len(scores) < 2:
        raise ValueError(f"leave-one-out needs 2 trajectories or more, this group has {len(scores)}")
    means = torch.stack([one.mean() for one in scores])
    others = (means.sum() - means) / (len(scores) - 1)
    return [(one - other) / unit for one, other in zip(scores, others, strict=True)]


def anchor_advantages(
    anchors: Sequence[Sequence[Hashable]],
    returns: Sequence[Tensor],
    *,
    use_std: bool,
    unit: float,
    epsilon: float,
) -> list[Tensor]:
    """GiGPO's step level (arXiv 2505.10978): turns of one task at which the agent saw the same are compared.

    Args:
        anchors: what was seen at each turn, for each trajectory of the task. returns: G_t likewise, float64 [K_i].
        use_std, unit, epsilon: as in `group_advantages`.

    Returns:
        float64 [K_i] each; 0 at a turn whose anchor no other turn has, or where all of them had the same return.
    """
    advantages = [torch.zeros_like(one) for one in returns]
    places: dict[Hashable, list[tuple[int, int]]] = {}
    for i, own in enumerate(anchors):
        for turn, anchor in enumerate(own):
            places.setdefault(anchor, []).append((i, turn))
    for group in places.values():
        numbers = torch.stack([returns[i][turn] for i, turn in group])
        if same(numbers.tolist()):
            continue
        scale = numbers.std() + epsilon if use_std else unit
        for (i, turn), advantage in zip(group, (numbers - numbers.mean()) / scale, strict=True):
            advantages[i][turn] = advantage
    return advantages


def token_gae(
    rewards: Sequence[float], lengths: Sequence[int], values: Sequence[float], gamma: float, gae_lambda: float
) -> Tensor:
    """GAE over the response tokens of one trajectory, turn after turn; a turn's reward falls on its last token.

    Prompts are not counted, but every response token discounts: credit fades with the length of responses, which
    turn-level GAE (runtime/targets.py) does not do.

    Args:
        rewards: [K], reward units. lengths: response tokens of each turn [K]. values: before each token [N].

    Returns:
        Advantages float64 [N]. Example: rewards 0, 1; lengths 1, 2; values 0.5, 0.2, 0.4; gamma 0.9, lambda 0.5.
        Backwards: 1 - 0.4 = 0.6; 0.9 * 0.4 - 0.2 + 0.45 * 0.6 = 0.43; 0.9 * 0.2 - 0.5 + 0.45 * 0.43 = -0.1265.
    """
    paid = [0.0] * sum(lengths)
    end = 0
    for reward, length in zip(rewards, lengths, strict=True):
        end += length
        paid[end - 1] += reward
    if len(values) != len(paid):
        raise ValueError(f"{len(values)} values for {len(paid)} response tokens")
    advantages = torch.zeros(len(paid), dtype=torch.float64)
    following = following_value = 0.0
    for token in reversed(range(len(paid))):
        delta = paid[token] + gamma * following_value - values[token]
        following = delta + gamma * gae_lambda * following
        following_value = values[token]
        advantages[token] = following
    return advantages


def overlong_penalty(length: int, longest: int, buffer: int) -> float:
    """DAPO's soft punishment of long responses (arXiv 2503.14476): from 0 down to -1 over the last tokens.

    Args:
        length: response tokens. longest: allowed. buffer: tokens over which the penalty grows; 0: no penalty.

    Example: longest 16, buffer 4: 0 up to 12 tokens, -0.5 at 14, -1 at 16.
    """
    return 0.0 if buffer == 0 else min(0.0, max(-1.0, (longest - buffer - length) / buffer))
