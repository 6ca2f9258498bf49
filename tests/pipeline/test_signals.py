"""Stopping and orphans, with real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

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
subprocess.run([sys.executable, "-c", middle, rank], env=environment, start_new_session=True)
"""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


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


def test_a_rank_whose_own_parent_was_killed_ends():
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, "by hand"], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    rank, worker = map(int, launcher.stdout.readline().split())
    os.kill(parent_of(rank), signal.SIGKILL)
    wait_until_gone(rank)
    os.kill(worker, signal.SIGKILL)  # by hand the group is not ours to end
    launcher.wait(timeout=WAIT_S)
