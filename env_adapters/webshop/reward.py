"""What a purchase is worth: type, attributes, options and price against the goal, as WebShop pays it.

    score = r_type * (attributes matched + options matched + [price <= limit]) / (attributes + options + 1)

Source: S. Yao et al., "WebShop" (arXiv 2207.01206), Eq. 1-3, in the form of its published engine, whose fuzzy
comparison (thefuzz) rapidfuzz reproduces. `compat="upstream"` keeps that engine's one quirk that makes goals
unreachable, `"strict"` mends it: the options of synthetic goals are compared as (name, value) pairs there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

from env_adapters.webshop.goals import Goal
from env_adapters.webshop.products import Product
from env_adapters.webshop.tagger import Tagger

SAME = 85  # a rounded token_set_ratio above it means the same thing
NO_NOUNS = 0.2  # title score where the goal's title has no noun
ENOUGH_NOUNS = 0.2  # a title score above it is a match of type
FEW_NOUNS = 0.1  # one below it makes r_type 0.1
ENOUGH_CRUMBS = 2  # common parts of the category path that are a match of type

# The colours that options are reduced to, in the order in which they are looked for (as parts of words too).
COLOURS = tuple(
    """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
    caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
    dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo
    ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor
    mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand
    sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut
    wheat white wine yellow
    """.split()
)


@dataclass(frozen=True)
class Verdict:
    """The parts of a purchase's score.

    Example: one of two attributes, the only option, a price within the limit, the right type: score = 3 / 4.
        Verdict(r_type=1.0, title_score=0.5, query_match=True, category_match=True, attributes=1, options=1,
                price=True, num_attributes=2, num_options=1, score=0.75)
    """

    r_type: float  # 0, 0.1, 0.5 or 1
    title_score: float  # share of the goal title's nouns that the bought title has
    query_match: bool
    category_match: bool
    attributes: int  # matched
    options: int  # matched
    price: bool
    num_attributes: int  # of the goal
    num_options: int
    score: float  # in [0, 1]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(
    bought: Product, goal: Goal, price: float, chosen: Mapping[str, str], tagger: Tagger, compat: str = "upstream"
) -> Verdict:
    """Score a purchase.

    Args:
        price: of the product, dollars.
        chosen: the options that were clicked, name to value.
        compat: "upstream" or "strict".
    """
    title = title_score(tagger.nouns(bought.title), tagger.nouns(goal.title))
    query_match = bought.query == goal.query
    category_match = len(set(bought.crumbs) & set(goal.crumbs)) >= ENOUGH_CRUMBS
    r_type = type_factor(title, query_match or category_match)
    attributes = sum(has_attribute(bought, wanted) for wanted in goal.attributes)
    options = options_matched(list(chosen.values()), wanted_options(goal, compat))
    affordable = price <= goal.price_upper
    num_attributes, num_options = len(goal.attributes), len(goal.options)
    score = r_type * ((attributes + options + affordable) / (num_attributes + num_options + 1))
    return Verdict(
        r_type, title, query_match, category_match, attributes, options, affordable, num_attributes, num_options, score
    )


def title_score(bought: Sequence[str], wanted: Sequence[str]) -> float:
    """Different nouns in common over the number of the goal's nouns, repeats counted there."""
    return len(set(bought) & set(wanted)) / len(wanted) if wanted else NO_NOUNS


def type_factor(title: float, same_shelf: bool) -> float:
    """r_type: 1 where query, category or title match, else 0.5; a poor title overrides both."""
    if title == 0:
        return 0.0
    if title < FEW_NOUNS:
        return 0.1
    return 1.0 if same_shelf or title > ENOUGH_NOUNS else 0.5


def has_attribute(product: Product, wanted: str) -> bool:
    """Whether a known attribute is the same, or else the words stand in the product's texts."""
    if any(same(known, wanted) for known in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(wanted in text.lower() for text in texts)


def wanted_options(goal: Goal, compat: str) -> list[str | tuple[str, str]]:
    """The goal's options as they are compared."""
    if not isinstance(goal.options, Mapping):
        return list(goal.options)
    return list(goal.options.values()) if compat == "strict" else list(goal.options.items())


def options_matched(chosen: Sequence[str], wanted: Sequence[str | tuple[str, str]]) -> int:
    """How many wanted options are the same as any chosen one, colours reduced on both sides."""
    reduced = [reduce_colour(value) for value in chosen]
    return sum(any(same(value, str(reduce_colour(one))) for value in reduced) for one in wanted)


def reduce_colour(option: str | tuple[str, str]) -> str | tuple[str, str]:
    """The first colour that is in the option, else the option itself.

    In a text any part counts ("bluetooth" becomes "blue"); in a pair only a whole name or value does.
    """
    return next((colour for colour in COLOURS if colour in option), option)


@lru_cache(maxsize=1 << 16)
def same(one: str, other: str) -> bool:
    """Fuzzy equality: token_set_ratio of the ASCII letters and digits, rounded, above 85; an empty text gives 0."""
    return round(token_set_ratio(_plain(one), _plain(other))) > SAME


def _plain(text: str) -> str:
    return default_process(text.encode("ascii", "ignore").decode("ascii"))
