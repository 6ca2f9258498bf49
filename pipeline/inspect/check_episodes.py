"""What `verify` checks of rollouts and of the episodes of evaluations: each line, and their sums."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config import Config
from pipeline.inspect.findings import Finding, found, from_message
from pipeline.inspect.reading import BASELINES, Run, complete_lines, decode_strictly, read_json
from pipeline.inspect.scores import TokenTexts
from pipeline.manifests import NAME, Manifest
from runtime.records import RecordError, Trajectory, Turn
from runtime.seeding import Name, trajectory_seed
from runtime.shards import SHARD_PATTERN
from runtime.vocabulary import read_value_tokens
from runtime.weight_files import ModelFilesError, policy_fingerprint
from runtime.weight_files import read_json as read_model_json

CLOSE = 1e-9  # of sums of the same numbers
GREEDY = 0.0


@dataclass(frozen=True)
class Rules:
    """What every turn of a run has to keep to."""

    max_turns: int
    prompt_tokens: int
    response_tokens: int
    vocabulary_size: int | None  # None: the model's files do not tell, which check_policies reports
    value_ids: frozenset[int]
    texts: TokenTexts
    run_seed: int

    @classmethod
    def of(cls, run: Run, settings: Config) -> Rules:
        try:
            tokens = read_value_tokens(run.paths.model)
            value_ids = frozenset((tokens.positive_id, tokens.negative_id))
            rows = read_model_json(run.paths.model / "config.json").get("vocab_size")
        except (ModelFilesError, OSError):
            value_ids, rows = frozenset(), None
        env = settings.env
        texts = TokenTexts(run.paths.model)
        return cls(env.max_turns, env.prompt_tokens, env.response_tokens, rows, value_ids, texts, settings.run.seed)


@dataclass(frozen=True)
class Origin:
    """What all trajectories of a shard have in common."""

    iteration: int
    seed_name: Name
    temperatures: tuple[float, ...]  # one of them
    split: str | None  # None: the adapter's split for training, whatever its name
    policy: str | None  # None: its weights are gone


@dataclass(frozen=True)
class Outcome:
    """What sums and targets need of a trajectory: a run holds more text than fits into memory."""

    key: str
    task: str
    sample: int
    split: str
    status: str
    success: bool
    score: float
    rewards: tuple[float, ...]  # [K]
    valid: tuple[bool, ...]  # [K]
    prompt_tokens: int  # of all turns
    logprobs: np.ndarray  # sampling_logprobs of all turns, float64 [N]
    lengths: tuple[int, ...]  # [K], response tokens
    seen: tuple[int, ...]  # [K], hashes of the observations

    @classmethod
    def of(cls, one: Trajectory) -> Outcome:
        return cls(
            key=one.key,
            task=one.task_id,
            sample=one.sample,
            split=one.split,
            status=one.status,
            success=one.success,
            score=one.score,
            rewards=tuple(turn.reward for turn in one.turns),
            valid=tuple(turn.valid for turn in one.turns),
            prompt_tokens=sum(len(turn.prompt_ids) for turn in one.turns),
            logprobs=np.array([x for turn in one.turns for x in turn.sampling_logprobs]),
            lengths=tuple(len(turn.response_ids) for turn in one.turns),
            seen=tuple(hash(turn.observation) for turn in one.turns),
        )


@dataclass
class Shards:
    """What the shards of a sweep hold, and what is wrong with their lines."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by key; of several the one that counts
    findings: list[Finding] = field(default_factory=list)
    num_duplicates: int = 0
    baselines: Shards | None = None  # of an iteration: what was played and is not trained

    @property
    def good(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes.values() if outcome.status != "error"]


def check_rollouts(run: Run, settings: Config, rules: Rules, iteration: int) -> Shards:
    """The rollouts of an iteration: their lines and, where the stage is complete, its manifest."""
    folder = run.paths.rollouts(iteration)
    policy = _fingerprint(run.paths.policy(iteration - 1))
    sampled = settings.rollout.temperature
    shards = _read_shards(run, folder, "", rules, Origin(iteration, iteration, (sampled,), None, policy))
    origin = Origin(iteration, iteration, (GREEDY, sampled), None, policy)
    shards.baselines = _read_shards(run, folder, BASELINES, rules, origin)
    shards.findings += shards.baselines.findings
    both = [*shards.outcomes.values(), *shards.baselines.outcomes.values()]
    splits = {outcome.split for outcome in both}
    if len(splits) > 1:
        shards.findings.append(found(run, folder, f"holds trajectories of several splits: {', '.join(sorted(splits))}"))
    manifest = run.manifests.get(("collect_rollouts", iteration))
    if manifest is not None:
        path = run.paths.manifest("collect_rollouts", iteration)
        counts = {**_counts(both, shards), "baselines": len(shards.baselines.outcomes)}
        shards.findings += compare(run, path, manifest, counts, "counts")
        shards.findings += compare(run, path, manifest, _metrics(shards.good), "metrics")
    return shards


def check_evaluation(run: Run, rules: Rules, iteration: int) -> Iterator[Finding]:
    """The episodes of an evaluation and the results that were made of them."""
    folder = run.paths.evaluation(iteration)
    policy = _fingerprint(run.paths.policy(iteration))
    sweeps: dict[tuple[str, str], Shards] = {}
    for prefix in sorted({path.name[: path.name.index("rank-")] for path in folder.glob("*" + SHARD_PATTERN)}):
        split, _, temperature = prefix.removesuffix("-").rpartition("-t")
        try:
            origin = Origin(iteration, f"evaluate/{split}", (float(temperature),), split, policy)
        except ValueError:
            yield found(run, folder / f"{prefix}rank-*", "not named <split>-t<temperature>-rank-<rank>.jsonl")
            continue
        sweeps[split, temperature] = _read_shards(run, folder, prefix, rules, origin)
        yield from sweeps[split, temperature].findings
    if ("evaluate", iteration) in run.manifests:
        yield from _check_results(run, folder / "results.json", iteration, policy, sweeps)


def _read_shards(run: Run, folder: Path, prefix: str, rules: Rules, origin: Origin) -> Shards:
    """Check every line of a sweep's shards."""
    shards = Shards()
    complete = (folder / NAME).is_file()
    for path in sorted(folder.glob(prefix + SHARD_PATTERN)):
        size = 0
        for number, line in complete_lines(path):
            size += len(line)
            try:
                one = decode_strictly(line, str(path))
            except RecordError as fault:
                shards.findings.append(found(run, path, from_message(run, path, fault).fact, number))
                continue
            facts = [*check_trajectory(one, origin, rules.run_seed), *_check_turns(one, rules)]
            before = shards.outcomes.get(one.key)
            shards.num_duplicates += before is not None
            if before is not None and "error" not in (before.status, one.status):
                facts.append(f"{one.key}: is there twice")
            if before is None or (before.status == "error" != one.status):
                shards.outcomes[one.key] = Outcome.of(one)
            shards.findings += (found(run, path, fact, number) for fact in facts)
        if complete and size != path.stat().st_size:
            shards.findings.append(found(run, path, f"its last line is torn ({path.stat().st_size - size} bytes)"))
    return shards


def check_trajectory(one: Trajectory, origin: Origin, run_seed: int) -> Iterator[str]:
    """Where it comes from, and how it ended."""
    if one.iteration != origin.iteration:
        yield f"{one.key}: is of iteration {one.iteration}"
    if one.seed != trajectory_seed(run_seed, origin.seed_name, one.task_id, one.sample):
        yield f"{one.key}: seed {one.seed} is not the one of its run, iteration and task"
    expected = [f"{temperature:g}" for temperature in origin.temperatures]
    if f"{one.temperature:g}" not in expected:
        yield f"{one.key}: sampled at temperature {one.temperature:g}, expected {' or '.join(expected)}"
    if origin.split is not None and one.split != origin.split:
        yield f"{one.key}: is of split {one.split}"
    if origin.policy is not None and one.policy != origin.policy:
        yield f"{one.key}: was sampled by policy {one.policy}, the weights are {origin.policy}"
    if (one.error is not None) != (one.status == "error"):
        yield f"{one.key}: status {one.status}, but error is {'set' if one.error else 'not set'}"
    if one.success and one.status == "error":
        yield f"{one.key}: success, though its status is error"


def _check_turns(one: Trajectory, rules: Rules) -> Iterator[str]:
    if len(one.turns) > rules.max_turns or (one.status == "truncated" and len(one.turns) != rules.max_turns):
        yield f"{one.key}: {len(one.turns)} turns and {one.status}, env.max_turns is {rules.max_turns}"
    if one.status != "error" and not getattr(one.turns[-1], one.status):
        yield f"{one.key}: {one.status}, which its last turn does not say"
    for index, turn in enumerate(one.turns):
        yield from (f"{one.key} turn {index}: {fact}" for fact in _check_turn(turn, rules))


def _check_turn(turn: Turn, rules: Rules) -> Iterator[str]:
    for name, ids, longest in (
        ("prompt_ids", turn.prompt_ids, rules.prompt_tokens),
        ("response_ids", turn.response_ids, rules.response_tokens),
    ):
        if len(ids) > longest:
            yield f"{len(ids)} {name}, env.{name.replace('_ids', '_tokens')} is {longest}"
        if rules.vocabulary_size is not None and max(ids) >= rules.vocabulary_size:
            yield f"{name} hold id {max(ids)}, the vocabulary has {rules.vocabulary_size}"
        if taken := rules.value_ids.intersection(ids):
            yield f"{name} hold the value token {min(taken)}, which is never sampled or shown"
    if max(turn.sampling_logprobs) > 1e-6:
        yield f"sampling_logprobs hold {max(turn.sampling_logprobs):g}, a log-prob is at most 0"
    if turn.valid and not turn.action:
        yield "valid, but without an action"
    if rules.texts.known and turn.response not in (
        rules.texts.all(turn.response_ids[:-1]),  # the end-of-turn token is no part of the text
        rules.texts.all(turn.response_ids),
    ):
        yield "response is not the text of response_ids"


def _counts(outcomes: Sequence[Outcome], shards: Shards) -> dict[str, float]:
    return {
        "trajectories": len(outcomes),
        "turns": sum(len(outcome.rewards) for outcome in outcomes),
        "errors": sum(outcome.status == "error" for outcome in outcomes),
        "duplicates": shards.num_duplicates + shards.baselines.num_duplicates,
    }


def _metrics(good: Sequence[Outcome]) -> dict[str, float]:
    if not good:
        return {}
    turns = sum(len(outcome.rewards) for outcome in good)
    return {
        "rollout/success": statistics.fmean(outcome.success for outcome in good),
        "rollout/score": statistics.fmean(outcome.score for outcome in good),
        "rollout/return": statistics.fmean(sum(outcome.rewards) for outcome in good),
        "rollout/turns": turns / len(good),
        "rollout/truncated_share": statistics.fmean(outcome.status == "truncated" for outcome in good),
        "rollout/invalid_share": sum(not valid for outcome in good for valid in outcome.valid) / turns,
        "rollout/prompt_tokens": sum(outcome.prompt_tokens for outcome in good) / turns,
        "rollout/response_tokens": sum(len(outcome.logprobs) for outcome in good) / turns,
    }


def compare(
    run: Run, path: Path, manifest: Manifest, expected: Mapping[str, float], part: str, close: float = CLOSE
) -> Iterator[Finding]:
    """The numbers of a manifest's part against what the files come to; what it does not hold is left out."""
    recorded = getattr(manifest, part)
    for name, value in expected.items():
        if name in recorded and not is_close(recorded[name], value, close):
            yield found(run, path, f"{part}: {name} is {recorded[name]}, the files come to {value:.10g}")


def is_close(a: Any, b: float, close: float = CLOSE) -> bool:
    """Whether two numbers are the same up to rounding."""
    return isinstance(a, int | float) and abs(a - b) <= close * (1 + abs(b))


def _check_results(
    run: Run, path: Path, iteration: int, policy: str | None, sweeps: Mapping[tuple[str, str], Shards]
) -> Iterator[Finding]:
    results = read_json(path, [])
    try:
        if results["iteration"] != iteration:
            yield found(run, path, f"is of iteration {results['iteration']}")
        if policy is not None and results["policy"] != policy:
            yield found(run, path, f"is of policy {results['policy']}, the weights are {policy}")
        for sweep in results["sweeps"]:
            split, temperature = sweep["split"], f"{sweep['temperature']:g}"
            fact = _sweep_fact(sweep["all"], sweeps.get((split, temperature), Shards()))
            if fact is not None:
                yield found(run, path, f"{split} at temperature {temperature}: {fact}")
    except (KeyError, TypeError, ValueError) as fault:
        yield found(run, path, f"not results of an evaluation ({type(fault).__name__}: {fault})")


def _sweep_fact(row: Mapping[str, Any], shards: Shards) -> str | None:
    """What is wrong with a sweep's row. Shards of an earlier, larger sweep may hold more episodes than it."""
    good, wanted = shards.good, row["n"] + row["errors"]
    if len(shards.outcomes) < wanted:
        return f"{wanted} episodes, the shards have {len(shards.outcomes)}"
    if len(shards.outcomes) > wanted:
        return None
    if row["n"] != len(good):
        return f"n is {row['n']}, the shards have {len(good)} without error"
    won, turns = sum(one.success for one in good), sum(len(one.rewards) for one in good)
    if good and not is_close(row["success"], won / len(good)):
        return f"success is {row['success']}, the shards have {won} of {len(good)}"
    if good and not is_close(row["turns"], turns / len(good)):
        return f"turns is {row['turns']}, the shards have {turns} in {len(good)} episodes"
    return None


def _fingerprint(folder: Path) -> str | None:
    try:
        return policy_fingerprint(folder)
    except (ModelFilesError, OSError):
        return None  # removed by retention; what is damaged is reported where weights are checked
