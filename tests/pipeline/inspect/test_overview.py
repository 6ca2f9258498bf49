"""The run at a glance: finished, going on, damaged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time

from pipeline.inspect.__main__ import main
from pipeline.run_directory import RunLock
from tests.made_up_run import write_made_up_run
from tests.processes import ENVIRONMENT, ROOT


def overview(run_dir, capsys) -> str:
    assert main([str(run_dir)]) == 0
    return capsys.readouterr().out


def test_a_finished_run(whole_run, capsys):
    out = overview(whole_run, capsys)
    results = json.loads((whole_run / "evaluations/0004/results.json").read_text())
    success = 100 * results["sweeps"][0]["all"]["success"]
    for said in ("policy 4 of 4; not running on this machine; nothing left to do", "iterations 1-4, the last ",
                 f"{success:.1f}", "compute_advantages", "entropy", "disk: ", "checkpoints "):  # fmt: skip
        assert said in out, out
    assert "damage" not in out and "the last:" not in out


def test_a_run_in_the_middle_of_its_rollouts(whole_run, tmp_path, capsys):
    run_dir = tmp_path / "run"
    shutil.copytree(whole_run, run_dir)
    for stage in ("checkpoints/0004", "export", "evaluations/0004", "iterations/0004/advantages"):
        shutil.rmtree(run_dir / stage)
    (run_dir / "iterations/0004/rollouts/manifest.json").unlink()
    shard = run_dir / "iterations/0004/rollouts/rank-00000.jsonl"
    shard.write_bytes(b"".join(shard.read_bytes().splitlines(keepends=True)[:7]) + b'{"task_id": "ha')
    at = "collect_rollouts 4, 7 of 24 episodes played"
    assert f"policy 3 of 4; not running on this machine; next {at}" in overview(run_dir, capsys)
    locked = (
        "import os, sys; from pipeline.run_directory import RunLock; "
        f"RunLock({str(run_dir / 'run.lock')!r}).acquire(); print(os.getpid(), flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen([sys.executable, "-c", locked], cwd=ROOT, env=ENVIRONMENT, text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    pid = owner.stdout.readline().strip()
    assert f"policy 3 of 4; running here as process {pid}; at {at}" in overview(run_dir, capsys)
    owner.communicate()


def test_it_takes_no_lock(whole_run, tmp_path, capsys):
    run_dir = write_made_up_run(tmp_path / "run", {})
    before = sorted(run_dir.rglob("*"))
    overview(run_dir, capsys)
    assert sorted(run_dir.rglob("*")) == before and not (run_dir / "run.lock").exists()
    lock = RunLock(run_dir / "run.lock")
    lock.acquire()  # it is free
    overview(run_dir, capsys)  # and nobody who looks minds that it is not
    lock.release()


def test_a_run_that_has_just_begun(tmp_path, capsys):
    out = overview(write_made_up_run(tmp_path / "run", {}), capsys)
    assert "policy 0 of 150; not running on this machine; next reserve_vocab" in out


def test_failures_and_damage_are_shown(whole_run, tmp_path, capsys):
    run_dir = tmp_path / "run"
    shutil.copytree(whole_run, run_dir)
    fault = {"time": "2026-01-31", "stage": "evaluate", "rank": 1, "error": "RunError"}
    errors = [{**fault, "iteration": number, "message": f"\x1b[2J it broke {number}"} for number in range(5)]
    (run_dir / "errors.jsonl").write_text("".join(json.dumps(error) + "\n" for error in errors))
    (run_dir / "evaluations/0002/manifest.json").write_text("{")
    (run_dir / "evaluations/0004/results.json").write_text('{"sweeps": [3]}')
    out = overview(run_dir, capsys)
    assert "errors: 5; the last:" in out and "evaluate 4, rank 1: RunError" in out
    assert "it broke 1" not in out and "it broke 2" in out and "\x1b" not in out
    assert "damage: 2" in out and "results.json: not results of an evaluation" in out


def test_it_starts_in_a_second(whole_run):
    """CPU seconds of the whole process: what else the machine does is not counted."""
    code = (
        "import sys, time; from pipeline.inspect.__main__ import main; "
        f"main([{str(whole_run)!r}]); print(time.process_time())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert float(done.stdout.splitlines()[-1]) < 1.0


def test_a_closed_pipe_ends_it_silently(whole_run):
    command = [sys.executable, "-m", "pipeline.inspect", str(whole_run), "trajectories", "--iteration", "all",
               "--format", "csv"]  # fmt: skip
    reader = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    reader.stdout.close()
    end = time.monotonic() + 60
    while reader.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert reader.stderr.read() == b""


def test_help_names_the_commands():
    done = subprocess.run([sys.executable, "-m", "pipeline.inspect", "--help"], cwd=ROOT, env=ENVIRONMENT,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("overview", "trajectories", "show", "verify", "replay"))
