"""The targets of every algorithm of runtime/algorithms once more, as loops over plain numbers, for `verify`.

Shares nothing with runtime/algorithms and runtime/estimators.py, so that a mistake there is not repeated here. An
algorithm of the user's own is not in RECOMPUTED: of its targets only the shapes are checked.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config import Config
from pipeline.inspect.recomputation import normalised, turn_targets

Numbers = list[float]


@dataclass(frozen=True)
class Case:
    """A trajectory as its targets need it: K turns, N response tokens."""

    task: str
    sample: int
    rewards: Sequence[float]  # [K], scaled
    valid: Sequence[bool]  # [K]
    lengths: Sequence[int]  # [K], response tokens
    seen: Sequence[Hashable]  # [K], equal where the observations are
    values: Sequence[float] = ()  # [K], of the policy's readout; the scores of what is not trained are empty
    q_values: Sequence[float] = ()  # [K]
    critic_values: Sequence[float] = ()  # [N]

    @property
    def key(self) -> str:
        return f"{self.task}#{self.sample}"

    @property
    def total(self) -> float:
        return sum(self.rewards)


@dataclass(frozen=True)
class Recomputed:
    """By trajectory key: the series of its Targets. What an algorithm does not train is not there."""

    targets: Mapping[str, Mapping[str, Sequence[float]]]
    mean: float  # of all advantages before the normalisation, as the manifest has them
    std: float


def is_selected(name: str, options: Mapping[str, Any], case: Case, group: Sequence[Case]) -> bool:
    """Whether a trajectory without error is scored: DAPO leaves out groups whose returns are equal."""
    if name != "dapo" or not options.get("max_extra_rounds"):
        return True
    return any(other.total != case.total for other in group)


def recompute(settings: Config, cases: Sequence[Case], baselines: Sequence[Case]) -> Recomputed | None:
    """What the algorithm of the settings makes of the selected trajectories; None for one that is not known here."""
    make = RECOMPUTED.get(settings.algorithm.name)
    return None if make is None else make(settings, settings.algorithm.options, cases, baselines)


def _sapo(settings: Config, options: Mapping, cases: Sequence[Case], baselines: Sequence[Case]) -> Recomputed:
    raw, series = [], []
    for one in cases:
        advantages, returns, q_targets = turn_targets(
            one.rewards, one.values, one.q_values, settings.advantage.gamma, settings.advantage.gae_lambda
        )
        q_minus_v = [q - v for q, v in zip(one.q_values, one.values, strict=True)]
        raw.append(q_minus_v if options["advantage"] == "q_minus_v" else advantages)
        series.append({"values": one.values, "q_values": one.q_values, "returns": returns, "q_targets": q_targets})
    return _over_turns(settings, cases, raw, series, by_token=options["normalise"] == "tokens")


def _ppo(settings: Config, options: Mapping, cases: Sequence[Case], baselines: Sequence[Case]) -> Recomputed:
    gamma, gae_lambda = settings.advantage.gamma, settings.advantage.gae_lambda
    raw, series = [], []
    for one in cases:
        firsts = [sum(one.lengths[:turn]) for turn in range(len(one.lengths))]
        values = [one.critic_values[first] for first in firsts]
        if options["credit"] == "turn":
            advantages, returns, _ = turn_targets(one.rewards, values, values, gamma, gae_lambda)
            series.append({"values": values, "returns": returns})
        else:  # every token is a step, and the last of a turn is paid
            paid = [0.0] * sum(one.lengths)
            for first, length, reward in zip(firsts, one.lengths, one.rewards, strict=True):
                paid[first + length - 1] = reward
            advantages, whole, _ = turn_targets(paid, one.critic_values, one.critic_values, gamma, gae_lambda)
            returns = [whole[first] for first in firsts]
            tokens = {"token_values": one.critic_values, "token_returns": whole}
            series.append({**tokens, "values": values, "returns": returns})
        raw.append(advantages)
    over = _over_turns if options["credit"] == "turn" else _over_tokens
    return over(settings, cases, raw, series)


def _vineppo(settings: Config, options: Mapping, cases: Sequence[Case], baselines: Sequence[Case]) -> Recomputed:
    gamma, count = settings.advantage.gamma, options["continuations"]
    found = {one.key: one for one in baselines}
    raw, series = [], []
    for one in cases:
        values = []
        for turn in range(len(one.rewards)):
            keys = [f"{one.task}#{1 + turn * count + n}" for n in range(count)]
            parts = [found[key].rewards[turn:] for key in keys if key in found]
            values.append(statistics.fmean(sum(gamma**t * reward for t, reward in enumerate(part)) for part in parts))
        advantages, returns, _ = turn_targets(one.rewards, values, values, gamma, 0.0)
        raw.append(advantages)
        series.append({"values": values, "returns": returns})
    return _over_turns(settings, cases, raw, series)


def _remax(settings: Config, options: Mapping, cases: Sequence[Case], baselines: Sequence[Case]) -> Recomputed:
    c_inv, unit = settings.advantage.invalid_action_coef, settings.value.r_max
    greedy = {one.task: statistics.fmean(_turn_scores(one, one.total, c_inv)) for one in baselines}
    found = {
        one.key: [(score - greedy[one.task]) / unit for score in _turn_scores(one, one.total, c_inv)]
        for one in cases
        if one.task in greedy
    }
    return _plain(cases, found)


def _grpo(settings: Config, options: Mapping, cases: Sequence[Case], baselines: Sequence[Case]) -> Recomputed:
    return _grouped(settings, options, cases, _against_mean)


def _gigpo(settings: Config, options: Mapping, cases: Sequence[Case], baselines: Sequence[Case]) -> Recomputed:
    return _grouped(settings, options, cases, _against_mean_and_anchors)


def _rloo(settings: Config, options: Mapping, cases: Sequence[Case], baselines: Sequence[Case]) -> Recomputed:
    return _grouped(settings, options, cases, _against_others)


RECOMPUTED: dict[str, Callable[..., Recomputed]] = {
    "sapo": _sapo, "ppo": _ppo, "grpo": _grpo, "rloo": _rloo, "remax": _remax, "dapo": _grpo, "gigpo": _gigpo,
    "vineppo": _vineppo,
}  # fmt: skip


def _grouped(settings: Config, options: Mapping, cases: Sequence[Case], advantages_of: Callable) -> Recomputed:
    found = {}
    for task in dict.fromkeys(one.task for one in cases):
        group = [one for one in cases if one.task == task]
        if len(group) > 1:  # the others were lost to errors
            found |= zip((one.key for one in group), advantages_of(settings, options, group), strict=True)
    return _plain(cases, found, by_trajectory=options["mean"] == "trajectory")


def _against_mean(settings: Config, options: Mapping, group: Sequence[Case]) -> list[Numbers]:
    """GRPO: each turn's score against the mean score of the trajectories."""
    totals = [one.total - _overlong(settings, options, one) for one in group]
    if len(set(totals)) == 1:
        return [[0.0] * len(one.rewards) for one in group]
    c_inv = settings.advantage.invalid_action_coef
    scores = [_turn_scores(one, total, c_inv) for one, total in zip(group, totals, strict=True)]
    mean = statistics.fmean(statistics.fmean(own) for own in scores)
    return [[(x - mean) / _scale(settings, options, totals) for x in own] for own in scores]


def _against_others(settings: Config, options: Mapping, group: Sequence[Case]) -> list[Numbers]:
    """RLOO: each turn's score against the mean score of the other trajectories."""
    scores = [_turn_scores(one, one.total, settings.advantage.invalid_action_coef) for one in group]
    found = []
    for i, own in enumerate(scores):
        others = statistics.fmean(statistics.fmean(other) for j, other in enumerate(scores) if j != i)
        found.append([(x - others) / settings.value.r_max for x in own])
    return found


def _against_mean_and_anchors(settings: Config, options: Mapping, group: Sequence[Case]) -> list[Numbers]:
    """GiGPO: GRPO, and the return from a turn on against those of the turns at which the same was seen."""
    gamma, advantages = settings.advantage.gamma, _against_mean(settings, options, group)
    ahead = [[sum(gamma**n * x for n, x in enumerate(one.rewards[t:])) for t in range(len(one.rewards))]
             for one in group]  # fmt: skip
    for i, one in enumerate(group):
        for turn, anchor in enumerate(one.seen):
            same = [ahead[j][t] for j, other in enumerate(group) for t, x in enumerate(other.seen) if x == anchor]
            if max(same) - min(same) > 1e-12:
                share = (ahead[i][turn] - statistics.fmean(same)) / _scale(settings, options, same)
                advantages[i][turn] += options["step_weight"] * share
    return advantages


def _scale(settings: Config, options: Mapping, numbers: Sequence[float]) -> float:
    return statistics.stdev(numbers) + settings.advantage.epsilon if options["use_std"] else settings.value.r_max


def _turn_scores(one: Case, total: float, c_inv: float) -> Numbers:
    return [total - (0.0 if good else c_inv) for good in one.valid]


def _overlong(settings: Config, options: Mapping, one: Case) -> float:
    """DAPO's penalty of responses that end in the last tokens that are allowed, reward units."""
    buffer = options.get("overlong_buffer", 0)
    if not buffer:
        return 0.0
    start = settings.env.response_tokens - buffer
    return options["overlong_coef"] * sum(min(1.0, max(0, length - start) / buffer) for length in one.lengths)


def _over_turns(
    settings: Config, cases: Sequence[Case], raw: Sequence[Numbers], series: Sequence[Mapping], by_token: bool = False
) -> Recomputed:
    """Eq. 7 over the turns; with `by_token` a turn counts as often as it has tokens."""
    times = [length if by_token else 1 for one in cases for length in one.lengths]
    spread = [x for x, n in zip((x for own in raw for x in own), times, strict=True) for _ in range(n)]
    valid = [x for x, n in zip((x for one in cases for x in one.valid), times, strict=True) for _ in range(n)]
    numbers, mean, std = _normalised(settings, spread, valid)
    targets, at, turn = {}, 0, 0
    for one, own, more in zip(cases, raw, series, strict=True):
        advantages = []
        for _ in own:
            advantages.append(numbers[at])
            at, turn = at + times[turn], turn + 1
        targets[one.key] = {**more, "raw_advantages": own, "advantages": advantages}
    return Recomputed(targets, mean, std)


def _over_tokens(
    settings: Config, cases: Sequence[Case], raw: Sequence[Numbers], series: Sequence[Mapping]
) -> Recomputed:
    """Eq. 7 over the response tokens; a turn's advantage is the mean of its tokens'."""
    valid = [x for one in cases for x, length in zip(one.valid, one.lengths, strict=True) for _ in range(length)]
    numbers, mean, std = _normalised(settings, [x for own in raw for x in own], valid)
    targets, start = {}, 0
    for one, own, more in zip(cases, raw, series, strict=True):
        whole = numbers[start : start + len(own)]
        start += len(own)
        ends = [sum(one.lengths[: turn + 1]) for turn in range(len(one.lengths))]
        means = {
            name: [statistics.fmean(x[end - length : end]) for end, length in zip(ends, one.lengths, strict=True)]
            for name, x in (("raw_advantages", own), ("advantages", whole))
        }
        targets[one.key] = {**more, **means, "token_advantages": whole}
    return Recomputed(targets, mean, std)


def _normalised(settings: Config, numbers: Numbers, valid: Sequence[bool]) -> tuple[Numbers, float, float]:
    advantage = settings.advantage
    return normalised(numbers, valid, advantage.invalid_action_coef, advantage.epsilon, advantage.min_std)


def _plain(cases: Sequence[Case], found: Mapping[str, Numbers], by_trajectory: bool = False) -> Recomputed:
    """Advantages as they are; `weight` makes trajectories count the same, 1 on average over the tokens."""
    kept = [one for one in cases if one.key in found]
    tokens = sum(sum(one.lengths) for one in kept)
    targets = {}
    for one in kept:
        weight = tokens / len(kept) / sum(one.lengths) if by_trajectory else 1.0
        targets[one.key] = {"raw_advantages": found[one.key], "advantages": found[one.key], "weight": [weight]}
    every = [x for one in kept for x in found[one.key]] or [0.0]
    return Recomputed(targets, math.fsum(every) / len(every), statistics.pstdev(every))
