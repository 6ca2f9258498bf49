"""Type, attributes, price and the whole score, worked by hand, with a tagger that takes every word for a noun.

score = r_type * (attributes + options + [price <= limit]) / (goal's attributes + goal's options + 1)
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from env_adapters.webshop.goals import NO_LIMIT, Goal, draw_limit, price_of
from env_adapters.webshop.products import Product
from env_adapters.webshop.reward import judge


class EveryWord:
    name = "every word"

    def nouns(self, title):
        return tuple(title.lower().split())


BOUGHT = Product(
    asin="A", title="", category="garden", query="q1", product_category="", description="", bullets=(),
    pricing=(10.0,), options={}, attributes=("DUMMY_ATTR",),
)  # fmt: skip
WANTED = Goal(0, "B", "words", ("soft",), (), 50.0, "", "q2", "x › y", "garden")


def verdict(bought=None, wanted=None, price=10.0, chosen=None, compat="upstream"):
    product, goal = replace(BOUGHT, **(bought or {})), replace(WANTED, **(wanted or {}))
    return judge(product, goal, price, chosen or {}, EveryWord(), compat)


TEN = "a b c d e f g h i j"
TYPE = [
    ("red shirt", "red shirt", "", 1.0, "2/2 = 1 > 0.2"),
    ("shirt", "red shirt", "", 1.0, "1/2 = 0.5 > 0.2"),
    ("red shirt", "shirt", "", 1.0, "1/1: what the bought one has besides does not count"),
    ("a", "a b c d", "", 1.0, "1/4 = 0.25 > 0.2"),
    ("a", "a b c d e", "", 0.5, "1/5 = 0.2 is not above 0.2"),
    ("a", "a b c d e", "query", 1.0, "1/5 = 0.2, but the same query"),
    ("a", "a b c d e", "crumbs", 1.0, "1/5 = 0.2, but two crumbs in common"),
    ("a b", TEN, "", 0.5, "2/10 = 0.2 is not above 0.2"),
    ("a", TEN, "", 0.5, "1/10 = 0.1 is not below 0.1"),
    ("a", TEN, "query", 1.0, "1/10 = 0.1 is not below 0.1, and the same query"),
    ("a", TEN + " k", "", 0.1, "1/11 = 0.09 < 0.1"),
    ("a", TEN + " k", "query", 0.1, "1/11 = 0.09 < 0.1, whatever the query"),
    ("a", TEN + " k", "crumbs", 0.1, "1/11 = 0.09 < 0.1, whatever the crumbs"),
    ("z", "a b c", "", 0.0, "0/3 = 0"),
    ("z", "a b c", "query", 0.0, "0/3 = 0, whatever the query"),
    ("z", "a b c", "crumbs", 0.0, "0/3 = 0, whatever the crumbs"),
    ("z", "", "", 0.5, "no nouns wanted: 0.2, not above 0.2"),
    ("z", "", "query", 1.0, "no nouns wanted: 0.2, the same query"),
    ("", "", "", 0.5, "no nouns at all: 0.2"),
    ("", "a", "query", 0.0, "no nouns bought: 0/1 = 0"),
    ("a a", "a a", "", 1.0, "repeats: |{a}|/2 = 0.5"),
    ("a", "a a a a a", "", 0.5, "repeats: 1/5 = 0.2"),
    ("a", "a " * 11, "query", 0.1, "repeats: 1/11 = 0.09, even for the very product"),
    ("A", "a", "", 1.0, "lower case: 1/1"),
]


@pytest.mark.parametrize(("bought", "wanted", "shelf", "r_type", "arithmetic"), TYPE)
def test_type(bought, wanted, shelf, r_type, arithmetic):
    product = {"title": bought, "product_category": "y › z › x" if shelf == "crumbs" else "z › y"}
    goal = {"title": wanted, "query": "q1" if shelf == "query" else "q2"}
    assert verdict(product, goal).r_type == r_type, arithmetic


@pytest.mark.parametrize(
    ("bought", "wanted", "match", "arithmetic"),
    [
        ("x › y", "x › y", True, "two"),
        ("y › x", "x › y", True, "two, in any order"),
        ("x › y › z", "a › z › x", True, "x and z"),
        ("x › y", "x › z", False, "x alone"),
        ("x › x", "x › x", False, "{x}: a repeat counts once"),
        (" x›y ", "x › y", True, "blanks go"),
        ("", "", False, "the empty crumb alone"),
        ("X › y", "x › y", False, "case counts: y alone"),
    ],
)
def test_crumbs(bought, wanted, match, arithmetic):
    found = verdict({"product_category": bought}, {"product_category": wanted})
    assert found.category_match is match, arithmetic


ATTRIBUTES = [
    ({"attributes": ("soft",)}, ("soft",), 1, "the same"),
    ({"attributes": ("Soft", "warm")}, ("warm", "soft"), 2, "any order and case"),
    ({"attributes": ("machine washable",)}, ("machine wash",), 1, "85.71, rounded 86"),
    ({"attributes": ("hand washable",)}, ("hand wash",), 0, "81.8, and no text has it"),
    ({"attributes": ("very soft",)}, ("soft",), 1, "a part: 100"),
    ({"attributes": ("hard",)}, ("soft",), 0, "LCS 0"),
    ({"attributes": ("soft",)}, ("soft", "soft"), 2, "each wanted one counts"),
    ({}, ("soft",), 0, "DUMMY_ATTR and soft: LCS 1"),
    ({"attributes": ()}, ("soft",), 0, "no attributes, no texts"),
    ({"title": "A Soft Towel"}, ("soft",), 1, "DUMMY_ATTR, but the title has it"),
    ({"title": "Microsoftware"}, ("soft",), 1, "a part of a word in the title is enough"),
    ({"bullets": ("Feels SOFT",)}, ("soft",), 1, "a bullet has it"),
    ({"bullets": ("machine", "Wash")}, ("machine wash",), 1, "bullets are joined by a blank"),
    ({"description": "soft as wool"}, ("soft",), 1, "the description has it"),
    ({"title": "machine", "description": "wash"}, ("machine wash",), 0, "title and description are not joined"),
    ({"title": "soft"}, ("Soft",), 0, "texts are lower-cased, the wanted word is not; DUMMY_ATTR is no match"),
    ({"title": "wash by machine"}, ("machine wash",), 0, "texts are searched for the words as they stand"),
    ({"attributes": ("soft",), "title": "warm"}, ("soft", "warm", "light"), 2, "one known, one in the title, one not"),
    ({"title": "日本"}, ("日本",), 1, "fuzzy 0, but the title has it"),
]


@pytest.mark.parametrize(("bought", "wanted", "count", "arithmetic"), ATTRIBUTES)
def test_attributes(bought, wanted, count, arithmetic):
    found = verdict(bought, {"attributes": wanted})
    assert (found.attributes, found.num_attributes) == (count, len(wanted)), arithmetic


@pytest.mark.parametrize(
    ("price", "limit", "met"),
    [
        (10.0, 50.0, True), (49.99, 50.0, True), (50.0, 50.0, True), (50.01, 50.0, False), (0.0, 10.0, True),
        (999_999.0, NO_LIMIT, True), (1_000_000.0, NO_LIMIT, True), (1_000_000.01, NO_LIMIT, False),
    ],
)  # fmt: skip
def test_price(price, limit, met):
    assert verdict(wanted={"price_upper": limit}, price=price).price is met


SOFT = {"attributes": ("soft", "warm"), "title": "towel"}
TOWEL = {"title": "towel"}
WHOLE = [
    (SOFT, {**TOWEL, "attributes": ("soft",)}, {}, 10.0, 1.0, "1 * (1+0+1)/(1+0+1) = 1"),
    (SOFT, {**TOWEL, "attributes": ("soft", "light")}, {}, 10.0, 2 / 3, "1 * (1+0+1)/(2+0+1)"),
    (SOFT, {**TOWEL, "attributes": ("light",)}, {}, 60.0, 0.0, "1 * (0+0+0)/(1+0+1)"),
    (SOFT, {**TOWEL, "attributes": ("soft",)}, {}, 60.0, 0.5, "1 * (1+0+0)/(1+0+1): too dear"),
    (SOFT, {**TOWEL, "options": ("red",)}, {"color": "red"}, 10.0, 1.0, "1 * (1+1+1)/(1+1+1) = 1"),
    (SOFT, {**TOWEL, "options": ("red",)}, {"color": "blue"}, 10.0, 2 / 3, "1 * (1+0+1)/(1+1+1)"),
    (SOFT, {**TOWEL, "options": ("red",)}, {}, 10.0, 2 / 3, "1 * (1+0+1)/(1+1+1): nothing chosen"),
    (SOFT, {**TOWEL, "options": ("red", "xl")}, {"color": "red"}, 60.0, 0.5, "1 * (1+1+0)/(1+2+1)"),
    (SOFT, {**TOWEL, "options": {"color": "red"}}, {"color": "red"}, 10.0, 1.0, "a pair: 1 * (1+1+1)/(1+1+1) = 1"),
    (SOFT, {**TOWEL, "options": {"kind": "bluetooth"}}, {"kind": "bluetooth"}, 10.0, 2 / 3, "a pair: (1+0+1)/(1+1+1)"),
    (SOFT, {"title": "rug"}, {}, 10.0, 0.0, "0 * 1: no noun in common"),
    (SOFT, {"title": ""}, {}, 10.0, 0.5, "no nouns, another shelf: 0.5 * (1+0+1)/(1+0+1)"),
    (SOFT, {"title": "", "query": "q1"}, {}, 60.0, 0.5, "no nouns, the same query: 1 * (1+0+0)/(1+0+1)"),
    (SOFT, {"title": "towel a b c d"}, {}, 10.0, 0.5, "1/5 nouns, another shelf: 0.5 * 1"),
    ({**SOFT, "title": "a"}, {"title": TEN + " k", "query": "q1"}, {}, 10.0, 0.1, "1/11 nouns: 0.1 * 1"),
    (SOFT, {**TOWEL, "attributes": ("soft", "warm", "new", "old")}, {}, 60.0, 0.4, "1 * (2+0+0)/(4+0+1)"),
]


@pytest.mark.parametrize(("bought", "wanted", "chosen", "price", "score", "arithmetic"), WHOLE)
def test_whole_scores(bought, wanted, chosen, price, score, arithmetic):
    assert verdict(bought, wanted, price, chosen).score == pytest.approx(score, abs=1e-12), arithmetic


def test_a_full_score_is_exactly_one():
    for attributes in range(1, 12):
        for options in range(12):
            many = tuple(f"value{chr(97 + i) * 4}" for i in range(options))
            found = verdict(
                {"attributes": ("soft",), "title": "towel"},
                {"attributes": ("soft",) * attributes, "options": many, "title": "towel"},
                chosen={str(i): value for i, value in enumerate(many)},
            )
            assert found.score == 1.0


def test_strict_mends_pairs_and_nothing_else():
    goal = {**TOWEL, "options": {"kind": "bluetooth"}}
    assert verdict(SOFT, goal, chosen={"kind": "bluetooth"}, compat="strict").score == 1.0
    for bought, wanted, chosen, price, score, _ in WHOLE:
        if not isinstance(wanted.get("options"), dict):
            assert verdict(bought, wanted, price, chosen, "strict").score == pytest.approx(score)


# ---------------------------------------------------------------------------------------------------------- limits
@pytest.mark.parametrize(
    ("price", "limits"),
    [
        (0.0, {20.0, 30.0, 40.0}),  # of 10 20 30 40 two are drawn, the larger counts: never the smallest
        (9.99, {20.0, 30.0, 40.0}),
        (10.0, {30.0, 40.0, 50.0}),  # a step must be above the price
        (10.01, {30.0, 40.0, 50.0}),
        (959.0, {970.0, 980.0, 990.0}),  # of 960 970 980 990
        (970.0, {990.0}),  # of 980 990: both are drawn
        (979.99, {990.0}),
        (980.0, {NO_LIMIT}),  # of 990 alone no two can be drawn
        (5000.0, {NO_LIMIT}),
    ],
)
def test_limits_that_can_be_drawn(price, limits):
    rng = random.Random(0)
    drawn = [draw_limit(price, rng) for _ in range(300)]
    assert {limit for limit, _ in drawn} == limits
    for limit, words in drawn:
        assert words == ("" if limit == NO_LIMIT else f", and price lower than {int(limit)}.00 dollars")


def test_larger_of_two_has_its_frequencies():
    """Of four steps two are drawn, 6 pairs: the larger is the second in 1, the third in 2, the fourth in 3 of them."""
    rng = random.Random(1)
    drawn = [draw_limit(0.0, rng)[0] for _ in range(6000)]
    for limit, expected in ((20.0, 1000), (30.0, 2000), (40.0, 3000)):
        assert abs(drawn.count(limit) - expected) < 150


def test_the_price_of_a_range_is_drawn_once_for_the_product():
    product = replace(BOUGHT, pricing=(10.0, 20.0))
    assert price_of(BOUGHT, 0) == 10.0
    assert 10.0 <= price_of(product, 0) <= 20.0 and price_of(product, 0) == price_of(product, 0)
    assert len({price_of(replace(product, asin=str(i)), seed) for i in range(20) for seed in range(2)}) == 40
