"""Chosen faults in whole runs; `python -m tests.faults` draws others at random."""

from __future__ import annotations

import errno
import shutil
import signal
from pathlib import Path

import pytest

from pipeline.run_directory import RunPaths
from tests.faults.attempt import Act, make_writable, may_mount
from tests.faults.layer import Order, build, compiler
from tests.faults.trial import Attempt, Blow, Trial, make_reference, owned_by_nobody, stop_limit_s

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(compiler() is None, reason="no C compiler on the path"),
]
FULL, BROKEN = f"fail {errno.ENOSPC}", f"fail {errno.EIO}"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def library(scratch) -> Path:
    return build(scratch)


@pytest.fixture(scope="module")
def uncut(scratch, library) -> Path:
    make_reference(scratch / "uncut", library, 1, mode="driver")
    return scratch / "uncut"


def strike(trial: Trial, name: str, blow: Blow) -> Attempt:
    attempt = trial.strike(blow)
    assert not attempt.faults, (name, attempt.faults, attempt.message)
    assert attempt.dealt, f"{name}: its moment did not come"
    return attempt


def test_what_a_disk_does_costs_nothing(scratch, library, uncut):
    """Each cuts the same run further on; the end is that of an uncut one."""
    trial = Trial(scratch / "disk", uncut, library, "driver")
    trial.prepare()
    full = strike(trial, "full disk", Blow(Order(3, FULL, "demonstrations", stays=True)))
    assert full.outcome.code == 2 and "No space left on device; free some disk" in full.message
    torn = strike(trial, "torn trajectory", Blow(Order(9, "tear 300", "0001/rollouts/rank-")))
    assert torn.outcome.code == -signal.SIGKILL
    shard = trial.run_dir / "iterations/0001/rollouts/rank-00000.jsonl"
    assert not shard.read_bytes().endswith(b"\n")
    before = trial.memory.num_trajectories
    broken = strike(trial, "broken disk", Blow(Order(2, BROKEN, "checkpoints/0001/.policy", stays=True)))
    assert broken.outcome.code == 2 and "Input/output error; check the disk" in broken.message
    assert trial.memory.num_trajectories > before
    strike(trial, "torn engine state", Blow(Order(4, "tear 100", "checkpoints/0001/.engine")))
    strike(trial, "full at the metrics", Blow(Order(1, FULL, "metrics.jsonl", stays=True)))
    assert trial.finish() == []


def test_what_a_run_goes_on_after(scratch, library, uncut):
    """One start: a worker that hangs, a clock that jumps back, locks that killed processes left."""
    trial = Trial(scratch / "survived", uncut, library, "driver")
    trial.prepare()
    hang = Act("SIGSTOP", "worker", 140, name="environment hangs")
    clock = Order(100, "clock -86400", name="clock jumps")
    survived = strike(trial, "survived", Blow(clock, (hang,), owned_by_nobody(False), stale_jit_lock=True))
    assert sorted(survived.dealt) == ["clock jumps", "environment hangs", "stale JIT lock", "stale lock"]
    assert survived.outcome.code == 0, survived.message
    assert trial.finish() == []


def test_signals_and_lost_processes(scratch, library, uncut):
    """Through the launcher: what it says, how long it takes, that nothing outlives it."""
    trial = Trial(scratch / "signals", uncut, library, "resident")
    stopped = strike(trial, "SIGTERM", Blow(Order(12, "wait", "0000/near"), (Act("SIGTERM", at=10**9),)))
    assert stopped.outcome.code == 128 + signal.SIGTERM and stopped.outcome.stop_s < stop_limit_s()
    assert "steps to do; go on with: bash run.sh --run-dir" in stopped.message
    lost = strike(trial, "SIGKILL", Blow(Order(3, "wait", "0001/rollouts"), (Act("SIGKILL", "inner launcher", 10**9),)))
    assert lost.outcome.code == 1 and "a process of the run was lost before " in lost.message
    twice = strike(trial, "Ctrl-C twice", Blow(Order(1, "wait", "0002/rollouts"), (Act("SIGINT twice", at=10**9),)))
    assert twice.outcome.code == 128 + signal.SIGINT and "stopped; in collect_rollouts 2, of which" in twice.message
    assert trial.finish() == []


def test_a_rank_lost_in_a_collective(scratch, library):
    make_reference(scratch / "uncut-pair", library, 2, iterations=1)
    trial = Trial(scratch / "pair", scratch / "uncut-pair", library, "resident", 2, 1)
    freeze = Act("freeze and kill", "rank 1", 10**9)
    lost = strike(trial, "lost rank", Blow(Order(1, "wait", "0001/.manifest"), (freeze,)))
    assert lost.outcome.code != 0 and "go on with: bash run.sh --run-dir" in lost.outcome.err
    assert trial.finish() == []


def test_a_stage_by_hand_says_what_ctrl_c_left(scratch, library, uncut):
    trial = Trial(scratch / "by-hand", uncut, library, "stages")
    shutil.copytree(uncut, trial.run_dir)
    shutil.rmtree(RunPaths(trial.run_dir).evaluation(2))
    cut = strike(trial, "Ctrl-C", Blow(Order(5, "wait", "0002/near"), (Act("SIGINT", at=10**9),)))
    assert "stopped in evaluate 2, of which" in cut.outcome.err and cut.outcome.code != 0
    assert strike(trial, "the same command", Blow(stale_jit_lock=True)).outcome.code == 0
    assert trial.complete


def test_a_run_directory_that_becomes_read_only(scratch, library, uncut):
    if not may_mount(scratch / "mount"):
        pytest.skip("this process may not mount anything")
    trial = Trial(scratch / "mounted", uncut, library, "driver")
    trial.prepare()
    try:
        refused = strike(trial, "read-only", Blow(acts=(Act("read-only", at=60),)))
    finally:
        make_writable(trial.run_dir)
    assert refused.outcome.code == 2 and "Read-only file system; make it writable" in refused.message
    assert trial.finish() == []
