"""The launcher: dry run, taking up a run, one line for a fault, no orphans, manifests decide."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline import launch
from pipeline.command_line import parser, resolve
from pipeline.config import ConfigError
from pipeline.config_loading import load_config, save_config
from pipeline.manifests import Manifest, write_manifest
from pipeline.run_directory import RunError, RunLock, RunPaths
from runtime.weight_files import ModelFilesError
from tests.processes import ENVIRONMENT, ROOT, wait_until_gone


def request(*flags: str):
    return resolve(parser().parse_args(list(flags)))


def run_pipeline(*flags: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pipeline", *flags]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


def test_a_dry_run_prints_everything_and_starts_nothing(tmp_path):
    run_dir = tmp_path / "run"
    done = run_pipeline("--model", "Qwen2.5-7B", "--env", "alfworld", "--dry-run", "--run-dir", str(run_dir))
    assert done.returncode == 0, done.stderr
    assert not run_dir.exists()
    golden = [
        "# configuration (preset paper-7b)",
        "  learning_rate: 1.0e-06",
        "  max_turns: 50",
        "plan: 483 steps to do, 0 done or not needed",  # 150 * 3 + 30 evaluations + before, reserve, export
        "  run    iterations 1-150: collect_rollouts compute_advantages optimize evaluate",
        f"deepspeed --num_accelerators 4 --master_addr 127.0.0.1 --master_port '<free port>' --log_level critical "
        f"{ROOT}/pipeline/driver.py --run-dir {run_dir}",
        f"deepspeed --num_accelerators 4 --master_port '<free port>' stages/reserve_vocab.py --run-dir {run_dir}",
        f"deepspeed --num_accelerators 4 --master_port '<free port>' stages/optimize.py --run-dir {run_dir}",
        f"deepspeed --num_accelerators 4 --master_port '<free port>' pipeline/export.py --run-dir {run_dir}",
        "  stage: 3",
        "bf16:",
        "7,615,616,512 parameters, bfloat16, 4 rank(s)",
    ]
    lines = done.stdout.splitlines()
    for line in golden:
        assert any(shown == line or shown.endswith(line) for shown in lines), line
    assert "stages/warm_start.py" not in done.stdout
    (optimize,) = [line for line in lines if line.startswith("  optimize  ")]
    # fp32 masters: 7.6157e9 * 4 / 4 ranks = 7.09 GiB, moments twice that
    assert "fp32 masters 7.09 GiB, Adam moments 14.19 GiB" in optimize
    (playing,) = [line for line in lines if line.startswith("  collect_rollouts  ")]
    # 128 slots * 2560 tokens * 28 layers * 2 * 512 elements * 2 bytes = 17.5 GiB; a replica is 7.6157e9 * 2 bytes
    assert "KV cache 17.50 GiB" in playing and "replica 14.19 GiB" in playing and "replica 14.19 GiB" in optimize
    assert "host fp32 masters 7.09 GiB" in playing


def test_a_run_directory_can_be_made_and_nothing_started(tmp_path, monkeypatch, capsys):
    for name in ("OMP_NUM_THREADS", "DS_ACCELERATOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(launch.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(launch.torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(launch, "free_port", lambda: 4711)
    run_dir = tmp_path / "run"
    flags = ["--run-dir", str(run_dir), "--iterations", "2", "--ranks", "2", "--prepare-only"]
    with pytest.raises(SystemExit) as end:
        launch.main(flags)
    assert end.value.code == 0
    assert sorted(path.name for path in run_dir.iterdir()) == ["config.yaml", "run.lock"]
    assert load_config(run_dir / "config.yaml") == request(*flags).config
    lines = capsys.readouterr().out.splitlines()
    (variables,) = [line for line in lines if line.startswith("export ")]
    assert "OMP_NUM_THREADS=2" in variables.split() and "DS_ACCELERATOR=cpu" in variables.split()
    scripts = ["stages/reserve_vocab", "stages/warm_start", "stages/collect_rollouts", "stages/compute_advantages",
               "stages/optimize", "stages/evaluate", "pipeline/export"]  # fmt: skip
    assert lines[-len(scripts) :] == [
        f"deepspeed --num_accelerators 2 --master_port 4711 {script}.py --run-dir {run_dir}" for script in scripts
    ]


def test_a_model_of_unknown_shape_has_a_dry_run_too(tmp_path):
    text = launch.dry_run(request("--model", "someone/model", "--run-dir", str(tmp_path / "x"), "--dry-run"))
    assert "unknown: no config.json of someone/model at hand" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--set", "optimize.learnig_rate=1"),
            "unknown key optimize.learnig_rate; did you mean optimize.learning_rate?",
        ),
        (("--env", "alfwrld"), "environment 'alfwrld': no such name; did you mean alfworld?"),
        (("--preset", "huge"), "unknown preset huge; there are compare, compare-long, paper-1.5b"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(tmp_path, flags, message):
    done = run_pipeline("--run-dir", str(tmp_path / "run"), *flags)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and message in line
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_run_that_another_process_has_is_refused(tmp_path):
    with RunLock(tmp_path / "run.lock"):
        done = run_pipeline("--run-dir", str(tmp_path))
    assert done.returncode == 2
    assert f"in use by process {os.getpid()} on host" in done.stderr


def test_taking_up_a_run(tmp_path):
    paths = RunPaths(tmp_path)
    first = request("--iterations", "3").config
    launch.take_up(paths, first)
    assert load_config(paths.config) == first
    longer = request("--iterations", "4", "--ranks", "2").config
    launch.take_up(paths, longer)
    assert load_config(paths.config) == longer
    write_manifest(Manifest("reserve_vocab", 0, "c", {}, {}), paths.manifest("reserve_vocab", 0))
    with pytest.raises(RunError) as refusal:
        launch.take_up(paths, request("--seed", "1", "--set", "advantage.gamma=0.9").config)
    assert "(advantage.gamma: 0.95 -> 0.9; run.seed: 0 -> 1)" in str(refusal.value)
    assert load_config(paths.config) == longer


def test_before_the_first_result_a_wrong_setting_may_be_set_right(tmp_path):
    paths = RunPaths(tmp_path)
    launch.take_up(paths, request("--model", "tinny", "--preset", "tiny").config)
    launch.take_up(paths, request("--model", "tiny").config)
    assert load_config(paths.config).model.name == "tiny"


def test_results_without_their_configuration_are_refused(tmp_path):
    paths = RunPaths(tmp_path)
    paths.model.mkdir()
    (paths.model / "manifest.json").write_text('{"format": 1}')
    with pytest.raises(RunError, match="holds model but no config.yaml.*put it back"):
        launch.start(request("--run-dir", str(tmp_path)))
    assert not paths.config.exists() and not paths.lock.exists()


def test_ranks_get_their_environment(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(9)))
    environment = launch.launch_environment(request("--ranks", "2").config)
    assert environment["OMP_NUM_THREADS"] == "3"  # 9 cores // 2 ranks - 1 worker
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    assert environment["SAPO_LAUNCHER_PID"] == str(os.getpid())
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert launch.launch_environment(request().config)["OMP_NUM_THREADS"] == "7"


def test_the_openmpi_form(tmp_path):
    command = launch.launch_command(request("--ranks", "2").config, tmp_path, "openmpi", 4711, tmp_path)
    assert (tmp_path / "hostfile").read_text() == "localhost slots=2\n"
    assert command[:4] == ["deepspeed", "--hostfile", str(tmp_path / "hostfile"), "--force_multi"]
    assert "openmpi" in command and "4711" in command


def test_an_exit_code_0_without_the_manifests_is_a_failure(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(launch, "launch_command", lambda *_: ["true"])
    asked = request("--run-dir", str(tmp_path / "run"))
    assert launch.start(asked) == 1
    message = capfd.readouterr().err
    assert "a process of the run was lost before reserve_vocab 0 was complete" in message
    assert f"bash run.sh --run-dir {tmp_path / 'run'}" in message
    (line,) = (tmp_path / "run/errors.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["stage"], entry["iteration"], entry["rank"], entry["error"]) == (
        "reserve_vocab", 0, None, "ProcessLost",
    )  # fmt: skip


def test_what_cannot_become_a_model_is_said_before_anything_else(tmp_path, monkeypatch, capsys):
    """Before the number of ranks, the environment's data and the ranks themselves."""
    monkeypatch.setattr(launch, "run_group", None)  # calling it would be a TypeError
    run_dir = tmp_path / "run"
    for flag in ([], ["--prepare-only"]):
        with pytest.raises(SystemExit) as ended:
            launch.main(["--model", "no-such", "--ranks", "4096", "--run-dir", str(run_dir), *flag])
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith("error: model 'no-such': no folder ") and said.count("\n") == 1
    assert not run_dir.exists()


def test_a_run_goes_on_without_its_base_model(tmp_path):
    paths = RunPaths(tmp_path / "run")
    asked = request("--model", str(tmp_path / "base"), "--preset", "tiny", "--run-dir", str(paths.root))
    with pytest.raises(ModelFilesError, match=f"no folder {tmp_path / 'base'}"):
        launch.check_request(asked)
    save_config(asked.config, paths.config)
    paths.model.mkdir()
    write_manifest(Manifest("reserve_vocab", 0, "c", {}, {}), paths.manifest("reserve_vocab", 0))
    assert not launch.check_request(asked)


def test_other_settings_in_config_yaml_say_so(tmp_path):
    paths = RunPaths(tmp_path / "run")
    asked = request("--run-dir", str(paths.root))
    save_config(asked.config, paths.config)
    paths.model.mkdir()
    write_manifest(Manifest("reserve_vocab", 0, "another", {}, {}), paths.manifest("reserve_vocab", 0))
    with pytest.raises(RunError, match=f"reserve_vocab is stale: made with other settings .*; put {paths.config} back"):
        launch.start(asked)


def test_no_deepspeed_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "launch_path", lambda: str(tmp_path))
    with pytest.raises(RunError, match="deepspeed: not found on the path; run `bash run.sh`"):
        launch.start(request("--run-dir", str(tmp_path / "run")))


def test_no_mpirun_is_one_line(monkeypatch):
    found = {"deepspeed": "/somewhere/deepspeed"}
    monkeypatch.setattr(launch.shutil, "which", lambda name, path: found.get(name))
    with pytest.raises(RunError, match="mpirun: not found on the path; install"):
        launch.check_machine(request().config, "openmpi")


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    two, three = (request("--ranks", ranks).config for ranks in "23")
    monkeypatch.setattr(launch.torch.cuda, "device_count", lambda: 2)
    launch.check_machine(two, "deepspeed")
    with pytest.raises(ConfigError, match=r"run.ranks = 3: must be <= 2, this machine's GPUs \(--ranks 2\)"):
        launch.check_machine(three, "deepspeed")


def test_vllm_that_is_not_installed_is_one_line(monkeypatch):
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    launch.check_machine(request().config, "deepspeed")
    with pytest.raises(ConfigError, match="rollout.backend = 'vllm': vLLM is not installed here; install requ"):
        launch.check_machine(request("--set", "rollout.backend=vllm").config, "deepspeed")


# A stand-in for the deepspeed launcher, which is no part of what is tested here: it starts a rank that holds the lock.
RANK = """
import os, subprocess, sys, time
from pipeline.run_directory import RunLock
from pipeline.signals import StopRequest
lock, stop = RunLock(sys.argv[1]), StopRequest()
lock.acquire()
worker = subprocess.Popen(["sleep", "60"])
print(os.getpid(), worker.pid, flush=True)
while not (stop.signal and sys.argv[2] == "obedient"):
    time.sleep(0.02)
"""
HARNESS = """
import sys
from pathlib import Path
from pipeline import launch
from pipeline.run_directory import RunPaths
import os
paths = RunPaths(Path(sys.argv[1]))
launch.STOP_S = int(sys.argv[4])
code, _ = launch.run_group([sys.executable, "-c", sys.argv[3], str(paths.lock), sys.argv[2]], dict(os.environ), paths)
print("ended by", code, flush=True)
"""


@pytest.mark.parametrize(("kind", "signals", "stop_s"), [("obedient", 1, 60), ("busy", 2, 60), ("busy", 1, 1)])
def test_signals_reach_rank_0_and_nothing_outlives_the_launcher(tmp_path, kind, signals, stop_s):
    command = [sys.executable, "-c", HARNESS, str(tmp_path), kind, RANK, str(stop_s)]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    rank, worker = map(int, launcher.stdout.readline().split())
    for _ in range(signals):
        launcher.send_signal(signal.SIGINT)
        time.sleep(0.3)
    out, err = launcher.communicate(timeout=30)
    assert out == f"ended by {int(signal.SIGINT)}\n"
    assert err.count("stopping after the stage in progress") == 1
    wait_until_gone(rank, worker)


def test_the_entry_point_is_python_dash_m():
    done = run_pipeline("--help")
    assert done.returncode == 0 and "bash run.sh" in done.stdout and "--set KEY=VALUE" in done.stdout
    assert Path(launch.ROOT / launch.DRIVER).is_file()
