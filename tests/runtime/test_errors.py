"""errors.jsonl."""

import json

from runtime.errors import LAST_LINES, append_error


def test_errors_are_lines(tmp_path):
    path = tmp_path / "errors.jsonl"
    append_error(path, "optimize", 3, 1, "RunError", "a\nb")
    append_error(path, "evaluate", 4, 0, "ValueError", "größer \ud800", lines="x\n" * 50 + "the end\n", stopped=False)
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    time = first.pop("time")
    assert time[:2] == "20" and len(time) == len("2026-01-31T12:00:00+0000")
    assert first == {
        "stage": "optimize", "iteration": 3, "rank": 1, "stopped": True, "error": "RunError", "message": "a\nb",
        "lines": [],
    }  # fmt: skip
    assert (second["stopped"], second["message"]) == (False, "größer \ud800")
    assert second["lines"] == ["x"] * (LAST_LINES - 1) + ["the end"]


def test_a_torn_line_takes_no_other_with_it(tmp_path):
    path = tmp_path / "errors.jsonl"
    append_error(path, "optimize", 3, 1, "RunError", "first")
    path.write_bytes(path.read_bytes() + b'{"time": "20')
    append_error(path, "optimize", 3, 1, "RunError", "second")
    first, torn, second = path.read_text().splitlines()
    assert torn == '{"time": "20'
    assert [json.loads(line)["message"] for line in (first, second)] == ["first", "second"]
