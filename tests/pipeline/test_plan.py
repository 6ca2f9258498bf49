"""The plan as tables: manifests in, what is to be done out."""

from dataclasses import replace

import pytest

from pipeline.manifests import Manifest
from pipeline.plan import Facts, input_digests, plan, sequence

FACTS = Facts(warm_start=True, iterations=3, evaluate_every=2, config="c")
SEQUENCE = [
    ("reserve_vocab", 0), ("warm_start", 0), ("evaluate", 0),
    ("collect_rollouts", 1), ("compute_advantages", 1), ("optimize", 1),
    ("collect_rollouts", 2), ("compute_advantages", 2), ("optimize", 2), ("evaluate", 2),
    ("collect_rollouts", 3), ("compute_advantages", 3), ("optimize", 3), ("evaluate", 3),
    ("export", 0),
]  # fmt: skip


def done(count: int, facts: Facts = FACTS) -> dict:
    """The manifests of a run whose first `count` steps are complete."""
    manifests = {}
    for step in sequence(facts)[:count]:
        outputs = {"policy/w" if step[0] in ("warm_start", "optimize") else "f": {"bytes": 1, "sha256": f"{step}"}}
        inputs = input_digests(step, facts, manifests)
        manifests[step] = Manifest(*step, config=facts.config, inputs=inputs, outputs=outputs)
    return manifests


def actions(facts: Facts, manifests: dict) -> dict:
    return {step.name: step.action for step in plan(facts, manifests)}


def changed(manifest: Manifest) -> Manifest:
    return replace(manifest, outputs={"policy/w": {"bytes": 1, "sha256": "another"}})


def test_the_sequence():
    assert sequence(FACTS) == SEQUENCE
    without = sequence(replace(FACTS, warm_start=False))
    assert without == [step for step in SEQUENCE if step[0] != "warm_start"]


def test_evaluations_on_the_way_can_be_left_out():
    evaluated = [i for stage, i in sequence(replace(FACTS, evaluate_every=0)) if stage == "evaluate"]
    assert evaluated == [0, 3]
    assert [i for stage, i in sequence(replace(FACTS, evaluate_every=1)) if stage == "evaluate"] == [0, 1, 2, 3]


@pytest.mark.parametrize("count", range(len(SEQUENCE) + 1))
def test_a_run_cut_anywhere_goes_on_where_it_was(count):
    steps = plan(FACTS, done(count))
    assert [step.action for step in steps] == ["skip"] * count + ["run"] * (len(SEQUENCE) - count)


@pytest.mark.parametrize(
    ("of", "stale"),
    [
        ("reserve_vocab", ("warm_start", 0)),
        ("warm_start", ("collect_rollouts", 1)),
        ("collect_rollouts", ("compute_advantages", 1)),
        ("compute_advantages", ("optimize", 1)),
        ("optimize", ("collect_rollouts", 2)),
    ],
)
def test_what_was_made_from_something_else_is_stale(of, stale):
    manifests = done(len(SEQUENCE))
    name = next(step for step in SEQUENCE if step[0] == of)
    manifests[name] = changed(manifests[name])
    by_name = {step.name: step for step in plan(FACTS, manifests)}
    assert by_name[stale].action == "stale"
    assert "made from another" in by_name[stale].why and of in by_name[stale].why
    assert by_name[name].action == "skip"


def test_engine_state_is_no_input():
    manifests = done(len(SEQUENCE))
    outputs = {**manifests["optimize", 1].outputs, "engine/state": {"bytes": 9, "sha256": None}}
    manifests["optimize", 1] = replace(manifests["optimize", 1], outputs=outputs)
    assert set(actions(FACTS, manifests).values()) == {"skip"}


def test_other_settings_make_everything_stale():
    assert set(actions(replace(FACTS, config="other"), done(6)).values()) == {"stale", "run"}


def test_rollouts_that_were_made_again_make_the_targets_stale():
    manifests = done(5)  # up to compute_advantages 1
    del manifests["collect_rollouts", 1]
    by_name = {step.name: step for step in plan(FACTS, manifests)}
    assert by_name["collect_rollouts", 1].action == "run"
    assert by_name["compute_advantages", 1].action == "stale"
    assert "is gone" in by_name["compute_advantages", 1].why


def test_an_evaluation_waits_for_its_policy_to_be_made_again():
    manifests = done(len(SEQUENCE))
    lost = manifests.pop(("optimize", 3))
    again = {step.name: step.action for step in plan(FACTS, manifests)}
    assert (again["optimize", 3], again["evaluate", 3]) == ("run", "skip")
    assert actions(FACTS, manifests | {("optimize", 3): lost})["evaluate", 3] == "skip"
    assert actions(FACTS, manifests | {("optimize", 3): changed(lost)})["evaluate", 3] == "stale"


def test_rollouts_wait_for_their_policy_to_be_made_again():
    manifests = done(12)  # up to compute_advantages 3
    lost = manifests.pop(("optimize", 2))
    assert [step.name for step in plan(FACTS, manifests) if step.action == "run"] == [
        ("optimize", 2), ("optimize", 3), ("evaluate", 3), ("export", 0)
    ]  # fmt: skip
    assert actions(FACTS, manifests | {("optimize", 2): lost})["collect_rollouts", 3] == "skip"
    another = actions(FACTS, manifests | {("optimize", 2): changed(lost)})
    assert another["collect_rollouts", 3] == another["compute_advantages", 3] == "stale"


def test_old_iterations_may_be_deleted_by_hand():
    manifests = done(9)  # up to optimize 2
    for step in (("collect_rollouts", 1), ("compute_advantages", 1), ("collect_rollouts", 2), ("optimize", 1)):
        del manifests[step]
    assert [step.name for step in plan(FACTS, manifests) if step.action != "skip"] == SEQUENCE[9:]


@pytest.mark.parametrize("gone", [("reserve_vocab", 0), ("warm_start", 0)])
def test_the_reference_may_not_go(gone):
    manifests = done(9)
    del manifests[gone]
    assert actions(FACTS, manifests)[gone] == "stale"


def test_a_finished_run_can_be_trained_on():
    longer = replace(FACTS, iterations=4)
    steps = [step.name for step in plan(longer, done(len(SEQUENCE))) if step.action == "run"]
    assert steps == [
        ("collect_rollouts", 4),
        ("compute_advantages", 4),
        ("optimize", 4),
        ("evaluate", 4),
        ("export", 0),
    ]


def test_a_sample_on_the_way_is_swept_in_full_when_the_run_ends_there():
    facts = replace(FACTS, iterations=4, evaluate_every=3)
    manifests = done(len(sequence(facts)), facts)
    assert manifests["evaluate", 3].inputs["sweep"] == "sample"
    shorter = actions(replace(facts, iterations=3), manifests)
    assert (shorter["evaluate", 3], shorter["evaluate", 0], shorter["export", 0]) == ("run", "skip", "run")


def test_what_retention_took_is_not_evaluated_any_more():
    manifests = done(9)  # up to optimize 2; evaluations after iteration 1 are asked for later
    manifests["optimize", 1] = replace(manifests["optimize", 1], removed=("engine/", "policy/"))
    by_name = {step.name: step for step in plan(replace(FACTS, evaluate_every=1), manifests)}
    assert (by_name["evaluate", 1].action, by_name["evaluate", 2].action) == ("skip", "run")
    assert by_name["evaluate", 1].why == "its policy was removed by retention"


def test_a_shorter_run_whose_last_policy_is_gone_is_refused():
    manifests = done(len(SEQUENCE))
    manifests["optimize", 1] = replace(manifests["optimize", 1], removed=("engine/", "policy/"))
    (export,) = [step for step in plan(replace(FACTS, iterations=1), manifests) if step.stage == "export"]
    assert export.action == "stale" and "the newest is policy 3" in export.why


def test_policy_0_is_the_model_where_there_is_no_warm_start():
    facts = replace(FACTS, warm_start=False)
    manifests = done(5, facts)
    assert manifests["collect_rollouts", 1].inputs["policy"] == manifests["reserve_vocab", 0].digest
    assert done(6)["collect_rollouts", 1].inputs["policy"] == done(6)["warm_start", 0].digest


def test_the_reference_is_an_input_where_it_is_used():
    facts = replace(FACTS, reference=True)
    manifests = done(len(SEQUENCE), facts)
    assert set(actions(facts, manifests).values()) == {"skip"}
    assert manifests["compute_advantages", 3].inputs["reference"] == manifests["warm_start", 0].digest
    assert "reference" not in done(len(SEQUENCE))["compute_advantages", 3].inputs
