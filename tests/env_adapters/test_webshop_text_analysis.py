"""Words and terms, against Lucene's own."""

import json
from pathlib import Path

import pytest

from env_adapters.webshop.text_analysis import MAX_WORD, STOP_WORDS, analyze, words

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "webshop_lucene.json").read_text())


@pytest.mark.parametrize("text, expected", GOLDEN["terms"], ids=range(len(GOLDEN["terms"])))
def test_terms_are_lucenes(text, expected):
    assert analyze(text) == expected


@pytest.mark.parametrize("text, expected", GOLDEN["terms"], ids=range(len(GOLDEN["terms"])))
def test_plain_text_needs_no_table_of_unicode(text, expected):
    """The pattern for ASCII and the one for any text agree: an accent elsewhere does not change how words are cut."""
    if text.isascii():
        assert words(f"{text} é") == [*words(text), "é"]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("The women's Running-Shoes, 2.5in", ["women", "run", "shoe", "2.5in"]),
        ("relational conditional", ["relat", "condit"]),
        ("possibly technology", ["possibl", "technolog"]),  # Porter's own departures from his paper: bli, logi
        ("as is as", []),
        ("1,000 3.5 a.b a:b 1:2", ["1,000", "3.5", "a.b", "a:b", "1", "2"]),
        ("x_large __ _", ["x_larg"]),
        ("™ ★ ☆ → §", ["™", "★"]),
    ],
)
def test_by_hand(text, expected):
    assert analyze(text) == expected


def test_an_overlong_word_is_cut():
    assert [len(word) for word in words("a" * 600)] == [MAX_WORD, MAX_WORD, 90]
    assert words("") == [] and len(STOP_WORDS) == 33
