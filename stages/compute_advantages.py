"""Stage: score the rollouts with the policy that sampled them, then have the algorithm compute the targets (Eq. 4-7).

Reads iterations/i/rollouts and policy i-1 (and policy 0, the reference, where the KL coefficient is not 0; and critic
i-1, where the algorithm has one).
Writes iterations/i/advantages: scores-RRRRR.safetensors of each rank, targets.jsonl of rank 0, and in the first
iteration first_critic/ where the algorithm has a critic. With `recompute` the targets are made again from the stored
scores, without a model.
"""

from __future__ import annotations

if __name__ == "__main__":
    import sys
    from pathlib import Path as _Path

    sys.path.insert(0, str(_Path(__file__).resolve().parents[1]))

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.algorithms.base import BASELINES, Episode, Estimates
from runtime.estimators import discounted_returns
from runtime.losses import agreement
from runtime.records import RecordError, Scores, Targets, Trajectory
from runtime.scoring import (
    SCORES_PATTERN,
    check_ids,
    critic_values,
    deal_trajectories,
    read_scores,
    score_trajectories,
    scores_path,
    value_token_probability,
    write_scores,
)
from runtime.shards import read_trajectories, write_targets
from runtime.weight_files import policy_fingerprint
from stages.algorithm import algorithm_of
from stages.context import Context, StageResult

if TYPE_CHECKING:
    from pipeline.config import Config, ValueConfig
    from runtime.vocabulary import ValueTokens


def run(context: Context, recompute: bool = False) -> StageResult:
    """Score (unless `recompute`) and compute the targets of `context.iteration`."""
    folder = context.paths.advantages(context.iteration)
    everything = read_trajectories(context.paths.rollouts(context.iteration))
    num_errors = sum(one.status == "error" for one in everything)
    if num_errors == len(everything):
        raise RecordError(
            f"{context.paths.rollouts(context.iteration)}: no trajectory to train on ({num_errors} ended in an "
            "error); mend what their `error` field says, then delete the folder to play anew"
        )
    trajectories = sorted(algorithm_of(context.config).select(everything), key=lambda one: one.key)
    seconds, measured = {}, {}
    if not recompute:
        seconds, measured = _score(context, trajectories, folder)
    context.distributed.barrier("the scores of all ranks")
    counts = {
        "trajectories": len(trajectories),
        "errors": num_errors,
        "not_selected": len(everything) - num_errors - len(trajectories),
        "turns": sum(len(one.turns) for one in trajectories),
        "response_tokens": sum(len(turn.response_ids) for one in trajectories for turn in one.turns),
        "scored_tokens": sum(len(t.prompt_ids) + len(t.response_ids) for one in trajectories for t in one.turns),
    }
    if not context.distributed.is_main:
        return StageResult(counts=counts, seconds=seconds)
    start = time.perf_counter()
    scores = _check_scores(trajectories, read_scores(folder), folder)
    baselines = read_trajectories(context.paths.rollouts(context.iteration), BASELINES)
    estimates = compute_targets(trajectories, scores, baselines, context.config)
    write_targets(folder / "targets.jsonl", estimates.targets)
    seconds["targets_s"] = time.perf_counter() - start
    metrics = {
        **estimates.metrics,
        **value_metrics(trajectories, estimates.targets, context.config),
        **step0_metrics(trajectories, scores),
        **measured,
    }
    if warning := no_signal(metrics, counts):
        print(f"warning: iteration {context.iteration}: {warning}", flush=True)
    return StageResult(counts=counts, metrics=metrics, seconds=seconds)


def _score(
    context: Context, trajectories: Sequence[Trajectory], folder: Path
) -> tuple[dict[str, float], dict[str, float]]:
    """This rank's share of the scoring passes, written to its file.

    Returns:
        The seconds of the parts, and what was measured with the policy at hand, over all ranks.
    """
    from runtime.model import resident_replica  # heavy, and not needed to recompute

    config, distributed = context.config, context.distributed
    rollouts = context.paths.rollouts(context.iteration)
    if distributed.is_main:  # files of an earlier attempt, perhaps with more ranks
        for path in folder.glob(SCORES_PATTERN):
            path.unlink()
    distributed.barrier("the removal of old scores")
    own = deal_trajectories(trajectories, distributed.world_size)[distributed.rank]
    budget, device = config.advantage.score_tokens, distributed.device

    def scored_by(directory: Path, fingerprint: str, what: str) -> tuple[dict[str, Scores], float]:
        start = time.perf_counter()
        policy = resident_replica(
            context.resident,
            directory,
            fingerprint,
            dtype=config.model.dtype,
            attention=config.model.attention,
            temperature=config.rollout.temperature,
            device=device,
            v_offset=config.value.v_offset,
        )
        check_readout(policy.value_tokens, config.value, directory)
        rows = policy.causal_lm.get_output_embeddings().weight.shape[0]
        check_ids(trajectories, policy.value_ids.tolist(), rows, rollouts)
        bar = context.progress(sum(len(one.turns) for one in own), what, "turn")
        scores = score_trajectories(policy, own, budget, device, bar.update)
        bar.close()
        return scores, time.perf_counter() - start

    directory = context.paths.policy(context.iteration - 1)
    fingerprint = policy_fingerprint(directory)
    for trajectory in trajectories:  # all of them on every rank, so that all ranks fail together
        if trajectory.policy != fingerprint:
            raise RecordError(
                f"{rollouts}: trajectory {trajectory.key} was sampled by policy {trajectory.policy}, {directory} holds "
                f"{fingerprint}; delete the folder to play anew"
            )
    scores, old_seconds = scored_by(directory, fingerprint, "old log-probs, V, Q")
    start = time.perf_counter()
    on_value_tokens = value_token_probability(context.resident.replica, own, budget, device)
    seconds = {"old_logprobs_s": old_seconds, "step0_s": time.perf_counter() - start}
    if config.optimize.kl_coef != 0.0:
        reference = context.paths.policy(0)
        reference_fingerprint = policy_fingerprint(reference)
        referred = scores  # in the first iteration the policy is its own reference
        if reference_fingerprint != fingerprint:
            referred, seconds["ref_logprobs_s"] = scored_by(reference, reference_fingerprint, "reference log-probs")
        scores = {key: replace(one, ref_logprobs=referred[key].old_logprobs) for key, one in scores.items()}
    if algorithm_of(config).critic:
        start = time.perf_counter()
        values = _ask_critic(context, own)
        scores = {key: replace(one, critic_values=values[key]) for key, one in scores.items()}
        seconds["critic_values_s"] = time.perf_counter() - start
    write_scores(scores_path(folder, distributed.rank), [scores[one.key] for one in own])
    probabilities = distributed.gather(on_value_tokens, "the probability of the value tokens")
    return seconds, {"step0/value_token_probability": max(probabilities)}


def _ask_critic(context: Context, own: Sequence[Trajectory]) -> dict[str, tuple[float, ...]]:
    """The critic's values before each response token, reward units; in the first iteration the critic is made first."""
    from runtime.critic import make_first_critic, resident_critic

    config, distributed, folder = context.config, context.distributed, context.paths.critic(context.iteration - 1)
    if context.iteration == 1 and distributed.is_main:
        make_first_critic(context.paths.policy(0), folder)  # anew: no manifest vouches for an earlier attempt's
    distributed.barrier("the first critic")
    critic = resident_critic(
        context.resident,
        folder,
        policy_fingerprint(folder),
        dtype=config.model.dtype,
        attention=config.model.attention,
        device=distributed.device,
    )
    bar = context.progress(sum(len(one.turns) for one in own), "values of the critic", "turn")
    values = critic_values(critic, own, config.advantage.score_tokens, distributed.device, bar.update)
    bar.close()
    return {key: tuple(x * config.value.r_max for x in series) for key, series in values.items()}


def check_readout(tokens: ValueTokens, value: ValueConfig, directory: Path) -> None:
    """The readout that the policy was made for is the one that the loss will use.

    Raises:
        RecordError: they differ.
    """
    if (tokens.r_max, tokens.temperature) != (value.r_max, value.temperature):
        raise RecordError(
            f"{directory}: its value tokens are for r_max {tokens.r_max}, temperature {tokens.temperature}; the run's "
            f"settings are {value.r_max}, {value.temperature}: start a new run, which reserves them anew"
        )


def _check_scores(
    trajectories: Sequence[Trajectory], scores: Mapping[str, Scores], folder: Path
) -> Mapping[str, Scores]:
    """The mask sums of step 0: as many log-probs as response tokens, as many values as turns."""
    for trajectory in trajectories:
        one = scores.get(trajectory.key)
        num_tokens = sum(len(turn.response_ids) for turn in trajectory.turns)
        if one is None or len(one.values) != len(trajectory.turns) or len(one.old_logprobs) != num_tokens:
            raise RecordError(
                f"{folder}: scores of trajectory {trajectory.key} are missing or do not fit its "
                f"{len(trajectory.turns)} turns and {num_tokens} response tokens; "
                "run compute_advantages without --recompute"
            )
    return scores


def compute_targets(
    trajectories: Sequence[Trajectory],
    scores: Mapping[str, Scores],
    baselines: Sequence[Trajectory],
    config: Config,
) -> Estimates:
    """What the algorithm makes of the trajectories; targets in their order."""
    scale = config.env.success_reward_scale

    def episode(one: Trajectory) -> Episode:
        return Episode(one, tuple(turn.reward * scale for turn in one.turns), scores.get(one.key))

    if not trajectories:
        return Estimates([], {"advantage/zero_variance": 1.0})
    episodes = [episode(one) for one in trajectories]
    return algorithm_of(config).estimate(episodes, [episode(one) for one in baselines if one.status != "error"])


def value_metrics(trajectories: Sequence[Trajectory], targets: Sequence[Targets], config: Config) -> dict[str, float]:
    """How the values (and Q) agree with the lambda-returns, and with the plain discounted ones.

    The lambda-return has V in it, the plain one (suffix _plain) has not. Left out where there is no variance, and where
    the algorithm has no values.
    """
    if not targets:
        return {}
    r_max = config.value.r_max
    by_key = {one.key: one for one in trajectories}
    trained = [by_key[one.key] for one in targets]
    rewards = [[turn.reward * config.env.success_reward_scale for turn in one.turns] for one in trained]
    plain = [x for own in rewards for x in discounted_returns(own, config.advantage.gamma).tolist()]
    metrics = {"advantage/return_plain": statistics.fmean(plain)}
    metrics["advantage/equal_returns"] = float(len({one.return_undiscounted for one in trained}) == 1)
    readouts = {"v": [x for one in targets for x in one.values], "q": [x for one in targets for x in one.q_values]}
    if not readouts["v"]:
        return metrics
    returns = [x for one in targets for x in one.returns]
    metrics["advantage/return"] = statistics.fmean(returns)
    for name, p in readouts.items():
        if not p:
            continue
        metrics[f"advantage/saturated_{name}"] = statistics.fmean(abs(x) >= r_max * (1 - 1e-6) for x in p)
        for suffix, y in (("", returns), ("_plain", plain)):
            explained, correlation = agreement(*_moments(p, y))
            if explained is not None:
                metrics[f"advantage/explained_variance_{name}{suffix}"] = explained
            if correlation is not None:
                metrics[f"advantage/correlation_{name}{suffix}"] = correlation
    beyond = [abs(x) > r_max for one in targets for x in one.returns + one.q_targets]
    metrics["advantage/targets_beyond_r_max"] = statistics.fmean(beyond)
    return metrics


def _moments(p: Sequence[float], y: Sequence[float]) -> tuple[float, ...]:
    pairs = list(zip(p, y, strict=True))
    return (
        statistics.fmean(p),
        statistics.fmean(a * a for a in p),
        statistics.fmean(a * b for a, b in pairs),
        statistics.fmean(y),
        statistics.fmean(b * b for b in y),
    )


def no_signal(metrics: Mapping[str, float], counts: Mapping[str, int]) -> str | None:
    """What to say of a batch that tells the policy nothing; None where it does."""
    if not counts["turns"]:
        return f"none of its {counts['not_selected']} trajectories is of use to the algorithm: the policy stays"
    if metrics["advantage/zero_variance"]:
        return f"the advantages of all {counts['turns']} turns are 0: the policy learns nothing from it"
    if metrics.get("advantage/equal_returns"):
        return (
            f"all {counts['trajectories']} trajectories have the same return, so what the advantages hold is V's error "
            "and the penalty of invalid actions; if this goes on, the tasks are too hard or too easy"
        )
    return None


def step0_metrics(trajectories: Sequence[Trajectory], scores: Mapping[str, Scores]) -> dict[str, float]:
    """|log-prob from sampling - from scoring|; 0 up to rounding where both used the same weights and temperature.

    And the sums of the masks: log-probs are what the response mask picked (`_check_scores` has compared their number
    with the records' response ids), values what the boundaries of the turns picked.
    """
    if not trajectories:
        return {}
    gaps = [
        abs(sampled - scored)
        for one in trajectories
        for sampled, scored in zip(
            (x for turn in one.turns for x in turn.sampling_logprobs), scores[one.key].old_logprobs, strict=True
        )
    ]
    return {
        "step0/logprob_gap_max": max(gaps),
        "step0/logprob_gap_mean": statistics.fmean(gaps),
        "step0/response_tokens": float(sum(len(scores[one.key].old_logprobs) for one in trajectories)),
        "step0/turns": float(sum(len(scores[one.key].values) for one in trajectories)),
    }


if __name__ == "__main__":
    from pipeline.one_stage import main  # the script, not the module, sits above the pipeline

    main("compute_advantages")
