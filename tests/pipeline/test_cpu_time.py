"""CPU seconds of a process tree: of itself, of a living child, of an ended one; sleeping costs none."""

import subprocess
import sys
import time

from pipeline.cpu_time import cpu_seconds

BURN = "import time\nend = time.process_time() + 0.55\nwhile time.process_time() < end: pass\n"
TOLERANCE_S = 0.3  # an interpreter's start, and the 0.05 s more that BURN takes because ticks of 0.01 s are cut off


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_own_work_counts_and_sleep_does_not():
    before = cpu_seconds()
    burn(0.3)
    worked = cpu_seconds() - before
    time.sleep(0.5)
    slept = cpu_seconds() - before - worked
    assert 0.25 <= worked < 0.3 + TOLERANCE_S and slept < 0.2


def test_a_child_counts_once_while_it_lives_and_after_it_has_ended():
    before = cpu_seconds()
    living = f"{BURN}print('burnt', flush=True)\nimport sys\nsys.stdin.read()\n"
    child = subprocess.Popen([sys.executable, "-c", living], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "burnt\n"
    alive = cpu_seconds() - before
    child.communicate("")
    ended = cpu_seconds() - before
    assert 0.5 <= alive < 0.5 + TOLERANCE_S
    assert alive <= ended < 0.5 + TOLERANCE_S


def test_a_grandchild_counts():
    middle = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}], check=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", middle], stdin=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while cpu_seconds(child.pid) < 0.5:  # the child itself only starts an interpreter
        assert time.monotonic() < end
        time.sleep(0.05)
    child.communicate("")


def test_of_a_process_that_is_gone():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert cpu_seconds(child.pid) == 0.0
