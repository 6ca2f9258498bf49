"""The reward's rules, each case worked by hand: fuzzy equality, colours, options.

Fuzzy equality, by hand: lower case, ASCII letters and digits, words as sets. With s the common words (sorted, joined
by blanks, length |s|), a and b what only one side has: one side without rest -> 100. Else the largest of
    100 * (1 - (|a| + |b| - 2 * LCS(a, b)) / (|s a| + |s b|))       where |s a| = |s| + 1 + |a| (or |a| without s)
    100 * 2 |s| / (2 |s| + 1 + |a|)  and the same with b
rounded, and equal where that is above 85.
"""

from __future__ import annotations

import pytest

from env_adapters.webshop.goals import Goal
from env_adapters.webshop.reward import COLOURS, options_matched, reduce_colour, same, wanted_options


@pytest.mark.parametrize(
    ("one", "other", "equal", "arithmetic"),
    [
        ("cotton", "cotton", True, "the same words: 100"),
        ("COTTON", "cotton", True, "lower case: 100"),
        ("non-slip", "non slip", True, "a hyphen is a blank: 100"),
        ("  cotton ", "cotton", True, "blanks go: 100"),
        ("wash machine", "machine wash", True, "words are a set: 100"),
        ("big big box", "big box", True, "repeats count once: 100"),
        ("cotton", "organic cotton", True, "nothing is left of one side: 100"),
        ("large", "x-large", True, "x large holds large: 100"),
        ("small", "small (pack of 2)", True, "one side is a part: 100"),
        ("", "", False, "nothing is 0"),
        ("cotton", "", False, "nothing is 0"),
        ("!!!", "!!!", False, "nothing is left of it: 0"),
        ("日本", "日本", False, "no ASCII: nothing is left: 0"),
        ("café", "caf", True, "é goes: caf = caf: 100"),
        ("gray", "grey", False, "LCS gry 3: 2*3/8 = 75"),
        ("wool", "wood", False, "LCS woo 3: 2*3/8 = 75"),
        ("color", "colour", True, "LCS color 5: 2*5/11 = 90.9"),
        ("fiber", "fibre", False, "LCS fibe 4: 2*4/10 = 80"),
        ("cotton", "cottons", True, "LCS 6: 2*6/13 = 92.3"),
        ("waterproof", "waterprof", True, "LCS 9: 2*9/19 = 94.7"),
        ("striped", "stripes", True, "LCS 6: 2*6/14 = 85.71, rounded 86"),
        ("striper", "stripped", False, "LCS stripe 6: 2*6/15 = 80"),
        ("a" * 17 + "bbb", "a" * 17 + "ccc", False, "LCS 17: 2*17/40 = 85: not above 85"),
        ("a" * 53 + "b" * 9, "a" * 53 + "c" * 9, False, "LCS 53: 2*53/124 = 85.48, rounded 85"),
        ("a" * 59 + "b" * 10, "a" * 59 + "c" * 10, True, "LCS 59: 2*59/138 = 85.51, rounded 86"),
        ("t-shirt", "tshirt", False, "'shirt t' (7) and 'tshirt' (6), LCS shirt 5: 2*5/13 = 76.9"),
        ("6 ounce", "16 ounce", True, "s ounce 5, a 6, b 16: 1 - (1+2-2)/(7+8) = 93.3"),
        ("pack of 2", "pack of 4", True, "s 'of pack' 7, a 2, b 4: 1 - 2/(9+9) = 88.9"),
        ("twin pack", "six pack", False, "s pack 4, LCS(twin, six) 1: 1 - (4+3-2)/(9+8) = 70.6; 8/12 = 66.7"),
        ("us plug", "eu plug", True, "s plug 4, LCS(us, eu) 1: 1 - (2+2-2)/(7+7) = 85.71, rounded 86"),
        ("us plug", "jp plug", False, "s plug 4, LCS 0: 1 - 4/14 = 71.4; 8/11 = 72.7"),
        ("gluten free", "nut free", False, "s free 4, LCS(gluten, nut) ut 2: 1 - (6+3-4)/(11+8) = 73.7"),
        ("machine wash", "machine washable", True, "s machine 7, LCS 4: 1 - (4+8-8)/(12+16) = 85.71, rounded 86"),
        ("hand wash", "hand washable", False, "s hand 4, LCS 4: 1 - 4/(9+13) = 81.8"),
        ("easy clean", "easy to clean", True, "easy clean is a part of the other: 100"),
        ("long sleeve", "short sleeve", False, "s sleeve 6, LCS(long, short) o 1: 1 - (4+5-2)/(11+12) = 69.6; 12/17"),
        ("queen size", "queen", True, "a part: 100"),
        ("8 x 10", "8 x 12", False, "s '8 x' 3, LCS(10, 12) 1: 1 - (2+2-2)/(6+6) = 83.3"),
    ],
)
def test_fuzzy_equality(one, other, equal, arithmetic):
    assert same(one, other) is equal, arithmetic
    assert same(other, one) is equal, arithmetic


@pytest.mark.parametrize(
    ("option", "colour", "arithmetic"),
    [
        ("red", "red", "a colour is itself"),
        ("navy blue", "blue", "blue stands before navy in the list"),
        ("dark red", "dark", "dark stands before red"),
        ("light grey", "grey", "grey stands before light"),
        ("bluetooth", "blue", "a part of a word counts"),
        ("standard", "tan", "s-tan-dard; no earlier word is in it"),
        ("assorted", "assorted", "none: ted is not red"),
        ("shredded", "red", "sh-red-ded"),
        ("washed denim", "ash", "w-ash-ed: ash stands before denim"),
        ("stonewash", "ash", "stonew-ash: ash stands before stone"),
        ("rose gold", "gold", "gold stands before rose"),
        ("graphite", "graphite", "grape is not in it; graphite is"),
        ("grapefruit", "grape", "grape-fruit"),
        ("xx-large", "xx-large", "none"),
        ("RED", "RED", "case counts: no lower-case red in it"),
        ("", "", "nothing holds nothing"),
        (("color", "red"), "red", "a pair: the value is a colour as a whole"),
        (("color", "dark red"), ("color", "dark red"), "a pair: parts of a value do not count"),
        (("gold", "large"), "gold", "a pair: the name counts too"),
    ],
)
def test_colours_are_reduced(option, colour, arithmetic):
    assert reduce_colour(option) == colour, arithmetic


def test_the_colours_are_looked_for_in_alphabetical_order():
    assert list(COLOURS) == sorted(COLOURS) and len(set(COLOURS)) == len(COLOURS)


def goal(options) -> Goal:
    return Goal(0, "A", "words", ("soft",), options, 50.0, "title", "query", "a › b", "garden")


HUMAN = [
    (["red"], ["red"], 1, "100"),
    (["red"], ["blue"], 0, "red, blue: LCS 0"),
    (["navy blue"], ["blue"], 1, "both become blue"),
    (["light blue"], ["dark blue"], 1, "both become blue: blue stands before dark and light"),
    (["dark red"], ["dark green"], 1, "both become dark: it stands before red and green"),
    (["red", "large"], ["large", "red"], 2, "any order"),
    (["red", "large"], ["red"], 1, "one of two"),
    (["red"], ["red", "large", "wide"], 1, "more than wanted does not count"),
    (["red", "red"], ["red"], 2, "each wanted one counts, one choice serves both"),
    ([], ["red"], 0, "nothing wanted"),
    (["red"], [], 0, "nothing chosen"),
    (["large"], ["x-large"], 1, "a part: 100"),
    (["bluetooth"], ["blue"], 1, "both become blue"),
    (["standard"], ["tan"], 1, "both become tan"),
    (["6 ounce"], ["16 ounce"], 1, "93.3, see above"),
    (["queen"], ["king"], 0, "LCS(queen, king) n 1: 2/9 = 22"),
    (["日本"], ["日本"], 0, "nothing is left: 0, even where it is the same"),
    (["1 | 2 in"], ["1 | 2 in"], 1, "blanks for the bar: 100"),
]


@pytest.mark.parametrize(("wanted", "chosen", "count", "arithmetic"), HUMAN)
@pytest.mark.parametrize("compat", ["upstream", "strict"])
def test_options_of_human_goals(wanted, chosen, count, arithmetic, compat):
    assert options_matched(chosen, wanted_options(goal(tuple(wanted)), compat)) == count, arithmetic


@pytest.mark.parametrize(
    ("wanted", "chosen", "upstream", "strict", "arithmetic"),
    [
        ({"size": "large"}, ["large"], 1, 1, "pair ('size', 'large'): words size large hold large: 100"),
        ({"size": "large"}, ["small"], 0, 0, "pair: large size / small, LCS al 2: 4/15; values: LCS al: 4/10"),
        ({"color": "red"}, ["red"], 1, 1, "pair: red is a whole value"),
        ({"color": "dark red"}, ["dark red"], 1, 1, "chosen becomes dark; color dark red holds dark: 100"),
        ({"color": "navy blue"}, ["sky blue"], 1, 1, "chosen becomes blue; color navy blue holds blue: 100"),
        ({"style": "bluetooth"}, ["bluetooth"], 0, 1, "chosen blue; pair 'bluetooth style' (15): LCS 4: 8/19 = 42"),
        ({"size": "standard"}, ["standard"], 0, 1, "chosen tan; pair 'size standard' (13): LCS 3: 6/16 = 37.5"),
        ({"pattern": "shredded"}, ["shredded"], 0, 1, "chosen red; pair 'pattern shredded' (16): LCS 3: 6/19"),
        ({"gold": "large"}, ["large"], 0, 1, "pair becomes gold; gold and large: LCS l 1: 2/9"),
        ({"gold": "large"}, ["gold leaf"], 1, 0, "pair becomes gold, chosen too; values: large and gold do not match"),
        ({"size": "size"}, ["size"], 1, 1, "pair: size size is the set {size}: 100"),
        ({"size": "men's 9"}, ["men's 9"], 1, 1, "the pair's quotes are blanks: size men s 9 holds men s 9: 100"),
        ({"a": "red", "b": "large"}, ["red", "large"], 2, 2, "two pairs"),
        ({"a": "washed", "b": "large"}, ["washed", "large"], 1, 2, "chosen ash; pair 'a washed' (8): LCS 3: 6/11 = 55"),
        ({}, ["red"], 0, 0, "nothing wanted"),
        ({"size": "日本"}, ["日本"], 0, 0, "chosen: nothing is left: 0"),
    ],
)
def test_options_of_synthetic_goals(wanted, chosen, upstream, strict, arithmetic):
    assert options_matched(chosen, wanted_options(goal(wanted), "upstream")) == upstream, arithmetic
    assert options_matched(chosen, wanted_options(goal(wanted), "strict")) == strict, arithmetic
