"""The numbers of the tables, reckoned by hand from runs that were never played."""

from dataclasses import replace

import pytest

from pipeline.compare.measuring import Costs
from pipeline.compare.summary import (
    at_equal,
    costs,
    curve,
    grouped,
    notes,
    pairs,
    spent,
    success,
    summarise,
    times,
    training,
)
from pipeline.compare.tables import markdown, tables
from tests.pipeline.compare.measured import STAGES, make


def test_success_is_the_interquartile_mean_over_seeds():
    runs = [make(seed=i, success=(0.0, 0.5, last)) for i, last in enumerate((0.2, 0.5, 0.9))]
    found = success(runs, "near")
    assert found["after"]["mean"] == pytest.approx((0.25 * 0.2 + 0.5 + 0.25 * 0.9) / 1.5)
    assert found["after"]["values"] == [0.2, 0.5, 0.9] and found["before"]["mean"] == 0.0
    assert (found["after"]["low"], found["after"]["high"]) == pytest.approx((0.2, 0.9))  # 1 of 27 draws each is alike
    assert found["types"]["cool"]["mean"] == pytest.approx(found["after"]["mean"] / 2)
    assert found["turns"]["mean"] == 6.0 and found["n"] == [4, 4, 4]


def test_a_seed_without_a_judged_episode_is_left_out():
    found = success([make(success=(0.0, 0.5, None)), make(seed=1, success=(0.0, 0.5, 0.25))], "near")
    assert found["after"]["values"] == [0.25]
    assert success([make(success=(None, None, None))], "near")["after"] is None


def test_costs_are_sums_over_iterations_and_interquartile_means_over_seeds():
    found = costs([make(wall_s=(1.0, 2.0)), make(seed=1, wall_s=(2.0, 3.0))])
    assert found["wall_s"]["mean"] == found["cpu_s"]["mean"] == (3.0 + 5.0) / 2
    assert found["trajectories"]["values"] == [20, 20] and found["trained_tokens"]["mean"] == 1000
    assert found["optimize_memory_gib"]["mean"] == 1.5 and found["peak_memory_gib"]["mean"] == 2.0


def test_cpu_seconds_that_a_run_does_not_know_are_in_no_number():
    old = replace(make(seed=1), costs=Costs((10, 10), (1, 1), (1, 1), (4.0, 5.0), None))
    assert spent(old, "cpu_s") is None and curve(old, "near", "cpu_s") == ([], [])
    assert costs([make(), old])["cpu_s"]["values"] == [9.0] and costs([old])["cpu_s"] is None
    assert at_equal(grouped([make(), old]), "cpu_s", ["near"]) == []


def test_seconds_an_iteration():
    """Two iterations: 4 + 2 + 3 seconds in all, of which generation 2, environment 1, scoring 1.5, updates 2.5."""
    found = times([make(), make(seed=1)])
    assert found["generation"] == 1.0 and found["environment"] == 0.5 and found["policy update"] == 1.25
    assert found["old log-probs, V, Q"] == 0.75 and found["total"] == 4.5
    assert found["rest"] == pytest.approx(4.5 - 1.0 - 0.5 - 1.25 - 0.75)
    slow = replace(make(), stages={**STAGES, "optimize": {**STAGES["optimize"], "total": 5.0, "critic_s": 2.0}})
    assert times([slow])["critic update"] == 1.0 and times([slow])["rest"] == pytest.approx(found["rest"])


def test_training_is_the_mean_of_the_last_quarter():
    """Of eight iterations the last two; a metric that an iteration lacks counts in none."""
    values = {"rollout/success": (0.0,) * 6 + (0.2, 0.4), "advantage/explained_variance_v": (None,) * 7 + (0.5,)}
    run = replace(make(), iterations=8, training=values)
    found = training([run, replace(run, seed=1, training={"rollout/success": (0.0,) * 7 + (1.0,)})])
    assert found["rollout/success"]["values"] == pytest.approx([0.3, 0.5])
    assert found["advantage/explained_variance_v"]["values"] == [0.5] and found["sapo/entropy"] is None
    (table,) = (one for one in tables(summarise([run])) if one.title == "Training")
    assert table.head == ("variant", "success, %", "V explains") and table.rows == (("sapo", "30.0", "0.50"),)
    assert "Training" not in [one.title for one in tables(summarise([make()]))]


def test_at_equal_seconds_success_is_interpolated():
    """The cheap run ends at 4 s. The dear one has 0.2 after 2 s and 0.8 after 8 s: at 4 s 0.2 + 0.6 * 2 / 6."""
    cheap, dear = make("cheap", wall_s=(2.0, 2.0)), make("dear", success=(0.0, 0.2, 0.8), wall_s=(2.0, 6.0))
    (row,) = at_equal(grouped([cheap, dear]), "wall_s", ["near"])
    assert row["budget"] == 4.0
    assert row["success"]["cheap"]["mean"] == 1.0 and row["success"]["dear"]["mean"] == pytest.approx(0.4)
    assert at_equal(grouped([cheap, dear]), "trajectories", ["near"]) == []  # all played as many: that is the end


def test_pairs_task_by_task_and_seed_by_seed():
    """Seed 0: 1100 against 0101, seed 1: 1110 against 0000. First alone 1 + 3, second alone 1 + 0."""
    runs = [make("a", 0, won="1100"), make("a", 1, won="1110"), make("a", 2), make("b", 0, won="0101"),
            make("b", 1, won="0000"), make("b", 7)]  # fmt: skip
    (row,) = pairs(grouped(runs), "near")
    assert (row["first"], row["second"], row["seeds"], row["tasks"]) == ("a", "b", [0, 1], 4)
    assert row["difference"] == pytest.approx((0 + 3) / 8)
    assert row["first_only"] == [1, 3] and row["second_only"] == [1, 0]
    assert row["p"] == pytest.approx([1.0, 2 / 8])  # 3 of 3: 2 * C(3, 0) / 2^3
    assert row["p_pooled"] == pytest.approx(2 * (1 + 5) / 32)  # 4 against 1 of 5
    assert row["low"] <= row["difference"] <= row["high"]
    turned = pairs(grouped([*runs[3:], *runs[:3]]), "near")[0]
    assert turned["difference"] == -row["difference"] and turned["first_only"] == row["second_only"]


def test_pairs_take_the_tasks_that_both_judged():
    (row,) = pairs(grouped([make("a", won="1-10"), make("b", won="011-")]), "near")
    assert row["difference"] == pytest.approx((1 + 0) / 2)  # tasks 0 and 2
    assert pairs(grouped([make("a", won="1-1-"), make("b", won="-1-1")]), "near") == []
    other = make("b")
    fewer = replace(other.outcomes["near"], tasks=tuple(f"far/{task}" for task in other.outcomes["near"].tasks))
    assert pairs(grouped([make("a"), replace(other, outcomes={"near": fewer})]), "near") == []


def test_notes_say_where_it_is_not_like_with_like():
    assert notes(grouped([make("a"), make("b"), make("a", 1), make("b", 1)])) == []
    assert "same weights (seeds 0)" in notes(grouped([make("a"), make("b", start="others")]))[0]
    assert notes(grouped([make("a"), make("b"), make("b", 1)])) == ["not all variants have the same seeds"]
    more = replace(make("b"), costs=replace(make().costs, trajectories=(10, 12)))
    assert "number of trajectories" in notes(grouped([make("a"), more]))[0]
    world = replace(make("b"), environment={"engine": "corridor 2"})
    assert "did not describe itself alike" in notes(grouped([make("a"), world]))[0]
    assert notes(grouped([replace(make("a"), damage=("x: torn",))])) == ["a, seed 0: x: torn"]


def test_the_settings_that_differ_are_named():
    found = summarise([make("a"), make("b", settings={"optimize.q_coef": 0.0}), make("b", 1)])
    first, second = found["variants"]
    assert first["settings"] == {"optimize.q_coef": 0.5} and second["settings"] == {"optimize.q_coef": 0.0}
    assert found["shared_settings"] == {"env.name": "corridor"} and second["seeds"] == [0, 1]


def test_what_differs_from_seed_to_seed_alone_tells_no_variant_from_another():
    runs = [make(name, seed, settings={"model.name": f"start-{seed}", "optimize.q_coef": q})
            for name, q in (("a", 0.5), ("b", 0.0)) for seed in (0, 1)]  # fmt: skip
    found = summarise(runs)
    assert [one["settings"] for one in found["variants"]] == [{"optimize.q_coef": 0.5}, {"optimize.q_coef": 0.0}]
    assert "model.name" not in found["shared_settings"]


def test_the_tables_as_markdown():
    runs = [make(name, seed, success=(0.0, 0.5, last)) for name, last in (("a|b", 0.25), ("c", 0.5)) for seed in (0, 1)]
    text = markdown(tables(summarise(runs)), "two", ["a <note>"])
    assert (
        "| near, a\\|b | 2 | 0.0 | 25.0 | 25.0 | 6.0 |" in text and "| near, c | 2 | 0.0 | 50.0 | 50.0 | 6.0 |" in text
    )
    assert "| heat | 25.0 | 50.0 |" in text and "- a <note>" in text
    assert "| near, a\\|b – c | 2 | 4 | +0.0 [+0.0, +0.0] | 0 | 0 | 1.000 |" in text
    assert "| a\\|b | 1.00 | 0.50 | 0.75 | 1.25 | 1.00 | 4.50 |" in text
    for line in text.splitlines():
        assert not line.startswith("|") or line.replace("\\|", "").count("|") >= 3
