"""`python -m pipeline.compare` with real runs: killed, resumed, with a run that fails."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.compare.__main__ import main
from pipeline.run_directory import owner_pid
from tests.processes import ENVIRONMENT, ROOT, wait_until_gone

LIMIT_S = 900
SMALL = {
    "run.iterations": 8, "model.tiny_width": 16, "model.tiny_layers": 1, "model.tiny_heads": 2, "env.rooms": 3,
    "env.tasks": 12, "env.max_turns": 4, "env.prompt_tokens": 64, "env.response_tokens": 4,
    "warm_start.demonstrations": 12, "warm_start.epochs": 1.0, "rollout.trajectories": 12, "rollout.slots": 12,
    "rollout.workers": 1, "evaluate.every": 4, "evaluate.tasks": 6, "logging.tensorboard": "false",
}  # fmt: skip


def command(out: Path, *more: str) -> list[str]:
    settings = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    return ["--algorithms", "sapo", "--variant", "no-q:optimize.q_coef=0", "--variant", "wide:run.ranks=4096",
            "--env", "tests.corridor:CorridorAdapter", "--seeds", "1", "--jobs", "2", "--out", str(out), *settings,
            *more]  # fmt: skip


def start(arguments: list[str]) -> subprocess.Popen:
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.compare", *arguments], cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def wait_for(found, what: str):
    end = time.monotonic() + LIMIT_S
    while not (value := found()):
        assert time.monotonic() < end, f"no {what}"
        time.sleep(0.1)
    return value


def test_what_cannot_be_compared_is_one_line(tmp_path, capsys):
    for arguments, said in [
        ([], "nothing to compare"),
        (["--algorithms", "sapo", "--jobs", "0"], "--jobs 0"),
        (["--algorithms", "sapo", "--share-start", "--set", "model.name=x"], "it would win over the shared start"),
        (["--algorithms", "sapo", "--set", "optimize.q_coeff=1"], "did you mean optimize.q_coef"),
        (["--algorithm", "sapo"], "did you mean --algorithms"),
        (["--runs", str(tmp_path / "nowhere"), "--out", str(tmp_path)], "no finished run"),
    ]:
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert said in error.splitlines()[-1] and error.splitlines()[-1].startswith("error: ")


def test_a_dry_run_starts_nothing(tmp_path, capsys):
    assert main(command(tmp_path / "out", "--dry-run")) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "3 runs, 0 of them finished" and not (tmp_path / "out").exists()
    assert said[1].startswith("  new       bash run.sh --env tests.corridor:CorridorAdapter --set run.iterations=8")
    assert said[2].endswith(
        f"--algorithm sapo --set optimize.q_coef=0 --seed 0 --run-dir {tmp_path}/out/runs/no-q-seed0"
    )


def test_a_dry_run_names_the_runs_that_are_given(tmp_path, capsys):
    assert main(["--runs", f"mine:{tmp_path}", "--dry-run"]) == 0
    assert capsys.readouterr().out == f"  given     mine: {tmp_path}\n"


def test_finished_runs_are_compared_as_they_are(whole_run, tmp_path, capsys):
    assert main(["--runs", str(whole_run), "--runs", f"again:{whole_run}", "--out", str(tmp_path)]) == 0
    table = json.loads((tmp_path / "table.json").read_text())
    assert [one["name"] for one in table["variants"]] == ["corridor", "again"] and table["notes"] == []
    results = json.loads((whole_run / "evaluations/0004/results.json").read_text())
    for sweep in results["sweeps"]:
        assert table["success"][sweep["split"]]["again"]["after"]["mean"] == sweep["all"]["success"]
    assert all(row["difference"] == 0 and row["p_pooled"] == 1 for row in table["pairs"]) and len(table["pairs"]) == 2
    assert str(tmp_path / "comparison.html") in capsys.readouterr().out


@pytest.mark.slow
def test_a_comparison_is_killed_and_stopped_and_goes_on_where_it_was(tmp_path):
    """Killed when a run has come to its first iteration, then asked to stop; a run that cannot start is named."""
    out = tmp_path / "out"
    runs = [out / "runs" / name for name in ("sapo-seed0", "no-q-seed0")]
    child = start(command(out))
    wait_for(lambda: any((run / "evaluations/0000/manifest.json").exists() for run in runs), "evaluation")
    owners = [pid for run in runs if (pid := owner_pid(run / "run.lock")) is not None]
    child.kill()
    child.communicate()
    wait_until_gone(*owners)
    made = {run: (run / "model/manifest.json").stat().st_mtime_ns for run in runs if (run / "model").is_dir()}
    assert made and not any((run / "export/manifest.json").exists() for run in runs)

    child = start(command(out))
    for line in child.stdout:
        if line.endswith("no-q-seed0.log\n"):  # the second of them is started
            break
    wait_for(lambda: all(owner_pid(run / "run.lock") is not None for run in runs), "second start")
    child.send_signal(signal.SIGTERM)
    said, _ = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 128 + signal.SIGTERM and "the same command goes on" in said, said
    assert not any((run / "export/manifest.json").exists() for run in runs)

    child = start(command(out))
    said, _ = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 1, said  # one run has failed
    assert "3 runs, 0 of them finished" in said and said.count("  begun     ") == 2
    for run, before in made.items():
        assert (run / "model/manifest.json").stat().st_mtime_ns == before  # what was done is not done again
    assert "wide-seed0: failed after" in said and "run.ranks = 4096" in said
    table = json.loads((out / "table.json").read_text())
    assert [one["name"] for one in table["variants"]] == ["sapo", "no-q"]
    assert any(note.startswith("left out: ") and "run.ranks = 4096" in note for note in table["notes"])
    for name, run in zip(("sapo", "no-q"), runs, strict=True):
        for sweep in json.loads((run / "evaluations/0008/results.json").read_text())["sweeps"]:
            shown = table["success"][sweep["split"]][name]
            assert shown["after"]["values"] == [sweep["all"]["success"]]
            assert {kind: one["mean"] for kind, one in shown["types"].items()} == {
                kind: row["success"] for kind, row in sweep["types"].items()
            }
        assert table["costs"][name]["trajectories"]["mean"] == 8 * 12

    child = start([*command(out)[:4], *command(out)[6:]])  # without `wide`: all is there
    said, _ = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 0 and "2 runs, 2 of them finished" in said and "started" not in said, said


@pytest.mark.slow
def test_runs_of_a_seed_begin_with_one_warm_start(tmp_path):
    settings = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    settings += ["--set", "run.iterations=1", "--set", "rollout.trajectories=8"]
    child = start(["--algorithms", "sapo,grpo", "--env", "tests.corridor:CorridorAdapter", "--seeds", "1",
                   "--jobs", "2", "--share-start", "--out", str(tmp_path), *settings])  # fmt: skip
    said, _ = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 0, said
    runs = tmp_path / "runs"
    first = json.loads((runs / "warm-start-seed0/evaluations/0000/results.json").read_text())["policy"]
    for name in ("sapo-seed0", "grpo-seed0"):
        assert json.loads((runs / name / "evaluations/0000/results.json").read_text())["policy"] == first
        assert not (runs / name / "checkpoints/0000/demonstrations.jsonl").exists()
    assert json.loads((tmp_path / "table.json").read_text())["notes"] == []
