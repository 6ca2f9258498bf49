import pytest

from env_adapters.base import Observation, PastTurn
from runtime.prompts import PromptRenderer, PromptTooLong, TemplateError
from tests.corridor import CorridorAdapter
from tests.corridor_policy import make_tokenizer

TOKENIZER = make_tokenizer()
ADAPTER = CorridorAdapter(CorridorAdapter.Options())
NOW = Observation("find the door", "room 2 of 3", ("left", "right"))
PAST = [PastTurn("room 0 of 3", "right"), PastTurn("room 1 of 3", "wait"), PastTurn("room 1 of 3", "right")]


def renderer(prompt_tokens=100, history_length=2, chat_template=False, tokenizer=TOKENIZER):
    return PromptRenderer(tokenizer, ADAPTER, history_length, prompt_tokens, chat_template)


def text(ids):
    return TOKENIZER.decode(list(ids))


def test_golden_ids_of_a_plain_prompt():
    # specials 0-4; then find=5 the=6 door=7 ,=8 turn=9 :=10 ;=11 ?=12 room=13 of=14, and the numbers -1=15, 0=16, ...
    ids = renderer(history_length=1).render(NOW, PAST, 3)
    right = TOKENIZER.convert_tokens_to_ids("right")
    assert ids == (5, 6, 7, 8, 9, 19, 10, 13, 17, 14, 19, 8, right, 11, 13, 18, 14, 19, 12)
    assert text(ids) == "find the door , turn 3 : room 1 of 3 , right ; room 2 of 3 ?"


def test_golden_ids_of_a_chat_prompt():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ 'turn ' + m['role'] + ' : ' + m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}{{ ' ? the' }}{% endif %}"
    )
    plain = renderer(history_length=0).render(NOW, PAST, 3)
    ids = renderer(history_length=0, chat_template=True, tokenizer=tokenizer).render(NOW, PAST, 3)
    assert ids == (9, 2, 10, *plain, 12, 6)  # "turn", "user" which is unknown, ":"; the end of the template


def test_only_the_last_turns_are_shown_oldest_first():
    assert text(renderer(history_length=2).render(NOW, PAST, 3)) == (
        "find the door , turn 3 : room 1 of 3 , wait ; room 1 of 3 , right ; room 2 of 3 ?"
    )
    assert text(renderer(history_length=0).render(NOW, PAST, 3)) == "find the door , turn 3 : room 2 of 3 ?"
    assert len(PAST) == 3  # the caller's list is left alone


def test_the_oldest_history_goes_first_at_the_limit_and_one_above():
    # 7 words before the history, 7 a past turn, 5 after it: 12, 19, 26 tokens
    for limit, turns_shown in [(26, 2), (25, 1), (19, 1), (18, 0), (12, 0)]:
        ids = renderer(prompt_tokens=limit).render(NOW, PAST, 3)
        assert len(ids) == 12 + 7 * turns_shown
        assert text(ids).startswith("find the door") and text(ids).endswith("room 2 of 3 ?")
        assert ("wait" in text(ids)) == (turns_shown == 2)
        assert ("right" in text(ids)) == (turns_shown >= 1)


def test_too_long_without_history_says_what_to_raise():
    with pytest.raises(PromptTooLong, match=r"'find the door'.*12 tokens.*allows 11.*raise it to 12"):
        renderer(prompt_tokens=11).render(NOW, PAST, 3)


def test_a_template_that_cannot_render_is_one_clear_error():
    missing, broken = make_tokenizer(), make_tokenizer()
    broken.chat_template = "{{ raise_exception('system message needed') }}"
    for tokenizer in (missing, broken):
        with pytest.raises(TemplateError, match="model.chat_template=false"):
            renderer(chat_template=True, tokenizer=tokenizer).render(NOW, [], 0)


def test_a_template_that_shows_no_message_is_refused_before_the_first_prompt():
    silent, empty = make_tokenizer(), make_tokenizer()
    silent.chat_template, empty.chat_template = "find the door", "{{ '' }}"
    for tokenizer in (silent, empty):
        with pytest.raises(TemplateError, match="leaves the user's message out; set model.chat_template=false"):
            renderer(chat_template=True, tokenizer=tokenizer).check_template()
    renderer(chat_template=False, tokenizer=silent).check_template()
    with pytest.raises(TemplateError, match=r"prompt 'find the door.*has no tokens; look at the adapter's prompt\(\)"):
        renderer(chat_template=True, tokenizer=empty).render(NOW, [], 0)
