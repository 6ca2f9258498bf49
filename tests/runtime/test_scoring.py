from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runtime.microbatches import token_batch
from runtime.records import RecordError
from runtime.rows import plain_rows
from runtime.scoring import (
    check_ids,
    deal_trajectories,
    read_scores,
    score_trajectories,
    scores_path,
    value_token_probability,
    write_scores,
)
from tests.tiny_policies import NEGATIVE, POSITIVE, VOCABULARY, policy
from tests.trajectories import trajectory


@pytest.mark.parametrize("token_budget", [1, 60, 10_000])
def test_scores_are_those_of_each_turn_alone(token_budget):
    model = policy(temperature=0.6, value_temperature=6.0)
    trajectories = [trajectory("a", 3), trajectory("b", 1), trajectory("c", 5)]
    done = []
    scores = score_trajectories(model, trajectories, token_budget, "cpu", done.append)
    assert sum(done) == 9 and list(scores) == ["a#0", "b#0", "c#0"]
    for one in trajectories:
        logprobs, entropies, values, q_values = [], [], [], []
        for row in plain_rows(one):
            with torch.no_grad():
                output = model(token_batch([row]))
            logprobs += output.logprobs.tolist()
            entropies += output.entropies.tolist()
            values.append(10.0 * min(max(output.value_margins.item() / 6.0, -1.0), 1.0))  # V = r_max clip(m / tau_v)
            q_values.append(10.0 * min(max(output.q_margins.item() / 6.0, -1.0), 1.0))
        assert scores[one.key].old_logprobs == pytest.approx(logprobs, abs=5e-6)
        assert scores[one.key].entropies == pytest.approx(entropies, abs=5e-6)
        assert scores[one.key].values == pytest.approx(values, abs=1e-5)
        assert scores[one.key].q_values == pytest.approx(q_values, abs=1e-5)
        assert scores[one.key].ref_logprobs is None


def test_scores_survive_the_file(tmp_path):
    model = policy()
    trajectories = [trajectory("a", 3), trajectory("b", 1), trajectory("c", 5)]
    scores = score_trajectories(model, trajectories, 100, "cpu")
    write_scores(scores_path(tmp_path, 0), [scores["b#0"], scores["a#0"]])
    write_scores(scores_path(tmp_path, 1), [scores["c#0"]])
    write_scores(scores_path(tmp_path, 2), [])
    assert read_scores(tmp_path) == scores


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_damaged_scores_are_named(tmp_path, kept):
    scores = score_trajectories(policy(), [trajectory("a", 3)], 100, "cpu")
    path = scores_path(tmp_path, 0)
    write_scores(path, list(scores.values()))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(RecordError, match="scores-00000.safetensors"):
        read_scores(tmp_path)


def test_dealing_is_even_complete_and_deterministic():
    trajectories = [trajectory(f"task-{index}", 1 + index % 7) for index in range(40)]
    cost = lambda hand: sum(len(t.prompt_ids) + len(t.response_ids) for one in hand for t in one.turns)  # noqa: E731
    hands = deal_trajectories(trajectories, 3)
    assert sorted(one.key for hand in hands for one in hand) == sorted(one.key for one in trajectories)
    assert max(map(cost, hands)) - min(map(cost, hands)) <= max(cost([one]) for one in trajectories)
    assert deal_trajectories(trajectories[::-1], 3) == hands
    assert [len(hand) for hand in deal_trajectories(trajectories[:2], 3)] == [1, 1, 0]


def test_dealing_goes_by_tokens():
    def of(task_id, num_tokens):
        one = trajectory(task_id, 1)
        ids = {"prompt_ids": (3,) * (num_tokens - 1), "response_ids": (4,), "sampling_logprobs": (-0.1,)}
        return replace(one, turns=(replace(one.turns[0], **ids),))

    # 10 | 4, then 4 + 3, 7 + 2: the long one stays alone
    hands = deal_trajectories([of("a", 3), of("b", 10), of("c", 2), of("d", 4)], 2)
    assert [[one.task_id for one in hand] for hand in hands] == [["b"], ["d", "a", "c"]]


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        ({"response_ids": (4, POSITIVE)}, "value token 35"),
        ({"prompt_ids": (NEGATIVE,)}, "value token 36"),
        ({"response_ids": (VOCABULARY,)}, "id 37"),
    ],
)
def test_ids_that_cannot_be_are_refused(ids, match):
    good = trajectory("a", 2)
    check_ids([good], (POSITIVE, NEGATIVE), VOCABULARY, Path("rollouts"))
    bad = replace(good, turns=(good.turns[0], replace(good.turns[1], **ids)))
    with pytest.raises(RecordError, match=f"^rollouts: trajectory a#0 turn 1: .*{match}.*; delete the folder"):
        check_ids([bad], (POSITIVE, NEGATIVE), VOCABULARY, Path("rollouts"))


class Asked:
    """In the place of a policy: notes how many turns it is asked about."""

    def value_token_probability(self, batch):
        self.turns = len(batch.turn_start)
        return 0.0


@pytest.mark.parametrize(("continues", "num_turns", "probed"), [(False, 10, 16), (True, 7, 14), (True, 20, 20)])
def test_the_probability_of_the_value_tokens_is_measured_at_few_turns(continues, num_turns, probed):
    """16 turns at most: of single turns 16 rows, of transcripts of 7 turns two, of one of 20 that one."""
    three = [trajectory(name, num_turns) for name in "abc"]
    three = [
        replace(one, turns=(one.turns[0], *(replace(turn, continues=continues) for turn in one.turns[1:])))
        for one in three
    ]
    asked = Asked()
    value_token_probability(asked, three, 10_000, "cpu")
    assert asked.turns == probed


def test_the_probability_of_the_value_tokens_is_measured():
    """0 by Eq. 3; where the head is asked for other ids, the same code gives their real probability."""
    model, trajectories = policy(temperature=0.6), [trajectory("a", 3), trajectory("b", 1)]
    assert value_token_probability(model, trajectories, 1000, "cpu") == 0.0
    assert value_token_probability(model, [], 1000, "cpu") == 0.0
    rows = [row for one in trajectories for row in plain_rows(one)]
    batch = token_batch(rows)
    with torch.no_grad():
        logits = model.causal_lm(input_ids=batch.input_ids).logits[:, :-1][batch.response_mask[:, 1:]]
        predicting, boundaries = model.hidden_states(batch)
        asked = model._read(predicting, boundaries, torch.full((len(predicting),), 7)).logprobs
    kept = (logits / 0.6).index_fill(1, torch.tensor([POSITIVE, NEGATIVE]), float("-inf")).softmax(1)
    assert asked.exp().tolist() == pytest.approx(kept[:, 7].tolist(), rel=1e-4)
