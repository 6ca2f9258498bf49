"""What `verify` checks of scores and targets: that they belong to the rollouts, and that Eq. 4-7 give them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.config import Config
from pipeline.inspect.check_episodes import CLOSE, Outcome, Shards, compare, is_close
from pipeline.inspect.findings import Finding, found, from_message
from pipeline.inspect.reading import Run
from pipeline.inspect.recomputation import SERIES, normalised, turn_targets
from pipeline.inspect.scores import SCORES_PATTERN, read_floats
from runtime.records import RecordError, Targets
from runtime.shards import read_targets
from runtime.weight_files import ModelFilesError, read_weight_file

ROUNDING = 1e-6  # relative, of readouts stored as float32
NORMALISED_CLOSE = 1e-6  # of normalised advantages: a small deviation magnifies the rounding of the mean


@dataclass
class Scored:
    """The scores of a trajectory: float32 [N] and [K]."""

    old_logprobs: np.ndarray
    ref_logprobs: np.ndarray | None
    values: np.ndarray
    q_values: np.ndarray

    def fits(self, outcome: Outcome) -> bool:
        return len(self.values) == len(outcome.rewards) and len(self.old_logprobs) == len(outcome.logprobs)

    def shape(self) -> str:
        return f"{len(self.values)} turns and {len(self.old_logprobs)} tokens"


def check_targets(run: Run, settings: Config, iteration: int, shards: Shards) -> Iterator[Finding]:
    """Scores and targets of a complete compute_advantages against the rollouts that they were made from."""
    folder, path = run.paths.advantages(iteration), run.paths.manifest("compute_advantages", iteration)
    manifest = run.manifests["compute_advantages", iteration]
    good = {outcome.key: outcome for outcome in shards.good}
    scores: dict[str, Scored] = {}
    yield from _read_scores(run, iteration, scores)
    yield from _compare_keys(run, folder, "scores", good.keys(), scores.keys())
    yield from _check_scores(run, settings, iteration, scores)
    fitting = {key for key in good.keys() & scores.keys() if scores[key].fits(good[key])}
    for key in sorted(good.keys() & scores.keys() - fitting):
        yield found(run, folder, f"scores of {key}: {scores[key].shape()}, the rollout has {_shape(good[key])}")
    if good and fitting == good.keys() == scores.keys():
        gaps = np.concatenate([np.abs(good[key].logprobs - scores[key].old_logprobs) for key in sorted(good)])
        yield from compare(run, path, manifest, _counts(shards), "counts")
        yield from compare(run, path, manifest, _step0(shards, gaps), "metrics")
    try:
        targets = {one.key: one for one in read_targets(folder / "targets.jsonl")}
    except (RecordError, OSError) as fault:
        yield from_message(run, folder / "targets.jsonl", fault)
        return
    yield from _compare_keys(run, folder, "targets", good.keys(), targets.keys())
    if good and fitting == good.keys() == scores.keys() == targets.keys():  # else there is no batch to normalise over
        yield from _compare_targets(run, settings, iteration, good, scores, targets)


def _shape(outcome: Outcome) -> str:
    return f"{len(outcome.rewards)} and {len(outcome.logprobs)}"


def _compare_keys(run: Run, folder: Path, what: str, good: Set[str], made: Set[str]) -> Iterator[Finding]:
    """Scores and targets are of the trajectories that can be trained on, and of no others."""
    for keys, fact in ((good - made, f"no {what} of"), (made - good, f"{what} without a rollout:")):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            yield found(run, folder, f"{fact} {min(keys)}{more}")


def _counts(shards: Shards) -> dict[str, float]:
    good = shards.good
    tokens = sum(len(outcome.logprobs) for outcome in good)
    return {
        "trajectories": len(good),
        "errors": len(shards.outcomes) - len(good),
        "turns": sum(len(outcome.rewards) for outcome in good),
        "response_tokens": tokens,
        "scored_tokens": tokens + sum(outcome.prompt_tokens for outcome in good),
    }


def _step0(shards: Shards, gaps: np.ndarray) -> dict[str, float]:
    """The mask sums, and how far scoring is from sampling."""
    return {
        "step0/logprob_gap_max": float(gaps.max(initial=0.0)),
        "step0/logprob_gap_mean": float(gaps.mean()) if len(gaps) else 0.0,
        "step0/response_tokens": len(gaps),
        "step0/turns": sum(len(outcome.rewards) for outcome in shards.good),
    }


def _read_scores(run: Run, iteration: int, scores: dict[str, Scored]) -> Iterator[Finding]:
    for path in sorted(run.paths.advantages(iteration).glob(SCORES_PATTERN)):
        try:
            file = read_weight_file(path)
            contents = json.loads(file.metadata["contents"])
            tokens, turns = contents["num_tokens"], contents["num_turns"]
            series = {
                name: read_floats(file, name, 0, sum(counts))
                for name, counts in (("old_logprobs", tokens), ("ref_logprobs", tokens), ("entropies", tokens),
                                     ("values", turns), ("q_values", turns))
            }  # fmt: skip
            parts = {name: np.split(series[name], np.cumsum(turns)[:-1]) for name in ("values", "q_values")}
            for name in ("old_logprobs", "ref_logprobs"):
                whole = series[name]
                parts[name] = [None] * len(tokens) if whole is None else np.split(whole, np.cumsum(tokens)[:-1])
            for index, key in enumerate(contents["keys"]):
                if key in scores:
                    yield found(run, path, f"scores of {key} are there twice")
                scores[key] = Scored(**{name: parts[name][index] for name in parts})
        except (ModelFilesError, OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as fault:
            yield from_message(run, path, fault)
            continue
        yield from (
            found(run, path, f"{name} holds NaN or infinite numbers")
            for name, numbers in series.items()
            if numbers is not None and not np.isfinite(numbers).all()
        )


def _check_scores(run: Run, settings: Config, iteration: int, scores: Mapping[str, Scored]) -> Iterator[Finding]:
    folder, limit = run.paths.advantages(iteration), settings.value.r_max * (1 + ROUNDING)
    reference = settings.optimize.kl_coef != 0
    for key, one in scores.items():
        for name in ("values", "q_values"):
            if np.abs(getattr(one, name)).max(initial=0.0) > limit:
                yield found(run, folder, f"{name} of {key} are beyond value.r_max, {settings.value.r_max:g}")
        if one.old_logprobs.max(initial=-1.0) > ROUNDING:
            yield found(run, folder, f"old_logprobs of {key} hold a number above 0")
        if (one.ref_logprobs is not None) != reference:
            state = "missing" if reference else "there"
            yield found(
                run, folder, f"ref_logprobs of {key} are {state}, optimize.kl_coef is {settings.optimize.kl_coef:g}"
            )


def _compare_targets(
    run: Run,
    settings: Config,
    iteration: int,
    good: Mapping[str, Outcome],
    scores: Mapping[str, Scored],
    targets: Mapping[str, Targets],
) -> Iterator[Finding]:
    """Every number of targets.jsonl against Eq. 4-7 from the rewards and the scores."""
    path = run.paths.advantages(iteration) / "targets.jsonl"
    advantage, scale = settings.advantage, settings.env.success_reward_scale
    raw: list[float] = []
    for key in sorted(good):
        values, q_values = scores[key].values.tolist(), scores[key].q_values.tolist()
        rewards = [reward * scale for reward in good[key].rewards]
        parts = turn_targets(rewards, values, q_values, advantage.gamma, advantage.gae_lambda)
        expected = {"values": values, "q_values": q_values, **dict(zip(SERIES, parts, strict=True))}
        yield from (found(run, path, fact) for fact in _differences(targets[key], expected, CLOSE))
        raw += parts[0]
    valid = [one for key in sorted(good) for one in good[key].valid]
    shares, mean, std = normalised(raw, valid, advantage.invalid_action_coef, advantage.epsilon, advantage.min_std)
    start = 0
    for key in sorted(good):
        end = start + len(good[key].rewards)
        expected = {"advantages": shares[start:end]}
        yield from (found(run, path, fact) for fact in _differences(targets[key], expected, NORMALISED_CLOSE))
        start = end
    place = run.paths.manifest("compute_advantages", iteration)
    manifest = run.manifests["compute_advantages", iteration]
    yield from compare(run, place, manifest, {"advantage/mean": mean, "advantage/std": std}, "metrics")


def _differences(targets: Targets, expected: Mapping[str, Sequence[float]], close: float) -> Iterator[str]:
    for name, numbers in expected.items():
        stored = getattr(targets, name)
        if len(stored) != len(numbers):
            yield f"{name} of {targets.key} has {len(stored)} turns, the rollout {len(numbers)}"
            continue
        wrong = [turn for turn, (a, b) in enumerate(zip(stored, numbers, strict=True)) if not is_close(a, b, close)]
        if wrong:
            turn = wrong[0]
            yield f"{name} of {targets.key} turn {turn} is {stored[turn]:.6g}, recomputed {numbers[turn]:.6g}"
