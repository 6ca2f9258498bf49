"""Whole runs through the real launcher, in the corridor: uncut, killed, and stage by stage."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.manifests import read_manifests
from pipeline.run_directory import RunPaths
from runtime.files import sha256
from tests.processes import ENVIRONMENT, ROOT

pytestmark = pytest.mark.slow

ITERATIONS = 2
SETTINGS = {
    "env.rooms": 3, "env.tasks": 12, "env.max_turns": 4, "env.prompt_tokens": 64, "env.response_tokens": 4,
    "model.tiny_width": 16, "model.tiny_layers": 1, "model.tiny_heads": 2,
    "warm_start.demonstrations": 12, "warm_start.batch_size": 8,
    "rollout.trajectories": 8, "rollout.slots": 4, "optimize.minibatch_size": 8, "optimize.kl_coef": 0.01,
    "evaluate.every": 1, "evaluate.tasks": 6, "checkpoint.keep_last": 1, "logging.tensorboard": False,
}  # fmt: skip
FLAGS = [flag for key, value in SETTINGS.items() for flag in ("--set", f"{key}={json.dumps(value)}")]
DEEPSPEED = str(Path(sys.executable).parent / "deepspeed")
LIMIT_S = 600


def command(run_dir: Path, iterations: int = ITERATIONS) -> list[str]:
    return [sys.executable, "-m", "pipeline", "--env", "tests.corridor:CorridorAdapter", "--run-dir", str(run_dir),
            "--iterations", str(iterations), *FLAGS]  # fmt: skip


def run(arguments: list[str], **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(arguments, cwd=ROOT, env={**ENVIRONMENT, "OMP_NUM_THREADS": "1", **environment},
                          capture_output=True, text=True, timeout=LIMIT_S)  # fmt: skip


def weights(run_dir: Path) -> dict[str, str]:
    paths = RunPaths(run_dir)
    places = {"model": paths.model, "warm start": paths.policy(0), "export": paths.export}
    return {name: sha256(place / "model.safetensors") for name, place in places.items()}


@pytest.fixture(scope="module")
def uncut(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("uncut") / "run"
    done = run(command(run_dir))
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir / "stdout.txt").write_text(done.stdout)
    return run_dir


def test_a_run_leaves_what_it_says(uncut):
    out = (uncut / "stdout.txt").read_text()
    for said in ("iteration 1/2  success", "iteration 2/2  success", "staging overhead", "run complete: 2 iterations",
                 "near/success", "far/success"):  # fmt: skip
        assert said in out, out
    manifests = read_manifests(RunPaths(uncut))
    assert len(manifests) == 3 + ITERATIONS * 4 + 1
    assert manifests["optimize", 1].removed == ("engine/", "policy/")
    assert manifests["optimize", 2].removed == ()
    times = json.loads((uncut / "times.json").read_text())
    assert times["stages_s"]["collect_rollouts"]["times"] == ITERATIONS
    assert not (uncut / "errors.jsonl").exists()


def test_plain_transformers_load_the_export(uncut):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(uncut / "export")
    tokenizer = AutoTokenizer.from_pretrained(uncut / "export")
    logits = model(**tokenizer("find the door", return_tensors="pt")).logits
    assert logits.isfinite().all()
    assert (uncut / "export" / "value_tokens.json").is_file()
    assert not (uncut / "export" / "policy").exists()


def test_the_same_command_again_starts_nothing(uncut):
    before = weights(uncut)
    done = run(command(uncut))
    assert done.returncode == 0
    assert "plan: 0 steps to do" in done.stdout and "run complete" in done.stdout
    assert weights(uncut) == before


def start_and_kill(run_dir: Path, manifest: Path) -> None:
    """Start the run and kill -9 its launcher as soon as a manifest is there; everything else must follow it."""
    launcher = subprocess.Popen(command(run_dir), cwd=ROOT, env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"},
                                stdout=subprocess.DEVNULL)  # fmt: skip
    end = time.monotonic() + LIMIT_S
    while not manifest.exists():
        assert launcher.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()


def test_a_run_killed_twice_has_the_weights_of_an_uncut_one(uncut, tmp_path):
    run_dir = tmp_path / "killed"
    paths = RunPaths(run_dir)
    start_and_kill(run_dir, paths.manifest("collect_rollouts", 1))
    start_and_kill(run_dir, paths.manifest("optimize", 1))
    done = run(command(run_dir))
    assert done.returncode == 0, done.stdout + done.stderr
    assert weights(run_dir) == weights(uncut)
    lines = [json.loads(line) for line in paths.metrics.read_text().splitlines()]
    steps = [(line["stage"], line["iteration"]) for line in lines]
    assert len(steps) == len(set(steps)) == len(read_manifests(paths))


def test_stage_by_stage_equals_the_resident_run(uncut, tmp_path):
    run_dir = tmp_path / "by-hand"
    prepared = run([*command(run_dir), "--prepare-only"])
    assert prepared.returncode == 0, prepared.stdout + prepared.stderr
    assert (run_dir / "config.yaml").read_bytes() == (uncut / "config.yaml").read_bytes()
    stages = ["reserve_vocab", "warm_start", *["collect_rollouts", "compute_advantages", "optimize"] * ITERATIONS]
    for script in [*(f"stages/{stage}.py" for stage in stages), "pipeline/export.py"]:
        port = str(20000 + os.getpid() % 20000)
        done = run([DEEPSPEED, "--num_accelerators", "1", "--master_port", port, script,
                    "--run-dir", str(run_dir)], DS_ACCELERATOR="cpu")  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    assert weights(run_dir) == weights(uncut)
    assert RunPaths(run_dir).policy(0) == run_dir / "checkpoints" / "0000" / "policy"
    again = run([DEEPSPEED, "--num_accelerators", "1", "stages/optimize.py", "--run-dir", str(run_dir),
                 "--iteration", "2"], DS_ACCELERATOR="cpu")  # fmt: skip
    assert again.returncode != 0 and "optimize 2 is complete" in again.stderr


def test_targets_are_recomputed_beside_the_runs_own(uncut, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(uncut, run_dir)
    own = RunPaths(run_dir).advantages(2)
    before = (own / "targets.jsonl").read_bytes()

    def recompute(*settings: str) -> subprocess.CompletedProcess:
        return run([DEEPSPEED, "--num_accelerators", "1", "stages/compute_advantages.py", "--run-dir", str(run_dir),
                    "--recompute", *settings], DS_ACCELERATOR="cpu")  # fmt: skip

    done = recompute("--set", "advantage.gamma=0.5")
    assert done.returncode == 0, done.stdout + done.stderr
    (beside,) = own.parent.glob("advantages-*")
    assert (beside / "targets.jsonl").read_bytes() != before
    assert (own / "targets.jsonl").read_bytes() == before
    refused = recompute()
    assert refused.returncode != 0 and "policy 2 was trained on these targets" in refused.stderr
    assert "plan: 0 steps to do" in run(command(run_dir)).stdout


def test_sigterm_stops_after_the_stage_in_progress(tmp_path):
    run_dir = tmp_path / "stopped"
    launcher = subprocess.Popen(command(run_dir, 200), cwd=ROOT, env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"},
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    end = time.monotonic() + LIMIT_S
    while not RunPaths(run_dir).manifest("warm_start", 0).exists():
        assert launcher.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    launcher.send_signal(signal.SIGTERM)
    out, err = launcher.communicate(timeout=120)
    assert launcher.returncode == 128 + signal.SIGTERM
    assert f"stopped on request; go on with: bash run.sh --run-dir {run_dir}" in out
    assert "steps to do; go on with" in err and "Traceback" not in err


def test_a_damaged_checkpoint_is_one_line(uncut, tmp_path):
    run_dir = tmp_path / "damaged"
    shutil.copytree(uncut, run_dir)
    file = RunPaths(run_dir).policy(2) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    done = run(command(run_dir, 3))
    assert done.returncode == 2
    faults = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(faults) == 1 and f"{file}: " in faults[0] and "its manifest says" in faults[0]
    assert "Traceback" not in done.stderr
    (error,) = [json.loads(line) for line in (run_dir / "errors.jsonl").read_text().splitlines()]
    assert (error["stage"], error["iteration"]) == ("collect_rollouts", 3)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on the path")
def test_two_ranks_under_mpirun_equal_two_ranks_under_deepspeed(tmp_path):
    runs = {launcher: tmp_path / launcher for launcher in ("deepspeed", "openmpi")}
    for launcher, run_dir in runs.items():
        done = run([*command(run_dir, 1), "--ranks", "2", "--launcher", launcher])
        assert done.returncode == 0, done.stdout + done.stderr
        assert read_manifests(RunPaths(run_dir))["optimize", 1].ranks == 2
    assert weights(runs["deepspeed"]) == weights(runs["openmpi"])


def test_an_unknown_model_on_two_ranks_is_one_line(tmp_path):
    done = run([*command(tmp_path / "run", 1), "--ranks", "2", "--model", "no-such-model"])
    assert done.returncode == 2
    faults = [line for line in done.stderr.splitlines() if "error" in line.lower() or "Traceback" in line]
    assert len(faults) == 1 and faults[0].startswith("error: model 'no-such-model': no folder "), done.stderr
