import pytest

from env_adapters.responses import format_response, parse_response


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think>x</think><action>go to shelf 1</action>", "go to shelf 1"),
        ("<THINK>x</THINK>\n<Action> Go To  Shelf 1\n</ACTION>", "go to shelf 1"),
        ("<think></think><action>look</action><action>inventory</action>", "look"),
        ("<think></think><action>look</action> and then <action> more", "look"),
        ("<action>look</action><think></think>", "look"),
        ("</action><think></think><action>look</action>", "look"),
        ("<think></think><action><action>look</action>", "<action>look"),
    ],
)
def test_first_action_is_taken_and_the_rest_ignored(text, action):
    parsed = parse_response(text)
    assert (parsed.action, parsed.valid) == (action, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "go to shelf 1",
        "<action>look</action>",  # no think tags
        "<think><action>look</action>",  # think never closed
        "</think><action>look</action>",  # never opened
        "<think></think><action>look",
        "<think></think>look</action>",
        "<think></think><action></action>",
        "<think></think><action> \n </action>",
        "<think></think>< action>look</ action>",
        "<think></think><action>lo\x00ok</action>",
        "<think></think><action>" + "x" * 301 + "</action>",
        "\ud800<action>\udfff</action>",
        "<action>" * 50_000,
    ],
)
def test_ill_formed_responses_have_no_action(text):
    parsed = parse_response(text)
    assert (parsed.action, parsed.valid) == ("", False)


def test_letters_that_grow_when_lowered_do_not_shift_the_action():
    # 'İ'.lower() has two code points: cutting the original by the folded text's positions would be off by 50.
    text = "İ" * 50 + "<think></think><action>Look</action>"
    assert parse_response(text, lower=False).action in ("Look", "look")
    assert parse_response(text).action == "look"


def test_case_kept_where_asked():
    assert parse_response("<think></think><action>search[Red Mug]</action>", lower=False).action == "search[Red Mug]"


def test_round_trip():
    assert format_response("go to shelf 1") == "<think></think><action>go to shelf 1</action>"
    assert parse_response(format_response("go to shelf 1", "where?")).action == "go to shelf 1"
