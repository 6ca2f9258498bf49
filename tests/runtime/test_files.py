"""Atomic writes: a reader, and a kill at any moment, see the old file or the whole new one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.files import (
    atomic_folder,
    atomic_path,
    atomic_write_text,
    free_gib,
    gib,
    remove_leftovers,
    remove_tree,
    sha256,
)

ROOT = Path(__file__).resolve().parents[2]

WRITER = """
import sys
from runtime.files import atomic_write_text
n = 0
while True:
    atomic_write_text(sys.argv[1], str(n % 10) * 200_000)
    n += 1
    if n == 3:
        print("going", flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path):
    target = tmp_path / "data"
    for wait_s in (0.0, 0.003, 0.007, 0.013):
        command = [sys.executable, "-c", WRITER, str(target)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert writer.stdout.readline() == b"going\n"
        time.sleep(wait_s)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        text = target.read_text()
        assert len(text) == 200_000 and len(set(text)) == 1
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_an_error_while_writing_keeps_the_old_file(tmp_path):
    target = tmp_path / "file"
    atomic_write_text(target, "old")
    with pytest.raises(ValueError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise ValueError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_text_is_utf8_and_the_parent_is_made(tmp_path):
    target = tmp_path / "new" / "file"
    atomic_write_text(target, "mug → größer")
    assert target.read_bytes() == "mug → größer".encode()


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "policy"
    with atomic_folder(target) as folder:
        (folder / "old.txt").write_text("old")
    with pytest.raises(ValueError), atomic_folder(target) as folder:
        (folder / "half.txt").write_text("half")
        raise ValueError
    assert [path.name for path in target.iterdir()] == ["old.txt"]
    with atomic_folder(target) as folder:
        (folder / "new.txt").write_text("new")
    assert [path.name for path in target.iterdir()] == ["new.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_leftovers_are_removed_and_nothing_else(tmp_path):
    (tmp_path / "a" / ".x.tmp-12-deadbeef").mkdir(parents=True)
    (tmp_path / "a" / ".x.tmp-12-deadbeef" / "inner").write_text("")
    (tmp_path / ".y.json.tmp-3-00000000").write_text("")
    for keep in ("y.json", ".hidden", "a/file.tmp"):
        (tmp_path / keep).write_text("")
    assert len(remove_leftovers(tmp_path)) >= 2
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert left == [".hidden", "a/file.tmp", "y.json"]


def test_remove_tree_of_nothing_is_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("x")
    remove_tree(tmp_path / "folder")
    remove_tree(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def test_sha256_of_the_standard_vector(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")  # FIPS 180-2, appendix B.1
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_free_space_of_a_folder_that_is_not_there_yet(tmp_path):
    statistics = os.statvfs(tmp_path)
    expected = statistics.f_bavail * statistics.f_frsize / 2**30
    assert free_gib(tmp_path / "not" / "yet") == pytest.approx(expected, abs=0.5)


def test_sizes_are_shown_in_a_fitting_unit():
    assert (gib(3 * 2**30), gib(2**29), gib(5 * 2**20)) == ("3.00 GiB", "0.50 GiB", "5.0 MiB")
