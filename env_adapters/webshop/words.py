"""Every word that prompts and actions can hold, for a word-level tokenizer; and words that can stand for each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from env_adapters.base import Observation, PastTurn
from env_adapters.webshop import pages, prompts
from env_adapters.webshop.goals import GoalList
from env_adapters.webshop.products import Product
from env_adapters.webshop.store import ProductStore
from env_adapters.webshop.wares import WARES

MOST_TEXTS = 20_000  # products, and goals, whose words are listed; above it the others' words are unknown ones
_NUMBERS = 100  # the prompts count turns
_PAGES = (
    "WebShop Instruction: Search Page (Total results: ) Rating: N.A. Price: $ to [SEP] [button] [clicked button_]",
    "Thank you for shopping with us! Your score (min 0.0, max 1.0)",
    "and price lower than 10.00 dollars with : You have clicked .",
    "search[] click[] <think> </think> <action> </action>",
    "want did now under page item chosen nothing description features reviews search bought ; , :",
)


def vocabulary(store: ProductStore, goals: GoalList) -> Sequence[str]:
    """The different words of all texts, sorted, and the fixed texts around them."""
    words: set[str] = set()
    for text in itertools.chain(_product_texts(store), _goal_texts(goals)):
        words.update(pages.visible(text).lower().split())
    empty = Observation("", "", ("",))
    frame = (prompts.published(empty, [], 0), prompts.published(empty, [PastTurn("", "")], 1))
    buttons = (*pages.SUB_PAGES, pages.BACK, pages.PREVIOUS, pages.NEXT, pages.BUY, pages.SEARCH_HINT)
    numbers = " ".join(map(str, range(_NUMBERS + 1)))
    return (*_PAGES, *buttons, numbers, *frame, *sorted(words))


def _product_texts(store: ProductStore) -> Iterator[str]:
    for product in itertools.islice(store, MOST_TEXTS):
        options = itertools.chain.from_iterable((name, *values) for name, values in product.options.items())
        yield from (product.asin, product.title, product.description, *product.bullets, product.price_tag, *options)


def _goal_texts(goals: GoalList) -> Iterator[str]:
    return (goals.goal(position).instruction for position in range(min(len(goals), MOST_TEXTS)))


def interchangeable(kind: str, products: Sequence[Product]) -> Sequence[Sequence[str]]:
    """Single words of a generated catalogue that can be renamed into each other: ids, types, attributes, options."""
    departments = WARES[kind].departments
    types = {type_ for one in departments for group in one.groups.values() for type_ in group}
    attributes = {attribute for one in departments for attribute in one.attributes}
    options: dict[str, set[str]] = {}
    for one in departments:
        for name, values in one.options.items():
            options.setdefault(name, set()).update(values)
    groups = ({product.asin.lower() for product in products}, types, attributes, *options.values())
    return tuple(tuple(sorted(word for word in group if word.isalpha())) for group in groups)
