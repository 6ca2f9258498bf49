"""The recomputation that `verify` compares targets with, by hand."""

from __future__ import annotations

import statistics

import pytest

from pipeline.config_loading import build_config
from pipeline.inspect.recomputed_targets import Case, recompute


def recomputed(algorithm: dict, cases: list[Case], baselines: list[Case] = (), **advantage: float) -> dict:
    name = algorithm.pop("name")
    tree = {"algorithm": {"name": name, "options": algorithm}, "advantage": {"epsilon": 1e-9, **advantage},
            "rollout": {"trajectories": 32}}  # fmt: skip
    return recompute(build_config(tree), cases, list(baselines)).targets


def case(sample: int, rewards: list[float], **parts) -> Case:
    fields = {"valid": [True] * len(rewards), "lengths": [1] * len(rewards), "seen": range(len(rewards))}
    return Case("t", sample, rewards, **(fields | parts))


def test_groups_by_hand():
    """Returns 4 and 2, no invalid turn: mean 3, deviation sqrt(2); against each other +-2 / r_max 10."""
    pair = [case(0, [0.0, 4.0]), case(1, [2.0])]
    found = recomputed({"name": "grpo", "group_size": 2}, pair)
    assert found["t#0"]["advantages"] == pytest.approx([2**-0.5] * 2) and found["t#1"]["advantages"][0] < 0
    assert [found[key]["weight"][0] for key in ("t#0", "t#1")] == pytest.approx([3 / 2 / 2, 3 / 2 / 1])
    found = recomputed({"name": "rloo", "group_size": 2}, pair)
    assert (found["t#0"]["advantages"], found["t#1"]["advantages"]) == (pytest.approx([0.2] * 2), pytest.approx([-0.2]))
    # an invalid first turn of sample 0 costs 1 there: scores 3, 4, mean 3.5; against 2
    penalised = [case(0, [0.0, 4.0], valid=[False, True]), case(1, [2.0])]
    found = recomputed({"name": "rloo", "group_size": 2}, penalised, invalid_action_coef=1.0)
    assert found["t#0"]["advantages"] == pytest.approx([0.1, 0.2]) and found["t#1"]["advantages"] == [-0.15]
    # the same seen at the first turns: returns ahead 0.5 * 4 = 2 and 2: no difference there
    found = recomputed({"name": "gigpo", "group_size": 2, "use_std": False}, pair, gamma=0.5)
    assert found["t#0"]["advantages"] == pytest.approx([0.1, 0.1])
    found = recomputed({"name": "gigpo", "group_size": 2, "use_std": False}, pair, gamma=1.0)
    assert found["t#0"]["advantages"] == pytest.approx([0.1 + 0.1, 0.1])  # 4 and 2 ahead: 1 above the mean, over 10


def test_baselines_by_hand():
    one = case(0, [0.0, 3.0])
    found = recomputed({"name": "remax"}, [one], [case(1, [1.0])])
    assert found["t#0"]["advantages"] == pytest.approx([0.2, 0.2])  # (3 - 1) / 10
    # from turn 0 a continuation was paid 0, 4; from turn 1 it replays turn 0 and is paid 1: V 2 and 1 at gamma 0.5
    found = recomputed({"name": "vineppo"}, [one], [case(1, [0.0, 4.0]), case(2, [0.0, 1.0])], gamma=0.5)
    assert found["t#0"]["values"] == [2.0, 1.0]
    assert found["t#0"]["raw_advantages"] == pytest.approx([0 + 0.5 * 1 - 2, 3 - 1])


def test_token_credit_by_hand():
    """Two tokens, then one that is paid 1; V 0.5, 0.2, 0.4; gamma 0.9, lambda 0.5.

    1 - 0.4 = 0.6; 0.9 * 0.4 - 0.2 + 0.45 * 0.6 = 0.43; 0.9 * 0.2 - 0.5 + 0.45 * 0.43 = -0.1265.
    """
    one = case(0, [0.0, 1.0], lengths=[2, 1], critic_values=[0.5, 0.2, 0.4])
    found = recomputed({"name": "ppo", "credit": "token"}, [one], gamma=0.9, gae_lambda=0.5)["t#0"]
    assert found["token_returns"] == pytest.approx([0.5 - 0.1265, 0.2 + 0.43, 1.0])
    assert found["raw_advantages"] == pytest.approx([(0.43 - 0.1265) / 2, 0.6])
    assert found["values"] == [0.5, 0.4]
    assert statistics.fmean(found["token_advantages"]) == pytest.approx(0.0, abs=1e-12)
