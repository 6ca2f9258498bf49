"""Episodes as chats for other trainers."""

from __future__ import annotations

import json

import pytest

from pipeline.export_dataset import main
from pipeline.inspect.reading import open_run
from runtime.vocabulary import ValueTokens, write_value_tokens
from tests.made_up_run import made_up_trajectory, made_up_turn, write_made_up_run

WON = [
    made_up_turn("a cold mug", "heat mug", admissible_actions=("heat mug", "wait")),
    made_up_turn("a hot mug", "put mug", 1.0, terminated=True),
]
LOST = [made_up_turn("a cold mug", "wait"), made_up_turn("a cold mug", "?", valid=False, truncated=True)]


def chat(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]


@pytest.fixture
def root(tmp_path):
    """Task a is lost, then won twice; b is only won, with a value token in it; c only lost, d an error."""
    stolen = made_up_turn("a cup", "take", 1.0, response_ids=(36, 1), terminated=True)
    first = [
        made_up_trajectory("a", LOST, status="truncated"),
        made_up_trajectory("b", [stolen], success=True),
        made_up_trajectory("c", LOST, status="truncated"),
        made_up_trajectory("d", (), status="error", error="gone"),
    ]
    second = [made_up_trajectory("a", WON, iteration=2, success=True)]
    third = [made_up_trajectory("a", WON, iteration=3, success=True)]
    episodes = {i: [(one, None) for one in part] for i, part in enumerate((first, second, third), start=1)}
    root = write_made_up_run(tmp_path / "run", episodes)
    (root / "model").mkdir()
    (root / "model/config.json").write_text('{"vocab_size": 37}')
    write_value_tokens(root / "model", ValueTokens(35, 36, 10.0, 1.0, "f"))
    return root


def lines(capsys, *arguments) -> list[dict]:
    assert main([str(argument) for argument in arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_successful_episodes_as_chats(root, capsys):
    expected = {"messages": chat("heat a mug\n\na cold mug", "heat mug", "a hot mug", "put mug")}
    assert lines(capsys, root) == [expected, expected]  # of iterations 2 and 3; b holds w-
    assert lines(capsys, root, "--iteration", "3") == [expected]


def test_what_was_left_out_is_said(root, capsys):
    assert main([str(root)]) == 0
    assert capsys.readouterr().err == "2 lines from 6 episodes, 1 left out that hold a value token\n"


def test_actions_are_listed_where_they_are_wanted(root, capsys):
    (one,) = lines(capsys, root, "--iteration", "2", "--actions")
    assert one["messages"][0]["content"] == "heat a mug\n\na cold mug\n\nAdmissible actions: heat mug, wait"
    assert one["messages"][2]["content"] == "a hot mug"  # lists none


def test_a_success_and_a_failure_of_one_task_are_a_preference(root, capsys):
    (pair,) = lines(capsys, root, "--format", "preference")
    assert pair["prompt"] == chat("heat a mug\n\na cold mug")
    assert [message["content"] for message in pair["chosen"]] == ["heat mug", "a hot mug", "put mug"]
    assert [message["content"] for message in pair["rejected"]] == ["wait", "a cold mug", "?"]
    assert pair["chosen"][0]["role"] == pair["rejected"][0]["role"] == "assistant"
    assert lines(capsys, root, "--format", "preference", "--valid-only") == []
    assert lines(capsys, root, "--format", "preference", "--iteration", "2-3") == []


def test_a_real_run_has_no_value_token_in_it(whole_run, capsys):
    run = open_run(whole_run)
    won = [one.trajectory for i in run.iterations() for one in run.trajectories(i) if one.trajectory.success]
    found = lines(capsys, whole_run)
    assert len(found) == len(won)
    said = [message["content"] for line in found for message in line["messages"] if message["role"] == "assistant"]
    assert said == [turn.response for one in won for turn in one.turns]
    evaluated = [one.trajectory for one in run.evaluation_episodes(4) if one.trajectory.success]
    assert len(lines(capsys, whole_run, "--evaluation", "4")) == len(evaluated)


def test_a_file_is_whole_or_absent(root, tmp_path, capsys):
    target = tmp_path / "data" / "sft.jsonl"
    assert main([str(root), "--output", str(target)]) == 0
    assert len(target.read_text().splitlines()) == 2
    assert main([str(root), "--iteration", "9", "--output", str(tmp_path / "other.jsonl")]) == 2
    assert not (tmp_path / "other.jsonl").exists()
    assert capsys.readouterr().err.endswith("error: iteration 9: not in this run; near are 1, 2, 3\n")


def test_a_run_without_a_model_is_one_line(tmp_path, capsys):
    root = write_made_up_run(tmp_path / "run", {1: [(made_up_trajectory("a", WON, success=True), None)]})
    assert main([str(root)]) == 2
    assert "no value_tokens.json" in capsys.readouterr().err
