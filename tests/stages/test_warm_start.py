from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace

import pytest

from pipeline.config import Config, EnvConfig, ModelConfig
from runtime.demonstrations import DemonstrationError, write_demonstrations
from stages.warm_start import batch_at, cosine, num_steps, read_split
from tests.corridor import CorridorAdapter
from tests.corridor_policy import make_tokenizer


def test_number_of_steps_worked_by_hand():
    assert num_steps(100, 30, 1.5) == 5  # 150 / 30
    assert num_steps(100, 30, 0.5) == 2  # 50 / 30 = 1.67
    assert num_steps(3, 256, 0.1) == 1


def test_batches_pass_over_all_turns_before_any_comes_again():
    batches = [batch_at(step, 10, 4, run_seed=3) for step in range(5)]  # 20 places: two passes over 10 turns
    places = [place for batch in batches for place in batch]
    assert Counter(places) == Counter((epoch, turn) for epoch in range(2) for turn in range(10))
    assert [epoch for epoch, _ in places] == [0] * 10 + [1] * 10
    assert [turn for _, turn in places[:10]] != [turn for _, turn in places[10:]]
    assert batches != [batch_at(step, 10, 4, run_seed=4) for step in range(5)]


def test_a_batch_larger_than_a_pass():
    assert Counter(turn for _, turn in batch_at(0, 3, 7, 0)).total() == 7


def test_cosine_worked_by_hand():
    # 5 steps: cos 0 = 1, cos pi/4, cos pi/2 = 0 -> 0.1 + 0.45 = 0.55, ..., cos pi = -1 -> 0.1
    found = [cosine(step, 5) for step in range(5)]
    quarter = 0.1 + 0.45 * (1 + math.sqrt(0.5))
    assert found == pytest.approx([1.0, quarter, 0.55, 1.1 - quarter, 0.1], rel=1e-12)
    assert cosine(0, 1) == 1.0


def test_demonstrations_of_which_no_turn_fits_are_refused(tmp_path):
    path = tmp_path / "demonstrations.jsonl"
    turn = {"observation": "room 0 of 1", "admissible_actions": ["right"], "action": "right", "imitated": True}
    write_demonstrations(path, [{"task_id": "a", "goal": "find the door", "success": True, "turns": [turn]}])
    adapter = CorridorAdapter(CorridorAdapter.Options())

    def split(prompt_tokens):
        config = Config(model=ModelConfig(chat_template=False), env=EnvConfig(prompt_tokens=prompt_tokens))
        return read_split(SimpleNamespace(config=config, adapter=adapter), make_tokenizer(), path)

    assert len(split(12)[0].train) == 1  # find the door , turn 0 : room 0 of 1 ?
    with pytest.raises(DemonstrationError, match="none of 1 turns fits env.prompt_tokens = 11 and .*; raise them"):
        split(11)
