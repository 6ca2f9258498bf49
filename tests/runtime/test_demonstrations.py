"""Real expert processes in the corridor; rows worked by hand."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from env_adapters.base import Observation, Task
from runtime.demonstrations import (
    Demonstration,
    DemonstrationError,
    demonstration_rows,
    interchangeable_ids,
    play_demonstrations,
    read_demonstrations,
    rename_words,
    write_demonstrations,
)
from runtime.prompts import PromptRenderer
from runtime.records import RecordError, Row
from tests.corridor import CorridorAdapter
from tests.corridor_policy import make_tokenizer

TOKENIZER = make_tokenizer()
ADAPTER = CorridorAdapter(CorridorAdapter.Options())


def task(name: str, rooms: int, start: int, **payload) -> Task:
    return Task(name, "warm_start", "x", {"rooms": rooms, "start": start, **payload})


def play(tasks, adapter="CorridorAdapter", max_turns=4, workers=2, timeout_s=30.0, **errors):
    done = []
    records = play_demonstrations(
        f"tests.corridor:{adapter}", {}, tasks, max_turns, workers, timeout_s, lambda: done.append(1), **errors
    )
    assert len(done) == len(tasks)
    return records


def test_the_expert_plays_every_task_in_order():
    tasks = [task("a", 3, 1), task("b", 1, 0), task("c", 9, 0)]
    records = play(tasks)
    assert [record["task_id"] for record in records] == ["a", "b", "c"]
    assert [len(record["turns"]) for record in records] == [2, 1, 4]
    assert [record["success"] for record in records] == [True, True, False]  # nine rooms need nine turns
    assert records[0]["turns"][1] == {
        "observation": "room 2 of 3", "admissible_actions": ["left", "right", "wait"], "action": "right",
        "imitated": True,
    }  # fmt: skip


def test_the_number_of_processes_changes_nothing():
    tasks = [task(f"t{n}", 1 + n % 3, 0) for n in range(7)]
    assert play(tasks, workers=1) == play(tasks, workers=3)


def test_a_demonstrator_errs_at_the_rate_it_is_told():
    """The expert of the corridor always plays `right`; an error is one of three actions, so 2/3 of errors show."""
    tasks = [task(f"t{n}", 40, 0) for n in range(30)]
    records = play(tasks, max_turns=40, error_rate=0.6, seed=7)
    turns = [turn for record in records for turn in record["turns"]]
    wrong = sum(turn["action"] != "right" for turn in turns) / len(turns)
    assert all(turn["action"] == "right" for turn in turns if turn["imitated"])
    assert abs(sum(not turn["imitated"] for turn in turns) / len(turns) - 0.6) < 0.06
    assert abs(wrong - 0.6 * 2 / 3) < 0.06  # 1200 draws: three deviations are 0.042
    assert play(tasks, max_turns=40, workers=1, error_rate=0.6, seed=7) == records
    assert play(tasks, max_turns=40, error_rate=0.6, seed=8) != records


def test_a_fault_costs_one_episode(tmp_path):
    fault = {"fault": "raise", "at": 1, "marker": None}
    records = play([task("a", 1, 0, **fault), task("b", 1, 0, marker=None)], "FaultyCorridorAdapter", workers=1)
    assert "the floor gave way" in records[0]["error"] and records[1]["success"]
    write_demonstrations(tmp_path / "d.jsonl", records)
    assert [one.task_id for one in read_demonstrations(tmp_path / "d.jsonl")] == ["b"]


@pytest.mark.parametrize(("fault", "message"), [("exit", "ended before 1 of 1"), ("hang", "said nothing for 3 s")])
def test_a_lost_process_is_named(fault, message):
    with pytest.raises(DemonstrationError, match=message):
        tasks = [task("a", 1, 0, fault=fault, at=1, marker=None)]
        play(tasks, "FaultyCorridorAdapter", timeout_s=3.0 if fault == "hang" else 30.0)


def test_nothing_won_is_an_error(tmp_path):
    path = tmp_path / "d.jsonl"
    write_demonstrations(path, [{"task_id": "a", "goal": "g", "success": False, "turns": []}])
    with pytest.raises(DemonstrationError, match="of 1 expert episodes none was won; raise env.max_turns"):
        read_demonstrations(path)


def test_a_line_of_another_shape_is_named(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"task_id": "a", "goal": "g", "success": True, "turns": [{"action": "x"}]}) + "\n")
    with pytest.raises(RecordError, match=r"d.jsonl:1: not a demonstration"):
        read_demonstrations(path)


def corridor_demonstration() -> Demonstration:
    texts = ("room 1 of 3", "room 2 of 3")
    observations = tuple(Observation("find the door", text, ("left", "right", "wait")) for text in texts)
    return Demonstration("w/1", "find the door", observations, ("right", "right"), (True, True))


def test_an_error_is_shown_in_the_history_and_not_imitated():
    renderer = PromptRenderer(TOKENIZER, ADAPTER, 2, 96, chat_template=False)
    whole = corridor_demonstration()
    made = demonstration_rows([dataclasses.replace(whole, imitated=(False, True))], renderer, TOKENIZER.eos_token_id, 2)
    assert made.rows == demonstration_rows([whole], renderer, TOKENIZER.eos_token_id, 2).rows[1:]
    assert made.num_too_long == 0


def test_rows_are_what_a_rollout_would_show_and_say():
    renderer = PromptRenderer(TOKENIZER, ADAPTER, 2, 96, chat_template=False)
    made = demonstration_rows([corridor_demonstration()], renderer, TOKENIZER.eos_token_id, 2)
    assert [(row.key, row.turn_index) for row in made.rows] == [("w/1", 0), ("w/1", 1)]
    second = made.rows[1]
    ((start, end),) = second.spans
    prompt = "find the door , turn 1 : room 1 of 3 , right ; room 2 of 3 ?"
    assert TOKENIZER.decode(second.input_ids[:start]) == prompt
    assert second.input_ids[start:] == (*TOKENIZER.encode("right"), TOKENIZER.eos_token_id)  # the end is learned too
    assert end == len(second.input_ids) and made.num_too_long == 0


def test_turns_that_do_not_fit_are_left_out_and_counted():
    tight = PromptRenderer(TOKENIZER, ADAPTER, 2, 5, chat_template=False)
    assert demonstration_rows([corridor_demonstration()], tight, 1, 2).num_too_long == 2
    renderer = PromptRenderer(TOKENIZER, ADAPTER, 2, 96, chat_template=False)
    assert demonstration_rows([corridor_demonstration()], renderer, 1, 1).num_too_long == 2


def test_words_are_renamed_alike_all_over_a_row():
    groups = [np.array([10, 11, 12]), np.array([20, 21])]
    row = Row("a", 3, input_ids=(10, 5, 20, 12, 10, 21, 6), spans=((3, 7),))
    seen = set()
    for epoch in range(40):
        new = rename_words(row, groups, run_seed=0, epoch=epoch).input_ids
        assert new[1] == 5 and new[6] == 6  # not in a group
        assert new[0] == new[4] != new[3] and {new[0], new[3]} < {10, 11, 12}  # one to one within the group
        assert {new[2], new[5]} == {20, 21}
        seen.add(new)
    assert len(seen) == 12  # 3 * 2 images of (10, 12) times 2 of (20, 21)
    again = rename_words(row, groups, run_seed=0, epoch=1)
    assert again == rename_words(row, groups, run_seed=0, epoch=1) and again.spans == row.spans
    assert rename_words(row, [], run_seed=0, epoch=0) == dataclasses.replace(row)


def test_only_words_of_one_token_are_interchangeable():
    (ids,) = interchangeable_ids(TOKENIZER, [["left", "right", "left right"]])
    assert set(ids.tolist()) == {TOKENIZER.convert_tokens_to_ids(word) for word in ("left", "right")}
