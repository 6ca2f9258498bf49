"""Stopping and orphans, with real processes."""

import os
import signal
import subprocess
import sys

import pytest

from pipeline.run_directory import RunPaths
from pipeline.signals import parent_of, what_is_kept
from tests.processes import ENVIRONMENT, WAIT_S, gone, wait_until_gone

STOPPABLE = """
import os, time
from pipeline.signals import StopRequest
stop = StopRequest()
worker = os.fork()
if worker == 0:
    print(os.getpid(), flush=True)  # only now: Python forgets signals that reach a child before its fork is done
    time.sleep(30)
    os._exit(0)
while not stop.signal:
    time.sleep(0.01)
print("asked by", stop.signal, flush=True)
time.sleep(30)
"""

# A launcher's process that starts a rank in a session of its own; the rank has a worker.
LAUNCHER = """
import os, subprocess, sys, time
rank = '''
import os, subprocess, time
from pipeline.signals import end_with_parents
end_with_parents()
worker = subprocess.Popen(["sleep", "60"])
print(os.getpid(), worker.pid, flush=True)
time.sleep(60)
'''
environment = {**os.environ, "SAPO_LAUNCHER_PID": str(os.getpid())} if sys.argv[1] == "ours" else os.environ
middle = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
name = "deepspeed.launcher.launch" if sys.argv[1] == "deepspeed" else "another"
subprocess.run([sys.executable, "-c", middle, rank, name], env=environment, start_new_session=True)
"""


def test_the_first_signal_asks_the_second_ends_and_workers_obey_at_once():
    process = subprocess.Popen([sys.executable, "-c", STOPPABLE], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    worker = int(process.stdout.readline())
    os.kill(worker, signal.SIGTERM)
    wait_until_gone(worker)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == f"asked by {int(signal.SIGTERM)}\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=WAIT_S) == -signal.SIGINT


def test_a_killed_launcher_takes_ranks_and_workers_with_it():
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, "ours"], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    rank, worker = map(int, launcher.stdout.readline().split())
    assert not gone(rank)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    wait_until_gone(rank, worker)


GUARDED = """
import subprocess, time
from pipeline.signals import start_guard
group = subprocess.Popen(["sleep", "60"], start_new_session=True)
guard = start_guard(group.pid)
print(group.pid, guard.pid, flush=True)
time.sleep(60)
"""


def test_the_guard_ends_a_group_at_once_when_its_launcher_is_killed():
    launcher = subprocess.Popen([sys.executable, "-c", GUARDED], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    group, guard = map(int, launcher.stdout.readline().split())
    assert not gone(group) and not gone(guard)
    launcher.kill()
    launcher.wait()
    wait_until_gone(group, guard)


def test_a_rank_whose_own_parent_was_killed_ends():
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, "by hand"], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    rank, worker = map(int, launcher.stdout.readline().split())
    os.kill(parent_of(rank), signal.SIGKILL)
    wait_until_gone(rank)
    os.kill(worker, signal.SIGKILL)  # by hand the group is not ours to end
    launcher.wait(timeout=WAIT_S)


# The process in front ends before the rank is there.
LATE = """
import os, subprocess, sys
rank = "import time; from pipeline.signals import end_with_parents; end_with_parents(); time.sleep(60)"
middle = '''
import os, subprocess, sys, time
while os.getppid() == int(sys.argv[2]):
    time.sleep(0.05)
print(os.getpid(), os.getppid(), flush=True)
subprocess.run([sys.executable, "-c", sys.argv[1]])
'''
arguments = [rank, str(os.getpid()), "deepspeed.launcher.launch"]
subprocess.Popen([sys.executable, "-c", middle, *arguments], start_new_session=True)
"""


def test_a_rank_that_comes_after_its_outer_launcher_has_gone_ends():
    launcher = subprocess.Popen([sys.executable, "-c", LATE], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    launcher.wait()
    middle, reaper = map(int, launcher.stdout.readline().split())
    if reaper != 1:
        os.killpg(middle, signal.SIGKILL)
        pytest.skip("orphans are not given to process 1 here")
    wait_until_gone(middle)  # ends with its rank


def test_a_rank_whose_outer_launcher_was_killed_ends():
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, "deepspeed"], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    rank, worker = map(int, launcher.stdout.readline().split())
    inner = parent_of(rank)
    launcher.kill()
    launcher.wait()
    wait_until_gone(rank, inner)
    os.kill(worker, signal.SIGKILL)  # a real worker dies with its rank


HAND = """
import time
from pipeline.signals import StopRequest, stop_at_once
StopRequest()
stop_at_once(lambda: "in optimize 3")
print("ready", flush=True)
time.sleep(30)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stage_by_hand_stops_at_the_first_signal_and_says_so(number):
    process = subprocess.Popen([sys.executable, "-c", HAND], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=ENVIRONMENT)  # fmt: skip
    process.stdout.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (128 + number, "stopped in optimize 3; go on with the same command\n")


@pytest.mark.parametrize(
    ("stage", "files", "said"),
    [
        ("collect_rollouts", {"rank-00000.jsonl": "{}\n{}\n{", "rank-00001.jsonl": "{}\n"}, "3 finished trajectories"),
        ("evaluate", {"near-t1-rank-00000.jsonl": "{}\n"}, "1 finished trajectories are kept"),
        ("warm_start", {"demonstrations.jsonl": "{}\n"}, "the demonstrations are kept"),
        ("warm_start", {}, "done again from its start"),
        ("start", {}, "in start; every step begun is complete"),
        ("optimize", {}, "in optimize 3, which is done again from its start; every step before it is complete"),
    ],
)
def test_what_a_cut_step_keeps_is_said(tmp_path, stage, files, said):
    paths = RunPaths(tmp_path)
    for name, content in files.items():
        path = paths.stage(stage, 3) / name  # the warm start has one place, whatever the number
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert said in what_is_kept(paths, (stage, 3))
