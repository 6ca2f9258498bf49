"""Prompts that add to the turns before: their ids, their limit, the rows that come of them, and their numbers."""

from dataclasses import replace

import pytest
import torch

from env_adapters.base import Observation
from runtime.generation import TransformersGenerator
from runtime.microbatches import token_batch
from runtime.model import Policy
from runtime.prompts import PromptRenderer, PromptTooLong, context_ids
from runtime.records import RecordError, Turn, from_json, to_json
from runtime.rollouts import EnvironmentPool, Play, PlaySettings, play
from runtime.rows import plain_rows, rows_of_turns
from runtime.scoring import score_trajectories
from runtime.vocabulary import ValueTokens
from tests.corridor import CorridorAdapter, SpokenCorridorAdapter
from tests.corridor_policy import make_model, make_tokenizer
from tests.tiny_policies import policy
from tests.trajectories import trajectory

TOKENIZER = make_tokenizer()
EOS = TOKENIZER.eos_token_id
CHATML = (
    "{% for m in messages %}{{ 'room ' + m['role'] + ' : ' + m['content'] + '<end> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'room turn : ' }}{% endif %}"
)


ADAPTER = SpokenCorridorAdapter(SpokenCorridorAdapter.Options())


def renderer(prompt_tokens=100, chat_template=False, tokenizer=TOKENIZER, adapter=ADAPTER):
    return PromptRenderer(tokenizer, adapter, 2, prompt_tokens, chat_template, transcript=True)


def see(room):
    return Observation("find the door", f"room {room} of 3")


def spoken(prompt, observation, *response_ids):
    logprobs = (-0.5,) * len(response_ids)
    return Turn(
        observation.text, None, prompt.ids, "", response_ids, logprobs, "right", True, 0.0, 0.0, 0.0,
        continues=prompt.continues,
    )  # fmt: skip


def converse(prompts, count, response=("right", "<end>")):
    """`count` turns, each answered in the same words."""
    ids = TOKENIZER.convert_tokens_to_ids(list(response))
    turns = []
    for number in range(count):
        turns.append(spoken(prompts.next_prompt(see(number % 3), [], turns), see(number % 3), *ids))
    return turns


def text(ids):
    return TOKENIZER.decode(list(ids))


def test_each_turn_adds_its_observation_only():
    turns = converse(renderer(), 3)
    assert [turn.continues for turn in turns] == [False, True, True]
    assert text(turns[0].prompt_ids) == "find the door , turn 0 : room 0 of 3 ?"
    assert [text(turn.prompt_ids) for turn in turns[1:]] == ["; room 1 of 3 ?", "; room 2 of 3 ?"]
    assert (
        text(context_ids(turns[:2])) == "find the door , turn 0 : room 0 of 3 ? right <end> ; room 1 of 3 ? right <end>"
    )


def test_an_adapter_without_follow_ups_repeats_its_prompt_without_history():
    turns = converse(renderer(adapter=CorridorAdapter(CorridorAdapter.Options())), 2)
    assert text(turns[1].prompt_ids) == "find the door , turn 1 : room 1 of 3 ?"


def test_a_response_that_was_cut_gets_its_end_from_the_next_prompt():
    turns = converse(renderer(), 2, response=("right", "right"))
    assert turns[1].prompt_ids[0] == EOS and text(turns[1].prompt_ids[1:]) == "; room 1 of 3 ?"


@pytest.mark.parametrize(("response", "closing"), [(("right", "<end>"), ""), (("right", "right"), "<end> ")])
def test_a_chat_template_closes_the_answer_once(response, closing):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHATML
    prompts = renderer(chat_template=True, tokenizer=tokenizer)
    turns = converse(prompts, 2, response)
    after = text(turns[1].prompt_ids)
    assert (
        after == f"{closing}room <unknown> : ; room 1 of 3 ? <end> room turn :"
    )  # "user" is no word of the corridor's
    # ids are appended, so that the prefix property needs no template: what was sampled stays as it was
    assert context_ids(turns)[: len(context_ids(turns[:1]))] == context_ids(turns[:1])


def test_a_template_that_drops_old_answers_is_refused():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}"
    with pytest.raises(Exception, match="leaves out what the assistant said; set env.prompt_form=history"):
        converse(renderer(chat_template=True, tokenizer=tokenizer), 2)


def test_over_the_limit_the_oldest_turns_go_and_a_new_row_begins():
    # "find the door , turn 0 : room 0 of 3 ?" has 12 tokens, a later turn 6 of prompt and 2 of response
    opening, turn, new = 12, 8, 6
    limit = opening + 2 + 4 * turn + new  # the context of the sixth turn
    turns = converse(renderer(limit), 6)
    assert [one.continues for one in turns] == [False] + [True] * 5
    turns = converse(renderer(limit - 1), 8)
    assert [one.continues for one in turns] == [False] + [True] * 4 + [False] + [True] * 2
    # half of 51 holds the opening and the new observation, and no turn: 12 + 6 + 8 = 26 > 25
    assert text(turns[5].prompt_ids) == "find the door , turn 0 : room 0 of 3 ? ; room 2 of 3 ?"
    wider = converse(renderer(limit + 1), 7)  # 53 // 2 = 26: one turn fits
    assert [one.continues for one in wider] == [False] + [True] * 5 + [False]
    assert text(wider[6].prompt_ids) == (
        "find the door , turn 0 : room 0 of 3 ? ; room 2 of 3 ? right <end> ; room 0 of 3 ?"
    )


def test_an_observation_that_never_fits_is_refused():
    prompts = renderer(17)
    turns = converse(prompts, 1)
    with pytest.raises(PromptTooLong, match="18 tokens without any turn, env.prompt_tokens allows 17"):
        prompts.next_prompt(see(1), [], turns)


def test_rows_join_the_turns_that_continue():
    turns = [
        replace(turn, prompt_ids=prompt, response_ids=response, continues=continues)
        for turn, prompt, response, continues in zip(
            converse(renderer(), 3), ((7, 8), (9,), (5, 5)), ((3, 2), (4,), (6,)), (False, True, False), strict=True
        )
    ]
    one, other = rows_of_turns("a#0", turns)
    assert (one.input_ids, one.spans, one.turn_index) == ((7, 8, 3, 2, 9, 4), ((2, 4), (5, 6)), 0)
    assert (other.input_ids, other.spans, other.turn_index) == ((5, 5, 6), ((2, 3),), 2)


def test_a_first_turn_that_continues_is_refused():
    one = trajectory("a", 2)
    data = to_json(replace(one, turns=(replace(one.turns[0], continues=True), one.turns[1])))
    with pytest.raises(RecordError, match="turn 0 continues a turn before it"):
        from_json(data, "x:1")
    data = to_json(replace(one, turns=(one.turns[0], replace(one.turns[1], continues=True))))
    assert from_json(data, "x:1").turns[1].continues


def test_one_row_says_what_each_turn_says_alone():
    """Log-probs, entropies, V and Q of a row of several turns = those of each turn's own prefix, to rounding."""
    model = policy(temperature=0.7)
    one = trajectory("a", 4)
    joined = replace(one, turns=tuple(replace(t, continues=i > 0) for i, t in enumerate(one.turns)))
    (row,) = plain_rows(joined)
    assert len(row.spans) == 4
    with torch.no_grad():
        whole = model(token_batch([row]))
        alone = []
        for start, end in row.spans:
            alone.append(model(token_batch([replace(row, input_ids=row.input_ids[:end], spans=((start, end),))])))
    for name in whole._fields:
        parts = torch.cat([getattr(part, name) for part in alone])
        torch.testing.assert_close(getattr(whole, name), parts, atol=1e-6, rtol=1e-6)


class Plain(TransformersGenerator):
    """Keeps no rows."""

    def submit(self, request):
        super().submit(replace(request, conversation=None))


@pytest.mark.parametrize("prompt_tokens", [90, 30])  # at 30 rows split
def test_played_transcripts_do_not_depend_on_kept_rows_and_are_scored_as_sampled(prompt_tokens):
    model, tasks = make_model(TOKENIZER), ADAPTER.tasks("train")[:6]
    plus, minus = TOKENIZER.convert_tokens_to_ids(["<plus>", "<minus>"])
    settings = PlaySettings(run_seed=0, seed_name=1, iteration=1, policy="p", max_turns=6)
    played = {}
    for kind in (TransformersGenerator, Plain):
        environments = EnvironmentPool("tests.corridor:SpokenCorridorAdapter", {}, 1, 30.0)
        generator = kind(model, 4, prompt_tokens, 2, 1.0, [plus, minus], [EOS])
        try:
            episodes = play([Play(task) for task in tasks], environments, generator, renderer(prompt_tokens), settings)
            played[kind] = {one.key: one for one in episodes}
        finally:
            environments.close()
        assert not generator.kept
    for key, one in played[TransformersGenerator].items():
        other = played[Plain][key]
        assert [(t.prompt_ids, t.response_ids) for t in one.turns] == [
            (t.prompt_ids, t.response_ids) for t in other.turns
        ]
        assert len(one.turns) == 1 or any(turn.continues for turn in one.turns)
        for number, turn in enumerate(one.turns):
            assert len(context_ids(one.turns[: number + 1])) - len(turn.response_ids) <= prompt_tokens
    trajectories = list(played[TransformersGenerator].values())
    scores = score_trajectories(Policy(model, ValueTokens(plus, minus, 10.0, 1.0, "x"), 1.0), trajectories, 1000, "cpu")
    for one in trajectories:
        sampled = [x for turn in one.turns for x in turn.sampling_logprobs]
        assert scores[one.key].old_logprobs == pytest.approx(sampled, abs=1e-5)
        assert len(scores[one.key].values) == len(one.turns)
    splits = sum(not turn.continues for one in trajectories for turn in one.turns[1:])
    assert (splits > 0) == (prompt_tokens == 30)
