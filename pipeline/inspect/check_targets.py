"""What `verify` checks of scores and targets: that they belong to the rollouts, and that the algorithm
gives them (for SAPO Eq. 4-7)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from pipeline.config import Config
from pipeline.inspect.check_episodes import CLOSE, Outcome, Shards, compare, is_close
from pipeline.inspect.findings import Finding, found, from_message
from pipeline.inspect.reading import Run
from pipeline.inspect.recomputed_targets import Case, is_selected, recompute
from pipeline.inspect.scores import SCORES_PATTERN, read_floats
from runtime.records import RecordError, Targets
from runtime.shards import read_targets
from runtime.weight_files import ModelFilesError, read_weight_file

OF_TOKENS = ("old_logprobs", "ref_logprobs", "entropies", "critic_values")  # [N], the last three not always there
ROUNDING = 1e-6  # relative, of readouts stored as float32
NORMALISED_CLOSE = 1e-6  # of normalised advantages: a small deviation magnifies the rounding of the mean


@dataclass
class Scored:
    """The scores of a trajectory: float32 [N] and [K]."""

    old_logprobs: np.ndarray
    ref_logprobs: np.ndarray | None
    values: np.ndarray
    q_values: np.ndarray
    critic_values: np.ndarray | None  # [N]

    def fits(self, outcome: Outcome) -> bool:
        return len(self.values) == len(outcome.rewards) and len(self.old_logprobs) == len(outcome.logprobs)

    def shape(self) -> str:
        return f"{len(self.values)} turns and {len(self.old_logprobs)} tokens"


def check_targets(run: Run, settings: Config, iteration: int, shards: Shards) -> Iterator[Finding]:
    """Scores and targets of a complete compute_advantages against the rollouts that they were made from."""
    folder, path = run.paths.advantages(iteration), run.paths.manifest("compute_advantages", iteration)
    manifest = run.manifests["compute_advantages", iteration]
    chosen = _selected(settings, shards)
    scores: dict[str, Scored] = {}
    yield from _read_scores(run, iteration, scores)
    yield from _compare_keys(run, folder, "scores", chosen.keys(), scores.keys())
    yield from _check_scores(run, settings, iteration, scores)
    fitting = {key for key in chosen.keys() & scores.keys() if scores[key].fits(chosen[key])}
    for key in sorted(chosen.keys() & scores.keys() - fitting):
        yield found(run, folder, f"scores of {key}: {scores[key].shape()}, the rollout has {_shape(chosen[key])}")
    whole = bool(chosen) and fitting == chosen.keys() == scores.keys()  # else there is no batch to normalise over
    if whole:
        gaps = np.concatenate([np.abs(chosen[key].logprobs - scores[key].old_logprobs) for key in sorted(chosen)])
        yield from compare(run, path, manifest, _counts(shards, chosen), "counts")
        yield from compare(run, path, manifest, _step0(chosen, gaps), "metrics")
    try:
        targets = {one.key: one for one in read_targets(folder / "targets.jsonl")}
    except (RecordError, OSError) as fault:
        yield from_message(run, folder / "targets.jsonl", fault)
        return
    yield from (
        found(run, folder / "targets.jsonl", fact)
        for key in sorted(chosen.keys() & targets.keys())
        for fact in _misfits(targets[key], chosen[key])
    )
    if not whole:
        yield from _compare_keys(run, folder, "targets", chosen.keys(), targets.keys(), all_of_them=False)
        return
    cases = [case_of(settings, chosen[key], scores[key]) for key in sorted(chosen)]
    baselines = [case_of(settings, one) for one in shards.baselines.good]
    yield from _compare_targets(run, settings, iteration, cases, baselines, targets)


def case_of(settings: Config, outcome: Outcome, scored: Scored | None = None) -> Case:
    """A trajectory for the recomputation; without scores one that is not trained."""
    critic = None if scored is None else scored.critic_values
    return Case(
        task=outcome.task,
        sample=outcome.sample,
        rewards=[reward * settings.env.success_reward_scale for reward in outcome.rewards],
        valid=outcome.valid,
        lengths=outcome.lengths,
        seen=outcome.seen,
        values=() if scored is None else scored.values.tolist(),
        q_values=() if scored is None else scored.q_values.tolist(),
        critic_values=() if critic is None else critic.tolist(),
    )


def _selected(settings: Config, shards: Shards) -> dict[str, Outcome]:
    """What is scored: the trajectories without error, or those of them that the algorithm selects."""
    groups: dict[str, list[Case]] = {}
    for outcome in shards.good:
        groups.setdefault(outcome.task, []).append(case_of(settings, outcome))
    name, options = settings.algorithm.name, settings.algorithm.options
    kept = {one.key for group in groups.values() for one in group if is_selected(name, options, one, group)}
    return {outcome.key: outcome for outcome in shards.good if outcome.key in kept}


def _shape(outcome: Outcome) -> str:
    return f"{len(outcome.rewards)} and {len(outcome.logprobs)}"


def _compare_keys(
    run: Run, folder: Path, what: str, wanted: Set[str], made: Set[str], all_of_them: bool = True
) -> Iterator[Finding]:
    """Scores and targets are of the trajectories that can be trained on, and of no others."""
    lost = wanted - made if all_of_them else set()
    for keys, fact in ((lost, f"no {what} of"), (made - wanted, f"{what} without a rollout:")):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            yield found(run, folder, f"{fact} {min(keys)}{more}")


def _counts(shards: Shards, chosen: Mapping[str, Outcome]) -> dict[str, float]:
    tokens = sum(len(outcome.logprobs) for outcome in chosen.values())
    return {
        "trajectories": len(chosen),
        "errors": len(shards.outcomes) - len(shards.good),
        "not_selected": len(shards.good) - len(chosen),
        "turns": sum(len(outcome.rewards) for outcome in chosen.values()),
        "response_tokens": tokens,
        "scored_tokens": tokens + sum(outcome.prompt_tokens for outcome in chosen.values()),
    }


def _step0(chosen: Mapping[str, Outcome], gaps: np.ndarray) -> dict[str, float]:
    """The mask sums, and how far scoring is from sampling."""
    return {
        "step0/logprob_gap_max": float(gaps.max(initial=0.0)),
        "step0/logprob_gap_mean": float(gaps.mean()) if len(gaps) else 0.0,
        "step0/response_tokens": len(gaps),
        "step0/turns": sum(len(outcome.rewards) for outcome in chosen.values()),
    }


def _read_scores(run: Run, iteration: int, scores: dict[str, Scored]) -> Iterator[Finding]:
    for path in sorted(run.paths.advantages(iteration).glob(SCORES_PATTERN)):
        try:
            file = read_weight_file(path)
            contents = json.loads(file.metadata["contents"])
            tokens, turns = contents["num_tokens"], contents["num_turns"]
            series = {
                name: read_floats(file, name, 0, sum(counts))
                for name, counts in ((*((name, tokens) for name in OF_TOKENS), ("values", turns), ("q_values", turns)))
            }
            parts = {name: np.split(series[name], np.cumsum(turns)[:-1]) for name in ("values", "q_values")}
            for name in ("old_logprobs", "ref_logprobs", "critic_values"):
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
    cases: Sequence[Case],
    baselines: Sequence[Case],
    targets: Mapping[str, Targets],
) -> Iterator[Finding]:
    """Every number of targets.jsonl against what the algorithm makes of the rewards and the scores."""
    folder, path = run.paths.advantages(iteration), run.paths.advantages(iteration) / "targets.jsonl"
    try:
        again = recompute(settings, cases, baselines)
    except (ValueError, TypeError, LookupError, ArithmeticError) as fault:
        yield found(run, path, f"cannot be recomputed ({fault}): scores, baselines or options are not what was read")
        return
    if again is None:  # an algorithm of the user's own
        keys = {case.key for case in cases}
        yield from _compare_keys(run, folder, "targets", keys, targets.keys(), all_of_them=False)
        return
    yield from _compare_keys(run, folder, "targets", again.targets.keys(), targets.keys())
    for key in sorted(again.targets.keys() & targets.keys()):
        yield from (found(run, path, fact) for fact in _differences(targets[key], again.targets[key]))
    place = run.paths.manifest("compute_advantages", iteration)
    manifest = run.manifests["compute_advantages", iteration]
    expected = {"advantage/mean": again.mean, "advantage/std": again.std}
    yield from compare(run, place, manifest, expected, "metrics")


def _series(targets: Targets) -> Iterator[tuple[str, Sequence[float]]]:
    for item in fields(Targets):
        if item.name not in ("key", "weight"):
            yield item.name, getattr(targets, item.name)


def _misfits(targets: Targets, outcome: Outcome) -> Iterator[str]:
    """What has not as many numbers as the rollout has turns or tokens; what an algorithm does not have is empty."""
    for name, stored in _series(targets):
        count, what = len(outcome.rewards), "turns"
        if name.startswith("token_"):
            count, what = len(outcome.logprobs), "tokens"
        if len(stored) not in (0, count) or (name == "advantages" and not stored):
            yield f"{name} of {targets.key} has {len(stored)} {what}, the rollout {count}"


def _differences(targets: Targets, expected: Mapping[str, Sequence[float]]) -> Iterator[str]:
    for name, stored in (*_series(targets), ("weight", (targets.weight,))):
        numbers = expected.get(name, (1.0,) if name == "weight" else ())
        if len(stored) != len(numbers):
            if not (stored and numbers):  # another length is a misfit already
                yield f"{name} of {targets.key} is {'there' if stored else 'not there'}, recomputed it is not so"
            continue
        close = NORMALISED_CLOSE if name in ("advantages", "token_advantages") else CLOSE
        wrong = [n for n, (a, b) in enumerate(zip(stored, numbers, strict=True)) if not is_close(a, b, close)]
        if wrong:
            what = "token" if name.startswith("token_") else "turn"
            place = "" if name == "weight" else f" {what} {wrong[0]}"
            yield f"{name} of {targets.key}{place} is {stored[wrong[0]]:.6g}, recomputed {numbers[wrong[0]]:.6g}"
