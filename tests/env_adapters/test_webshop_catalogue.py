"""The generated catalogue: its size and variety, its near-duplicates, and an oracle that fulfils every wish."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from env_adapters.webshop.catalogue import generate
from env_adapters.webshop.instructions import price_limit, wanted_words
from env_adapters.webshop.reward import COLOURS, reduce_colour, same
from env_adapters.webshop.shop import Session
from env_adapters.webshop.wares import WARES


@pytest.fixture(scope="module")
def products():
    return list(generate("full", 1000, 6, 0))


def test_the_default_catalogue_is_varied(products):
    assert len({product.category for product in products}) == 5
    assert len({product.query for product in products}) >= 60
    assert len({attribute for product in products for attribute in product.attributes}) >= 300
    assert len({product.asin for product in products}) == 1000
    assert 0.55 <= sum(not product.options for product in products) / 1000 <= 0.65
    assert all(1 <= len(p.asin) <= 10 and p.pricing[0] > 0 and p.human_instructions for p in products)
    assert any(len(product.pricing) == 2 for product in products)


def test_instructions_are_worded_in_many_ways(products):
    """The frame of an instruction is what is left without the things that are wanted."""
    frames = Counter()
    for product in products:
        for wish in product.human_instructions:
            frame = wish.text
            for thing in (*wish.attributes, product.query, *wish.options, *product.options):
                frame = frame.replace(thing, "_")
            frames[frame] += 1
    assert len(frames) >= 300 and max(frames.values()) / sum(frames.values()) < 0.05
    texts = [wish.text for product in products for wish in product.human_instructions]
    assert len(texts) == 6000 and len(set(texts)) > 5900


def test_what_a_wish_names_is_in_its_text(products):
    for product in products:
        for wish in product.human_instructions:
            assert product.query in wish.text
            assert all(attribute in wish.text and attribute in product.attributes for attribute in wish.attributes)
            assert len(wish.options) == len(product.options)
            for value, values in zip(wish.options, product.options.values(), strict=True):
                assert value in wish.text and value in values


def test_near_duplicates_differ_in_one_attribute_or_in_the_price(products):
    by_attribute = by_price = 0
    for one, other in itertools.pairwise(products):
        if (one.query, one.options) != (other.query, other.options):
            continue
        differing = sum(a != b for a, b in zip(one.attributes, other.attributes, strict=False))
        same_length = len(one.attributes) == len(other.attributes)
        by_attribute += same_length and differing == 1 and one.pricing == other.pricing
        by_price += same_length and differing == 0 and one.pricing != other.pricing
    assert by_attribute >= 100 and by_price >= 100


def test_a_larger_catalogue_begins_with_the_smaller_one(products):
    assert list(generate("full", 40, 6, 0)) == products[:40]
    assert list(generate("full", 40, 6, 1)) != products[:40]


@pytest.mark.parametrize(("kind", "count"), [("full", 20_000), ("tiny", 20_000)])
def test_ids_stay_different(kind, count):
    from env_adapters.webshop import catalogue

    make = catalogue._word_id if kind == "tiny" else catalogue._code_id
    ids = {make(number) for number in (*range(count), *range(343_000 - 5, 343_000 + 5), *range(686_000, 686_005))}
    assert len(ids) == count + 15
    assert all(len(one) <= 10 and one == one.upper() for one in ids)


@pytest.mark.parametrize("kind", ["full", "tiny"])
def test_wares_keep_their_rules(kind):
    for department in WARES[kind].departments:
        for one, other in itertools.combinations(department.attributes, 2):
            assert not same(one, other), (one, other)
        values = [(name, value) for name, values in department.options.items() for value in values]
        for (_, one), (_, other) in itertools.combinations(values, 2):
            assert not same(str(reduce_colour(one)), str(reduce_colour(other))), (one, other)
        for name, value in values:
            held = [colour for colour in COLOURS if colour in value]
            assert held == ([value] if name == "color" else []), (name, value, held)


@pytest.mark.parametrize("options", [{}, {"catalogue": "tiny", "products": 200, "instructions": 30, "page_size": 5}])
def test_an_oracle_reaches_score_one_on_every_human_goal(shop_adapter, options):
    """It knows the product and the options, and finds them with the actions that everybody has."""
    shop = shop_adapter(**options)._load()
    for position in range(len(shop.goals)):
        goal = shop.goals.goal(position)
        session, product = Session(shop, goal), shop.product(shop.store.index_of(goal.asin))
        session.act(f"search[{product.title}]")
        while product.asin not in {one.asin for one in session.page.results}:
            assert session.page.results, f"goal {position}: {goal.asin} is not among the results"
            session.act("click[next >]")
        for action in (product.asin, *goal.options, "buy now"):
            assert session.act(f"click[{action}]"), (position, action)
        assert session.verdict.score == 1.0, (position, session.verdict)


def test_words_that_matter():
    text = "i'm shopping for a dust proof, wireless speaker in navy, and price lower than 40.00 dollars"
    assert wanted_words(text) == ["dust", "proof", "wireless", "speaker", "navy"]
    assert price_limit(text) == 40.0
    assert price_limit("a speaker") is None and wanted_words("") == []
