"""The file layer does what it is told, in a child process; and the checks of a run see what they look for."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.attempt import make_read_only, make_writable, may_mount
from tests.faults.layer import Layer, Order, build, compiler
from tests.faults.run import Memory, finished, lock_is_free, look

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler on the path")


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("layer"))


def run_child(library: Path, folder: Path, order: Order, code: str) -> tuple[subprocess.CompletedProcess, Layer]:
    root = folder / "run"
    root.mkdir(exist_ok=True)
    layer = Layer(library, folder / "state", root, order)
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env={**os.environ, **layer.environment},
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    return done, layer


THREE_LINES = """
with open("a.jsonl", "ab", buffering=0) as file:
    for line in (b"one", b"two", b"three"):
        file.write(line + bytes([10]))
"""


@needs_compiler
def test_events_are_counted_below_the_folder_alone(library, tmp_path):
    (tmp_path / "run-side").mkdir()
    other = f"open({str(tmp_path / 'run-side/x')!r}, 'w').write('x')"
    done, layer = run_child(library, tmp_path, Order(), f"{THREE_LINES}\n{other}")
    assert done.returncode == 0, done.stderr
    assert layer.events == 4  # one that makes the file, three writes


@needs_compiler
def test_a_write_fails_once_or_from_then_on(library, tmp_path):
    count = """
lost = 0
with open("a.jsonl", "ab", buffering=0) as file:
    for _ in range(4):
        try:
            file.write(b"x")
        except OSError as fault:
            lost += 1
            number = fault.errno
print(lost, number)
"""
    for stays, lost in ((False, 1), (True, 3)):
        done, _ = run_child(library, tmp_path, Order(3, f"fail {errno.EIO}", "a.jsonl", stays), count)
        assert done.stdout == f"{lost} {errno.EIO}\n", done.stderr
        (tmp_path / "run/a.jsonl").unlink()


@needs_compiler
def test_a_full_disk_still_lets_go_of_files(library, tmp_path):
    code = "import os; open('a', 'w').close(); os.truncate('a', 0); os.unlink('a'); os.mkdir('b')"
    done, _ = run_child(library, tmp_path, Order(2, f"fail {errno.ENOSPC}", stays=True), code)
    assert "No space left on device: 'b'" in done.stderr
    assert not (tmp_path / "run/a").exists()


@needs_compiler
def test_a_torn_write_leaves_so_many_bytes_and_a_dead_process(library, tmp_path):
    done, _ = run_child(library, tmp_path, Order(3, "tear 2"), THREE_LINES)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "run/a.jsonl").read_bytes() == b"one\ntw"


@needs_compiler
def test_the_clock_jumps_at_the_event(library, tmp_path):
    code = "import time; a = time.time(); open('a', 'w').close(); print(round(time.time() - a))"
    done, _ = run_child(library, tmp_path, Order(1, "clock -3600"), code)
    assert done.stdout == "-3600\n"


@needs_compiler
def test_an_event_waits_at_the_gate_and_its_process_is_found(library, tmp_path):
    root = tmp_path / "run"
    root.mkdir()
    layer = Layer(library, tmp_path / "state", root, Order(2, "wait"))
    child = subprocess.Popen([sys.executable, "-c", THREE_LINES], cwd=root, env={**os.environ, **layer.environment})
    end = time.monotonic() + 30
    while not layer.waits:
        assert child.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    assert (root / "a.jsonl").read_bytes() == b""
    assert list(layer.processes()) == [child.pid]
    layer.open_gate()
    assert child.wait(timeout=30) == 0
    assert (root / "a.jsonl").read_bytes() == b"one\ntwo\nthree\n" and not layer.processes()


def line(task: str, score: float, status: str = "terminated") -> str:
    return json.dumps({"task_id": task, "sample": 0, "status": status, "score": score}) + "\n"


def test_what_must_not_happen_to_trajectories_is_seen(tmp_path):
    folder = tmp_path / "iterations/0001/rollouts"
    folder.mkdir(parents=True)
    shard, memory = folder / "rank-00000.jsonl", Memory()
    shard.write_text(line("a", 1.0) + line("b", 0.0, "error") + line("b", 1.0) + '{"torn')
    assert look(tmp_path, memory) == (0, [])
    assert memory.num_trajectories == 2
    shard.write_text(line("b", 1.0) + line("c", 1.0))
    lost, faults = look(tmp_path, memory)
    assert lost == 1 and "('a', 0) is gone or another" in faults[0]
    (folder / "rank-00001.jsonl").write_text(line("c", 2.0))
    assert finished(folder)[1] == ["('c', 0)"]


def test_a_lock_that_is_held_is_seen(tmp_path):
    lock = tmp_path / "run.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", f"import fcntl, time; f = open({str(lock)!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
         "print('held', flush=True); time.sleep(60)"], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    holder.stdout.readline()
    assert not lock_is_free(lock)
    holder.kill()
    holder.wait()
    assert lock_is_free(lock)
    with open(lock, "r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)  # a lock of our own is no other's
        assert lock_is_free(lock)


def test_a_folder_can_be_made_read_only_and_writable_again(tmp_path):
    if not may_mount(tmp_path / "probe"):
        pytest.skip("this process may not mount anything")
    make_read_only(tmp_path)
    try:
        with pytest.raises(OSError, match="Read-only file system"):
            (tmp_path / "a").write_text("x")
    finally:
        make_writable(tmp_path)
    (tmp_path / "a").write_text("x")
