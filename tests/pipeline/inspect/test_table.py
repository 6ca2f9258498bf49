"""The table of episodes: numbers by hand, filters, sorts, forms of output."""

from __future__ import annotations

import csv
import io
import json

import pytest

from pipeline.inspect.__main__ import main
from pipeline.inspect.reading import Episode
from pipeline.inspect.table import SORTABLE, summarise
from tests.made_up_run import made_up_targets, made_up_trajectory, made_up_turn, write_made_up_run


def episodes():
    """Three ways an episode can go; V falls most in b."""
    won = [made_up_turn("a cold mug", "heat mug"), made_up_turn("a hot mug", "put mug", 10.0, terminated=True)]
    lost = [made_up_turn(), made_up_turn(valid=False, action=""), made_up_turn(truncated=True)]
    return [
        (made_up_trajectory("a", won, success=True, score=1.0), [5.0, 8.0]),
        (made_up_trajectory("b", lost, status="truncated", task_type="cool"), [4.0, 6.0, 1.0]),
        (made_up_trajectory("c", [made_up_turn(truncated=True)], status="truncated"), [2.0]),
        (made_up_trajectory("d", (), status="error", error="the oven exploded"), None),
    ]


@pytest.fixture
def root(tmp_path):
    second = [(made_up_trajectory("e", [made_up_turn(terminated=True)], iteration=2, success=True), None)]
    return write_made_up_run(tmp_path / "run", {1: episodes(), 2: second})


def rows(root, capsys, *flags: str) -> list[str]:
    """The task ids that `trajectories --iteration 1 <flags>` prints."""
    flags = flags if "--iteration" in flags else ("--iteration", "1", *flags)
    assert main([str(root), "trajectories", "--format", "jsonl", *flags]) == 0
    return [json.loads(line)["task_id"] for line in capsys.readouterr().out.splitlines()]


def test_a_summary_by_hand():
    """V 4, 6, 1 falls by -2, then by 5 after turn 1. Discounted by 0.5: 0.5 * 0.5 * 2 * 3 = 1.5, surprise 1.5 - 4."""
    turns = [made_up_turn(), made_up_turn(valid=False), made_up_turn(reward=3.0)]
    one = made_up_trajectory("b", turns, status="truncated")
    row = summarise(Episode(one, made_up_targets("b#0", [4.0, 6.0, 1.0])), 0.5, 2.0)
    assert (row.first_value, row.value_drop, row.drop_turn, row.surprise) == (4.0, 5.0, 1, -2.5)
    assert (row.turns, row.return_, row.invalid, row.response_tokens, row.seconds) == (3, 3.0, 1, 6, 2.25)
    alone = summarise(Episode(one, None), 0.5, 2.0)
    assert alone.first_value is alone.value_drop is alone.surprise is None


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), "abcd"),
        (("--failed",), "bc"),
        (("--succeeded",), "a"),
        (("--status", "error"), "d"),
        (("--task-type", "coo"), "b"),
        (("--task", "c"), "c"),
        (("--invalid",), "b"),
        (("--min-turns", "2"), "ab"),
        (("--max-turns", "2", "--failed"), "c"),
        (("--min-return", "10"), "a"),
        (("--max-return", "9.9"), "bcd"),
        (("--text", "HOT mug"), "a"),
        (("--text", "oven"), "d"),
        (("--split", "unseen"), ""),
        (("--sort", "value_drop"), "bacd"),  # 5, -3, then those without a fall
        (("--sort", "value_drop", "--reverse"), "abcd"),
        (("--sort", "turns", "--limit", "2"), "ba"),
        (("--sort", "return", "--failed"), "cb"),  # both 0: by task id, largest first as well
        (("--limit", "1"), "a"),
        (("--limit", "0"), "abcd"),
        (("--iteration", "all"), "abcde"),
        (("--iteration", "2-9"), "e"),
    ],
)
def test_filters_and_sorts(root, capsys, flags, expected):
    assert rows(root, capsys, *flags) == list(expected)


def test_the_newest_iteration_is_the_default(root, capsys):
    assert main([str(root), "trajectories"]) == 0
    out = capsys.readouterr().out
    assert "2:e" in out and "1:a" not in out and "1 shown of 1 read" in out


def test_csv_has_a_head_and_all_fields(root, capsys):
    assert main([str(root), "trajectories", "--iteration", "1", "--format", "csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(table[0]) == SORTABLE and [row["task_id"] for row in table] == list("abcd")
    assert (table[0]["return"], table[1]["value_drop"], table[3]["value_drop"]) == ("10.0", "5.0", "")


def test_evaluations_are_a_place_too(whole_run, capsys):
    flags = ["--evaluation", "4", "--split", "far", "--format", "jsonl"]
    assert main([str(whole_run), "trajectories", *flags]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(found) == 24 and {row["split"] for row in found} == {"far"}
    assert all(row["value_drop"] is None for row in found)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--iteration", "7"], "error: iteration 7: not in this run; near are 1, 2"),
        (["--iteration", "x"], "error: --iteration x: must be a number, a range such as 3-7, or all"),
        (["--evaluation", "0"], "error: evaluation 0: not in this run; there is none yet"),
        (["--iteration", "1", "--evaluation", "0"], "error: --iteration and --evaluation: give one of them"),
        (["--sort", "vale_drop"], "error: --sort vale_drop: no such field; did you mean value_drop?"),
        (
            ["--iteration", "1", "--task-type", "heap"],
            "error: --task-type heap: no such type here; there are cool, heat",
        ),
        (["--fialed"], "error: unknown argument --fialed; did you mean --failed?"),
        (["--limit", "many"], "error: argument --limit: invalid int value: 'many'"),
    ],
)
def test_errors_are_one_line(root, capsys, flags, message):
    assert main([str(root), "trajectories", *flags]) == 2
    err = capsys.readouterr().err
    assert err.startswith(message) and err.count("\n") == 1


def test_an_unknown_command_or_run_is_one_line(root, capsys):
    assert main([str(root), "trajectory"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown command trajectory; did you mean trajectories?")
    assert main([str(root.parent / "rum")]) == 2
    assert "rum: no such folder; did you mean" in capsys.readouterr().err


def test_hostile_names_do_not_reach_the_terminal(tmp_path, capsys):
    bad = "\x1b[2J\u202e"
    one = made_up_trajectory(bad, [made_up_turn(bad, bad)], task_type=bad, goal=bad, status="truncated")
    root = write_made_up_run(tmp_path / "run", {1: [(one, None)]})
    for form in ("table", "csv", "jsonl"):
        assert main([str(root), "trajectories", "--format", form]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out and "\u202e" not in out and "u202e" in out


def test_damage_is_said_on_stderr(root, capsys):
    shard = root / "iterations/0002/rollouts/rank-00000.jsonl"
    shard.write_text("{}\n" + shard.read_text())
    assert rows(root, capsys, "--iteration", "2") == ["e"]
    assert main([str(root), "trajectories"]) == 0
    assert capsys.readouterr().err.startswith("warning: 1 damaged places were left out, the first: ")
