from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config import AdvantageConfig, Config, EnvConfig, ModelConfig, OptimizeConfig, ValueConfig
from pipeline.run_directory import RunPaths
from runtime.distributed import Distributed
from runtime.model import load_policy
from runtime.progress import Progress
from runtime.records import RecordError, Trajectory
from runtime.rows import plain_rows
from runtime.scoring import read_scores, score_trajectories, scores_path, write_scores
from runtime.shards import ShardWriter, read_targets, shard_path
from runtime.weight_files import policy_fingerprint
from stages.compute_advantages import compute_targets, no_signal, run
from stages.context import Context, Resident
from tests.tiny_policies import causal_lm, save_policy
from tests.trajectories import trajectory

CONFIG = Config(
    model=ModelConfig(dtype="float32"),
    env=EnvConfig(success_reward_scale=0.5),
    advantage=AdvantageConfig(gamma=0.9, gae_lambda=0.8, invalid_action_coef=0.25, score_tokens=100),
    optimize=OptimizeConfig(kl_coef=0.01),
)


def prepare(root: Path, iteration: int = 2) -> tuple[Context, list[Trajectory]]:
    """A run with policy 0, policy 1 and the rollouts of an iteration, error and all."""
    paths = RunPaths(root)
    save_policy(causal_lm(seed=0), paths.model)
    save_policy(causal_lm(seed=1), paths.policy(1))
    sampled_by = policy_fingerprint(paths.policy(iteration - 1))
    trajectories = [
        trajectory("b", 3, policy=sampled_by, valid=(True, False, True)),
        trajectory("a", 2, policy=sampled_by, reward=0.0, status="truncated"),
        trajectory("lost", 1, policy=sampled_by, status="error"),
        trajectory("c", 4, policy=sampled_by),
    ]
    for rank, part in enumerate((trajectories[:2], trajectories[2:])):
        with ShardWriter(shard_path(paths.rollouts(iteration), rank)) as writer:
            for one in part:
                writer.append(one)
    context = Context(CONFIG, paths, iteration, Distributed.single(), None, Resident(), Progress(False))
    return context, [one for one in trajectories if one.status != "error"]


def naive_advantages(trajectories, scores) -> dict[str, list[float]]:
    """Eq. 4-7 with plain numbers and forward sums."""
    raw, all_penalised = {}, []
    for one in sorted(trajectories, key=lambda one: one.key):
        v, r = scores[one.key].values, [0.5 * turn.reward for turn in one.turns]
        raw[one.key] = []
        for t in range(len(r)):
            total = 0.0
            for s in range(t, len(r)):
                following = v[s + 1] if s + 1 < len(r) else 0.0
                total += (0.9 * 0.8) ** (s - t) * (r[s] + 0.9 * following - v[s])
            raw[one.key].append(total)
            all_penalised.append(total - 0.25 * (not one.turns[t].valid))
    mean = sum(all_penalised) / len(all_penalised)
    std = math.sqrt(sum((x - mean) ** 2 for x in all_penalised) / len(all_penalised))
    normalised = iter([(x - mean) / (std + 1e-6) for x in all_penalised])
    return {key: [next(normalised) for _ in series] for key, series in raw.items()}


@pytest.fixture
def prepared(tmp_path):
    return prepare(tmp_path)


def test_scores_targets_and_metrics(prepared):
    context, trajectories = prepared
    result = run(context)
    folder = context.paths.advantages(2)
    scores, targets = read_scores(folder), read_targets(folder / "targets.jsonl")
    assert [one.key for one in targets] == ["a#0", "b#0", "c#0"]  # canonical order, the error left out
    policy = load_policy(context.paths.policy(1), dtype="float32")
    reference = load_policy(context.paths.model, dtype="float32")
    for one in trajectories:
        expected = score_trajectories(policy, [one], 10_000, "cpu")[one.key]
        assert scores[one.key].old_logprobs == pytest.approx(expected.old_logprobs, abs=1e-5)
        assert scores[one.key].values == pytest.approx(expected.values, abs=1e-4)
        expected = score_trajectories(reference, [one], 10_000, "cpu")[one.key]
        assert scores[one.key].ref_logprobs == pytest.approx(expected.old_logprobs, abs=1e-5)
        assert scores[one.key].ref_logprobs != pytest.approx(scores[one.key].old_logprobs, abs=0.1)
    expected = naive_advantages(trajectories, scores)
    for one in targets:
        assert one.advantages == pytest.approx(expected[one.key], abs=1e-9)
        assert one.values == scores[one.key].values
    assert result.counts["trajectories"] == 3 and result.counts["errors"] == 1 and result.counts["turns"] == 9
    assert result.counts["response_tokens"] == sum(
        row.num_response_tokens for one in trajectories for row in plain_rows(one)
    )
    gaps = [
        abs(a - b)
        for one in trajectories
        for a, b in zip([x for t in one.turns for x in t.sampling_logprobs], scores[one.key].old_logprobs, strict=True)
    ]
    assert result.metrics["step0/logprob_gap_max"] == pytest.approx(max(gaps), abs=1e-9)
    assert result.metrics["step0/logprob_gap_mean"] == pytest.approx(sum(gaps) / len(gaps), abs=1e-9)
    assert result.metrics["step0/value_token_probability"] == 0.0
    assert result.metrics["step0/response_tokens"] == result.counts["response_tokens"]
    assert result.metrics["step0/turns"] == 9
    y = [x for one in targets for x in one.returns]
    v = [x for one in targets for x in one.values]
    variance = lambda series: sum((x - sum(series) / 9) ** 2 for x in series) / 9  # noqa: E731
    explained = 1 - variance([a - b for a, b in zip(y, v, strict=True)]) / variance(y)
    assert result.metrics["advantage/explained_variance_v"] == pytest.approx(explained, abs=1e-9)
    saturated = sum(abs(x) > 9.9999 for x in v) / 9
    assert 0 < saturated < 1 and result.metrics["advantage/saturated_v"] == pytest.approx(saturated)
    assert result.metrics["advantage/zero_variance"] == 0.0
    assert all(math.isfinite(x) for x in result.metrics.values())


def test_the_plain_returns_of_the_metrics_are_discounted_rewards(prepared):
    context, _ = prepared
    # rewards are halved: 5 at the last turn of b (3 turns) and c (4 turns), 0 in a (2 turns)
    plain = [0, 0] + [5 * 0.81, 4.5, 5] + [5 * 0.729, 4.05, 4.5, 5]
    assert run(context).metrics["advantage/return_plain"] == pytest.approx(sum(plain) / 9, abs=1e-12)


def test_the_first_iteration_is_its_own_reference(tmp_path):
    context, _ = prepare(tmp_path, iteration=1)
    run(context)
    for one in read_scores(context.paths.advantages(1)).values():
        assert one.ref_logprobs == one.old_logprobs


def test_without_a_kl_there_is_no_reference_pass(prepared):
    context, _ = prepared
    context.config = replace(CONFIG, optimize=replace(CONFIG.optimize, kl_coef=0.0))
    result = run(context)
    assert all(one.ref_logprobs is None for one in read_scores(context.paths.advantages(2)).values())
    assert "ref_logprobs_s" not in result.seconds
    assert context.resident.replica_policy == policy_fingerprint(context.paths.policy(1))


def test_recompute_needs_no_model_and_equals_a_fresh_computation(prepared):
    context, _ = prepared
    run(context)
    folder = context.paths.advantages(2)
    before = (folder / "targets.jsonl").read_bytes()
    for path in (*context.paths.model.iterdir(), *context.paths.policy(1).iterdir()):
        path.unlink()
    context.resident = Resident()
    (folder / "targets.jsonl").unlink()
    run(context, recompute=True)
    assert (folder / "targets.jsonl").read_bytes() == before
    context.config = replace(CONFIG, advantage=replace(CONFIG.advantage, gamma=0.5))
    run(context, recompute=True)
    assert (folder / "targets.jsonl").read_bytes() != before


def test_a_second_run_writes_the_same_bytes_and_forgets_the_files_of_more_ranks(prepared):
    context, trajectories = prepared
    run(context)
    folder = context.paths.advantages(2)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    stale = replace(read_scores(folder)["a#0"], values=(9.0, 9.0))
    write_scores(scores_path(folder, 1), [stale])
    run(context)  # the replica is warm now, and holds the reference
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_how_the_trajectories_lie_in_shards_does_not_matter(tmp_path, prepared):
    context, trajectories = prepared
    run(context)
    other, _ = prepare(tmp_path / "other")
    for path in other.paths.rollouts(2).iterdir():
        path.unlink()
    with ShardWriter(shard_path(other.paths.rollouts(2), 0)) as writer:
        for one in trajectories[::-1]:
            writer.append(one)
    run(other)
    first, second = (c.paths.advantages(2) / "targets.jsonl" for c in (context, other))
    assert first.read_bytes() == second.read_bytes()


def test_rollouts_of_another_policy_are_refused(prepared):
    context, _ = prepared
    save_policy(causal_lm(seed=7), context.paths.policy(1))
    with pytest.raises(RecordError, match="was sampled by policy"):
        run(context)


def test_value_tokens_for_another_readout_are_refused(prepared):
    context, _ = prepared
    context.config = replace(CONFIG, value=ValueConfig(r_max=5.0))
    with pytest.raises(RecordError, match="r_max 10.0"):
        run(context)


def test_nothing_but_errors_is_refused(tmp_path):
    context, _ = prepare(tmp_path)
    for path in context.paths.rollouts(2).iterdir():
        path.unlink()
    with ShardWriter(shard_path(context.paths.rollouts(2), 0)) as writer:
        writer.append(trajectory("lost", 1, status="error"))
    with pytest.raises(RecordError, match="no trajectory to train on"):
        run(context)


def test_targets_do_not_depend_on_token_counts(prepared):
    context, trajectories = prepared
    run(context)
    scores = read_scores(context.paths.advantages(2))
    first = compute_targets(trajectories, scores, [], CONFIG)
    longer = []
    for one in trajectories:
        turns = [replace(t, prompt_ids=t.prompt_ids * 9, response_ids=t.response_ids * 7) for t in one.turns]
        longer.append(replace(one, turns=tuple(turns)))
    second = compute_targets(longer, scores, [], CONFIG)
    assert first == second


def test_a_batch_without_variance_is_counted_and_trains_nothing(prepared):
    context, trajectories = prepared
    run(context)
    scores = {
        key: replace(one, values=(0.0,) * len(one.values), q_values=(0.0,) * len(one.values))
        for key, one in read_scores(context.paths.advantages(2)).items()
    }
    equal = [
        replace(one, turns=tuple(replace(turn, reward=0.0, valid=True) for turn in one.turns)) for one in trajectories
    ]
    estimates = compute_targets(equal, scores, [], CONFIG)
    assert estimates.metrics["advantage/zero_variance"] == 1.0
    assert {x for one in estimates.targets for x in one.advantages} == {0.0}


@pytest.mark.parametrize(
    ("zero_variance", "equal_returns", "words"),
    [(1.0, 1.0, "advantages of all 9 turns are 0"), (0.0, 1.0, "all 3 trajectories have the same return")],
)
def test_a_batch_without_signal_is_one_line_of_warning(zero_variance, equal_returns, words):
    counts = {"turns": 9, "trajectories": 3}
    metrics = {"advantage/zero_variance": zero_variance, "advantage/equal_returns": equal_returns}
    assert words in no_signal(metrics, counts)
    assert no_signal({"advantage/zero_variance": 0.0, "advantage/equal_returns": 0.0}, counts) is None


def test_the_warning_is_printed_where_all_episodes_end_alike(prepared, capsys):
    context, trajectories = prepared
    run(context)
    assert "warning" not in capsys.readouterr().out
    folder = context.paths.rollouts(2)
    for path in folder.glob("rank-*.jsonl"):
        path.unlink()
    with ShardWriter(shard_path(folder, 0)) as writer:
        for one in trajectories:
            writer.append(replace(one, turns=tuple(replace(turn, reward=0.0) for turn in one.turns)))
    run(context)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert line.startswith("warning: iteration 2: all 3 trajectories have the same return")


@pytest.mark.parametrize("reward", [10.0, 0.0])
def test_a_batch_in_which_every_action_is_invalid_is_finite(tmp_path, reward):
    """A penalty that all turns get alike says nothing about any: the normalised advantages are those without it."""
    advantages = []
    for valid in (True, False):
        context, _ = prepare(tmp_path / str(valid))
        sampled_by = policy_fingerprint(context.paths.policy(1))
        shard_path(context.paths.rollouts(2), 1).unlink()
        with ShardWriter(shard_path(context.paths.rollouts(2), 0)) as writer:
            writer._file.truncate(0)
            for name, turns in (("a", 3), ("b", 1), ("c", 4)):
                writer.append(trajectory(name, turns, policy=sampled_by, reward=reward, valid=(valid,) * turns))
        run(context)
        targets = read_targets(context.paths.advantages(2) / "targets.jsonl")
        advantages.append([x for one in targets for x in one.advantages])
        assert all(math.isfinite(x) for one in targets for series in (one.advantages, one.returns) for x in series)
    assert advantages[0] == pytest.approx(advantages[1], abs=1e-6) and max(advantages[0]) > 0.1
