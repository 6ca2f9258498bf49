"""One line for what the user or the machine did, a traceback for what we did."""

import errno
import json

import pytest
import torch

from env_adapters.base import EnvironmentFault
from pipeline.faults import DEFECT, USER_FAULT, end_on, one_line
from pipeline.run_directory import RunError
from runtime.distributed import no_meeting


class ThirdPartyFault(EnvironmentFault):
    pass


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (RunError("x: y; z"), "x: y; z"),
        (ThirdPartyFault("no game; get one"), "no game; get one"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk: No space left on device; free some disk"),
        (OSError(errno.EROFS, "Read-only file system", "/a/b"), "/a/b: Read-only file system; make it writable, or"),
        (PermissionError(errno.EACCES, "Permission denied", "/a"), "/a: Permission denied; make it writable, or"),
        (FileExistsError(errno.EEXIST, "File exists", "/a"), "/a: File exists; a file is where a folder should be"),
        (RuntimeError("io: No space left on device (os error 28)"), "the disk is full or cannot be written (io: No"),
        (RuntimeError("basic_ios::clear: iostream error"), "the disk is full or cannot be written (basic_ios"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator:\n can't allocate memory"),
            "out of memory ([enforce fail]",
        ),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory (CUDA out of memory); lower optimize.microb"),
        (MemoryError(), "out of memory (); lower"),
    ],
)
def test_what_is_not_our_fault_is_one_line_with_a_remedy(fault, line):
    said = one_line(fault)
    assert said.startswith(line) and "\n" not in said


@pytest.mark.parametrize(
    "fault", [KeyError("a"), ZeroDivisionError(), FileNotFoundError(errno.ENOENT, "No such", "/a")]
)
def test_a_defect_has_no_line(fault):
    assert one_line(fault) is None


def test_the_end_of_a_process(tmp_path, capsys):
    assert (
        end_on(OSError(errno.ENOSPC, "No space left on device"), tmp_path / "errors.jsonl", "optimize", 3) == USER_FAULT
    )
    assert capsys.readouterr().err == (
        "error: the disk: No space left on device; free some disk, then start the same command again\n"
    )
    assert end_on(KeyError("a"), tmp_path / "errors.jsonl", "optimize", 3) == DEFECT
    assert "defect in optimize 3:\nKeyError: 'a'" in capsys.readouterr().err
    lines = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    assert [line["error"] for line in lines] == ["OSError", "KeyError"]
    assert lines[1]["lines"] == ["KeyError: 'a'"] and lines[1]["stopped"]


def test_a_disk_that_takes_no_errors_file_hides_nothing(tmp_path, capsys):
    (tmp_path / "errors.jsonl").mkdir()
    assert end_on(RunError("x: y; z"), tmp_path / "errors.jsonl", "optimize", 3) == USER_FAULT
    assert capsys.readouterr().err == "error: x: y; z\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("port: 4711, code: -98, name: EADDRINUSE, message: address already in use",
         "port 127.0.0.1:4711 is in use by another process; start again with a free one: deepspeed --master_port N"),
        ("timed out\nafter 5 s", "rank 1 of 2 could not join the others at 127.0.0.1:4711 within 5 s (timed out"),
    ],
)  # fmt: skip
def test_ranks_that_do_not_meet_are_one_line(monkeypatch, text, line):
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "4711"), ("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    said = one_line(no_meeting(RuntimeError(text), 5.0))
    assert said.startswith(line) and "\n" not in said


def test_a_message_is_one_printable_line_with_its_end():
    """Damaged files are quoted in messages: no sign of theirs moves the cursor, turns the text or fills a page."""
    assert one_line(RunError("x\x1b[2J\ud800\u202e: y\nz; mend it")) == "x\\x1b[2J\\ud800\\u202e: y z; mend it"
    line = one_line(RunError("x: " + "a" * 100_000 + "; mend it"))
    assert len(line) == 1000 + 5 + 375 and line.endswith("; mend it")  # two thirds and a quarter of 1500, " ... "
