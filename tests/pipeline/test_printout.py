"""What a run prints."""

import json

import pytest

from pipeline.manifests import Manifest
from pipeline.plan import Facts, Step
from pipeline.printout import (
    add_times,
    environment_line,
    final_summary,
    iteration_line,
    plan_table,
    stage_work_s,
    times_table,
)
from pipeline.run_directory import RunPaths

FACTS = Facts(warm_start=True, iterations=10, evaluate_every=5, config="c")


def manifest(stage: str, iteration: int, metrics: dict | None = None, **seconds: float) -> Manifest:
    return Manifest(stage, iteration, "c", {}, {}, metrics=metrics or {}, seconds=seconds)


def test_the_environment_is_one_line():
    facts = {"environment": "alfworld", "source": "generated", "seed": 0, "grammars": {"move": 3900},
             "counts": {"train": 2000, "dev": 300}, "sha256": {"train": "ab12"}, "goals_sha256": "cd34",
             "skipped": {}}  # fmt: skip
    line = "environment alfworld: source generated, seed 0, grammars (move 3900), counts (train 2000, dev 300)"
    assert environment_line("alfworld", facts) == line


def test_an_iteration_is_one_line():
    manifests = {
        ("collect_rollouts", 4): manifest(
            "collect_rollouts", 4,
            {"rollout/success": 0.41, "rollout/turns": 11.26, "rollout/invalid_share": 0.0821}, total=3.14,
        ),
        ("compute_advantages", 4): manifest("compute_advantages", 4, total=0.4),
        ("optimize", 4): manifest(
            "optimize", 4,
            {"sapo/explained_variance_v": 0.224, "sapo/approx_kl": 0.00412, "sapo/entropy": 1.0204}, total=2.0,
        ),
    }  # fmt: skip
    # 6 iterations of 5.5 s are left: 33 s
    assert iteration_line(4, FACTS, manifests, mean_s=5.5) == (
        "iteration 4/10  success 0.410  turns 11.3  invalid 0.082  V ev 0.22  kl 0.0041  entropy 1.020  |  "
        "collect 3.1s  advantages 0.4s  optimize 2.0s  |  00:33 left"
    )


def test_what_was_not_measured_is_not_shown():
    manifests = {("optimize", 10): manifest("optimize", 10, {"sapo/entropy": 1.0}, total=2.0)}
    assert (
        iteration_line(10, FACTS, manifests, 5.0) == "iteration 10/10  entropy 1.000  |  optimize 2.0s  |  00:00 left"
    )


def test_the_plan_folds_iterations():
    steps = [
        Step("reserve_vocab", 0, "skip", "complete"),
        Step("evaluate", 0, "run", "not done yet"),
        *(Step(stage, i, "run", "not done yet") for i in (1, 2) for stage in ("collect_rollouts", "optimize")),
        Step("export", 0, "run", "not done yet"),
    ]
    assert plan_table(steps).splitlines() == [
        "plan: 6 steps to do, 1 done or not needed",
        "  skip   reserve_vocab: complete",
        "  run    evaluate: not done yet",
        "  run    iterations 1-2: collect_rollouts optimize",
        "  run    export: not done yet",
    ]


def test_times_add_up_over_processes(tmp_path):
    path = tmp_path / "times.json"
    first = [manifest("collect_rollouts", 1, total=10.0, generation_s=8.0, refresh_s=1.0, manifest=0.1),
             manifest("reserve_vocab", 0, total=2.0)]  # fmt: skip
    second = [manifest("optimize", 1, total=6.0, load_s=0.5, steps_s=5.0, save_s=0.25)]
    # of 10 s the refresh is staging, and so is 1 s without a name; reserving counts as staging
    assert stage_work_s(first[0]) == 8.0
    add_times(path, 0.0, wall_s=20.0, startup_s=5.0, done=first)
    record = add_times(path, 0.0, wall_s=10.0, startup_s=2.0, done=second)
    # wall 30, start-up 7, so 23 s of running; work 8 + 5 = 13; staging 10 of 23
    assert (record["wall_s"], record["startup_s"], record["work_s"]) == (30.0, 7.0, 13.0)
    assert record["staging_share"] == pytest.approx(10 / 23, abs=1e-5)
    assert json.loads(path.read_text()) == record
    lines = times_table(record).splitlines()
    assert lines[0] == "time: 00:30 in 2 process(es)"
    assert lines[1].split() == [
        "collect_rollouts",
        "10.0",
        "s",
        "33.3%",
        "(generation_s",
        "8.0,",
        "refresh_s",
        "1.0,",
        "manifest",
        "0.1)",
    ]
    assert "10.0 s  43.5%" in lines[-1] and "staging overhead" in lines[-1]


@pytest.mark.parametrize("content", ["{]", "[]", '{"processes": 1}', '{"processes": [], "stages_s": []}'])
def test_a_times_file_with_any_content_is_begun_anew(tmp_path, content):
    (tmp_path / "times.json").write_text(content)
    record = add_times(tmp_path / "times.json", 0.0, 4.0, 1.0, [manifest("evaluate", 0, total=3.0, generation_s=3.0)])
    assert record["staging_share"] == 0.0


def test_the_end_says_before_and_after(tmp_path):
    manifests = {
        ("evaluate", 0): manifest("evaluate", 0, {"evaluate/seen/success": 0.25, "evaluate/seen/turns": 9.0}),
        ("evaluate", 10): manifest("evaluate", 10, {"evaluate/seen/success": 0.75}),
    }
    text = final_summary(RunPaths(tmp_path), FACTS, manifests)
    assert "tensorboard" not in text  # none was written
    (tmp_path / "tensorboard").mkdir()
    assert f"tensorboard --logdir {tmp_path}/tensorboard" in final_summary(RunPaths(tmp_path), FACTS, manifests)
    assert "seen/success" in text and "0.250 -> 0.750  (+0.500)" in text and "turns" not in text
    for named in (f"{tmp_path}/export", f"{tmp_path}/evaluations/0010/results.json", f"--run-dir {tmp_path}"):
        assert named in text
