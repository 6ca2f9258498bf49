"""What is kept of a real run, against its files read the plain way."""

import gzip
import json
import shutil
from dataclasses import asdict, replace

import pytest

from pipeline.compare.measuring import from_plain, generated_tokens, load, measure, save, shareable
from pipeline.manifests import read_manifest
from pipeline.run_directory import RunError


@pytest.fixture(scope="module")
def measured(whole_run):
    return measure(whole_run, "sapo")


def lines(folder, pattern):
    return [json.loads(line) for path in sorted(folder.glob(pattern)) for line in path.read_text().splitlines()]


def manifests(run, iteration):
    places = (f"iterations/{iteration:04d}/rollouts", f"iterations/{iteration:04d}/advantages",
              f"checkpoints/{iteration:04d}")  # fmt: skip
    return [json.loads((run / place / "manifest.json").read_text()) for place in places]


def test_costs_are_those_of_the_files(whole_run, measured):
    for i in range(1, 5):
        played = lines(whole_run / f"iterations/{i:04d}/rollouts", "*.jsonl")
        assert measured.costs.trajectories[i - 1] == len(played) == 24
        tokens = sum(len(turn["response_ids"]) for one in played for turn in one["turns"])
        assert measured.costs.generated_tokens[i - 1] == tokens
        trained = sum(len(turn["prompt_ids"]) + len(turn["response_ids"]) for one in played for turn in one["turns"])
        assert measured.costs.trained_tokens[i - 1] == trained  # one epoch
        own = manifests(whole_run, i)
        assert measured.costs.wall_s[i - 1] == pytest.approx(sum(one["seconds"]["total"] for one in own), abs=0.001)
        assert measured.costs.cpu_s[i - 1] == pytest.approx(sum(one["cpu_s"] for one in own), abs=0.01)
    assert sum(measured.costs.cpu_s) > 0.1


def test_tokens_that_the_stage_has_counted_itself_are_taken(whole_run):
    manifest = read_manifest(whole_run / "iterations/0001/rollouts/manifest.json")
    manifest.counts["response_tokens"] = 12345
    assert generated_tokens(manifest) == 12345


def test_evaluations_and_outcomes_are_those_of_the_files(whole_run, measured):
    assert [(one.iteration, one.split) for one in measured.evaluations] == [
        (i, split) for i in (0, 2, 4) for split in ("near", "far")
    ]
    results = json.loads((whole_run / "evaluations/0004/results.json").read_text())
    for sweep, one in zip(results["sweeps"], measured.evaluations[-2:], strict=True):
        assert (one.success, one.n, one.turns) == (sweep["all"]["success"], 24, sweep["all"]["turns"])
        assert one.types == {kind: row["success"] for kind, row in sweep["types"].items()}
        outcomes = measured.outcomes[one.split]
        assert outcomes.won.count("1") / 24 == one.success
        episodes = {one["task_id"]: one for one in lines(whole_run / "evaluations/0004", f"{sweep['split']}-*.jsonl")}
        assert list(outcomes.tasks) == sorted(episodes)
        for task, kind, won in zip(outcomes.tasks, outcomes.types, outcomes.won, strict=True):
            assert (kind, won) == (episodes[task]["task_type"], str(int(episodes[task]["success"])))


def test_training_is_what_the_manifests_say_of_each_iteration(whole_run, measured):
    for i in range(1, 5):
        rollouts, advantages, optimize = (one["metrics"] for one in manifests(whole_run, i))
        assert measured.training["rollout/success"][i - 1] == pytest.approx(rollouts["rollout/success"], abs=1e-4)
        for name in ("advantage/std", "advantage/explained_variance_q"):
            assert measured.training[name][i - 1] == pytest.approx(advantages[name], abs=1e-4)
        assert measured.training["sapo/entropy"][i - 1] == pytest.approx(optimize["sapo/entropy"], abs=1e-4)
    assert all(len(values) == 4 for values in measured.training.values())


def test_numbers_of_a_version_that_kept_no_training_are_read(measured):
    old = asdict(measured)
    del old["training"]
    assert from_plain(old) == replace(measured, training={})


def test_stages_and_settings(whole_run, measured):
    own = [manifests(whole_run, i)[2] for i in range(1, 5)]
    optimize = measured.stages["optimize"]
    assert optimize["times"] == 4
    assert optimize["steps_s"] == pytest.approx(sum(one["seconds"]["steps_s"] for one in own), abs=0.01)
    assert optimize["peak_memory_gib"] == pytest.approx(
        max(one["peak_memory_mib"]["cpu"] for one in own) / 1024, rel=1e-3
    )
    assert measured.settings["env.rooms"] == 3 and measured.settings["run.seed"] == measured.seed == 0
    assert measured.start == json.loads((whole_run / "evaluations/0000/results.json").read_text())["policy"]
    assert measured.damage == ()


def test_where_a_model_was_is_not_told():
    assert shareable("/home/x/runs/c/runs/warm-start-seed0/export") == "runs/warm-start-seed0/export"
    assert shareable("/policy") == "policy"
    assert shareable("Qwen/Qwen2.5-7B-Instruct") == "Qwen/Qwen2.5-7B-Instruct"


def test_what_is_saved_comes_back(tmp_path, measured):
    save([measured, measured], ["x: failed"], tmp_path / "a.gz")
    runs, left_out = load(tmp_path / "a.gz")
    assert runs == [measured, measured] and left_out == ["x: failed"]
    save(runs, left_out, tmp_path / "b.gz")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert (tmp_path / "a.gz").stat().st_size < 5000


def test_a_file_that_is_something_else_is_one_line(tmp_path, measured):
    path = tmp_path / "a.gz"
    for content in (b"", b"{}", b"\x1f\x8b\x08"):
        path.write_bytes(content)
        with pytest.raises(RunError, match="not the numbers of a comparison"):
            load(path)
    with pytest.raises(RunError, match="not the numbers of a comparison"):
        load(tmp_path / "nowhere.gz")
    spoilt = {"format": 1, "left_out": [], "runs": [{**asdict(measured), "training": []}]}
    path.write_bytes(gzip.compress(json.dumps(spoilt, default=str).encode()))
    with pytest.raises(RunError, match="not the numbers of a comparison"):
        load(path)


def test_a_run_that_is_not_finished_is_refused(whole_run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(whole_run, copy)
    shutil.rmtree(copy / "iterations/0001/rollouts")  # may be deleted by hand; then its cost is not known
    with pytest.raises(RunError, match="iteration 1 has no manifest of collect_rollouts"):
        measure(copy, "x")
    (copy / "evaluations/0004/manifest.json").unlink()
    with pytest.raises(RunError, match=r"not finished \(next: evaluate 4\)"):
        measure(copy, "x")
    with pytest.raises(RunError, match="no such folder"):
        measure(tmp_path / "nowhere", "x")
