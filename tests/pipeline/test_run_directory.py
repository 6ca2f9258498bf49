"""The lock against real second processes, and the disk check."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipeline.run_directory import (
    RunError,
    RunLock,
    check_disk,
    link_or_copy,
    owner_pid,
    process_start,
)
from runtime.files import free_gib

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import os, sys, time
from pipeline.run_directory import RunLock
lock = RunLock(sys.argv[1])
lock.acquire()
child = os.fork() if len(sys.argv) > 2 else None  # as a forked environment worker: open files are inherited
if child != 0:
    print(child or 0, flush=True)
time.sleep(30)
"""


def holder(path: Path, *extra: str) -> tuple[subprocess.Popen, int]:
    command = [sys.executable, "-c", HOLDER, str(path), *extra]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return process, int(process.stdout.readline())


def test_two_processes_cannot_have_one_run(tmp_path):
    path = tmp_path / "run.lock"
    process, _ = holder(path)
    try:
        assert owner_pid(path) == process.pid
        with pytest.raises(RunError, match=f"in use by process {process.pid} on host .*, started 20.*--run-dir"):
            RunLock(path).acquire()
        assert owner_pid(path) == process.pid
    finally:
        process.kill()
        process.wait()


def test_a_dead_owner_lets_go_even_where_its_child_lives_on(tmp_path):
    path = tmp_path / "run.lock"
    process, child = holder(path, "with a child")
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        os.kill(child, 0)  # it lives
        assert owner_pid(path) is None
        with RunLock(path):
            assert owner_pid(path) == os.getpid()
    finally:
        os.kill(child, signal.SIGKILL)
    assert owner_pid(path) is None


def test_an_owner_that_is_ending_is_waited_for(tmp_path):
    path = tmp_path / "run.lock"
    process, _ = holder(path)
    threading.Timer(0.5, process.kill).start()
    with RunLock(path, patience_s=10.0):
        assert owner_pid(path) == os.getpid()
    process.wait()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"pid": 1}', b"\xff\xff"])
def test_a_lock_file_with_any_content_can_be_taken(tmp_path, content):
    path = tmp_path / "run.lock"
    path.write_bytes(content)
    assert owner_pid(path) is None
    with RunLock(path):
        assert owner_pid(path) == os.getpid()


def test_a_process_number_that_was_given_again_is_not_the_owner(tmp_path):
    path = tmp_path / "run.lock"
    record = {"host": socket.gethostname(), "pid": os.getpid(), "started": process_start(os.getpid())}
    path.write_text(json.dumps(record))
    assert owner_pid(path) == os.getpid()
    path.write_text(json.dumps({**record, "started": record["started"] - 60}))
    assert owner_pid(path) is None


def test_too_little_disk_is_one_clear_line(tmp_path):
    free = free_gib(tmp_path)
    check_disk(tmp_path, needed_gib=0.0, min_free_gib=0.0, what="optimize 3")
    with pytest.raises(RunError, match=r"GiB free; optimize 3 needs about 0.25 GiB and .* must stay free .*keep_last"):
        check_disk(tmp_path, needed_gib=0.25, min_free_gib=free, what="optimize 3")


def test_link_or_copy(tmp_path, monkeypatch):
    source = tmp_path / "weights"
    source.write_bytes(b"12345")
    link_or_copy(source, tmp_path / "linked")
    assert (tmp_path / "linked").stat().st_ino == source.stat().st_ino

    def no_links(*_):
        raise OSError("no links on this disk")

    monkeypatch.setattr(os, "link", no_links)
    link_or_copy(source, tmp_path / "copied")
    assert (tmp_path / "copied").read_bytes() == b"12345"
    assert (tmp_path / "copied").stat().st_ino != source.stat().st_ino
