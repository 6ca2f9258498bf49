"""From raw advantages to `Targets`: Eq. 7 over the whole batch, or as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from runtime.algorithms.base import Episode, Estimates, Settings
from runtime.records import Targets
from runtime.targets import AdvantageStats, normalise_advantages


def normalised_targets(
    episodes: Sequence[Episode],
    raw: Sequence[Tensor],
    series: Sequence[Mapping[str, Any]],
    settings: Settings,
    by_token: bool = False,
) -> Estimates:
    """Eq. 7 over the turns of all episodes.

    Args:
        raw: advantages of each episode's turns, reward units, float64 [K_i] each.
        series: further fields of each episode's Targets.
        by_token: each turn counts in the statistics as often as it has tokens.
    """
    lengths = [x for one in episodes for x in one.lengths]
    counts = torch.tensor(lengths if by_token else [1] * len(lengths))
    invalid = torch.tensor([x for one in episodes for x in one.invalid])
    spread, stats = _normalise(
        torch.cat(list(raw)).repeat_interleave(counts), invalid.repeat_interleave(counts), settings
    )
    normalised = spread[counts.cumsum(0) - 1]
    split = normalised.split([len(one) for one in raw])
    targets = [
        Targets(one.trajectory.key, raw_advantages=tuple(a.tolist()), advantages=tuple(b.tolist()), **own)
        for one, a, b, own in zip(episodes, raw, split, series, strict=True)
    ]
    return Estimates(targets, stats_metrics(stats))


def normalised_token_targets(
    episodes: Sequence[Episode], raw: Sequence[Tensor], series: Sequence[Mapping[str, Any]], settings: Settings
) -> Estimates:
    """Eq. 7 over the response tokens of all episodes, for advantages that differ within a turn: float64 [N_i] each."""
    lengths = [torch.tensor(one.lengths) for one in episodes]
    invalid = [torch.tensor(one.invalid).repeat_interleave(n) for one, n in zip(episodes, lengths, strict=True)]
    normalised, stats = _normalise(torch.cat(list(raw)), torch.cat(invalid), settings)
    split = normalised.split([len(one) for one in raw])
    targets = [
        Targets(
            one.trajectory.key,
            raw_advantages=_turn_means(a, n),
            advantages=_turn_means(b, n),
            token_advantages=tuple(b.tolist()),
            **own,
        )
        for one, a, b, n, own in zip(episodes, raw, split, lengths, series, strict=True)
    ]
    return Estimates(targets, stats_metrics(stats))


def plain_targets(
    episodes: Sequence[Episode],
    advantages: Mapping[str, Tensor],
    metrics: Mapping[str, float],
    by_trajectory: bool = False,
) -> Estimates:
    """Advantages as they are; an episode without any is not trained.

    Args:
        advantages: by trajectory key, of each episode's turns, float64 [K_i].
        by_trajectory: weights make every trajectory count the same in the loss, however many tokens it has; they are
            1 on average over all tokens.
    """
    kept = [one for one in episodes if one.trajectory.key in advantages]
    tokens = [sum(one.lengths) for one in kept]
    targets = []
    for one, own in zip(kept, tokens, strict=True):
        numbers = tuple(advantages[one.trajectory.key].tolist())
        weight = sum(tokens) / len(tokens) / own if by_trajectory else 1.0
        targets.append(Targets(one.trajectory.key, raw_advantages=numbers, advantages=numbers, weight=weight))
    every = torch.cat([advantages[one.trajectory.key] for one in kept]) if kept else torch.zeros(1)
    spread = {
        "advantage/mean": float(every.mean()),
        "advantage/std": float(every.std(correction=0)),
        "advantage/zero_variance": float(not every.any()),
    }
    return Estimates(targets, {**spread, **metrics})


def stats_metrics(stats: AdvantageStats) -> dict[str, float]:
    return {
        "advantage/mean": stats.mean,
        "advantage/std": stats.std,
        "advantage/floored": float(stats.floored),
        "advantage/zero_variance": float(stats.zero_variance),
    }


def _normalise(advantages: Tensor, invalid: Tensor, settings: Settings) -> tuple[Tensor, AdvantageStats]:
    return normalise_advantages(advantages, invalid, settings.c_inv, settings.epsilon, settings.min_std)


def _turn_means(numbers: Tensor, lengths: Tensor) -> tuple[float, ...]:
    return tuple(float(part.mean()) for part in numbers.split(lengths.tolist()))
