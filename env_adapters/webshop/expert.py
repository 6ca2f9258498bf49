"""A scripted shopper for the warm start: it knows what the page and the instruction say, and nothing else.

It searches for the instruction's words, opens the best match on the page, clicks the options that it was asked for, and
buys. What it does depends on the open page alone, so it can take over from any learner's mistake. It does not read
descriptions or turn pages, so it can buy the wrong thing.
"""

from __future__ import annotations

from env_adapters.webshop.instructions import price_limit, wanted_words
from env_adapters.webshop.pages import BACK, BUY, PREVIOUS, Page, visible
from env_adapters.webshop.products import Product

MOST_WORDS = 30  # of a search


def expert_action(page: Page) -> str | None:
    """The action to play now; None once the purchase is made, or where a search for its words finds nothing."""
    wanted = wanted_words(page.instruction)
    query = " ".join(wanted[:MOST_WORDS])
    if page.kind == "done":
        return None
    if page.kind == "index" or (page.kind == "results" and page.query != query):
        return f"search[{query}]" if query else None
    if page.kind == "results":
        best = best_match(page.results, wanted, price_limit(page.instruction))
        return f"click[{best.asin.lower()}]" if best else _after_empty_page(page)
    if page.kind != "item":
        return f"click[{PREVIOUS.lower()}]"
    return _choose_or_buy(page, set(wanted))


def best_match(products: tuple[Product, ...], wanted: list[str], limit: float | None) -> Product | None:
    """The first of those whose titles have most of the wanted words; what is too dear comes last."""

    def worth(product: Product) -> tuple[bool, int]:
        title = set(visible(product.title).lower().split())
        return limit is None or product.pricing[0] <= limit, len(title & set(wanted))

    return max(products, key=worth, default=None)


def _after_empty_page(page: Page) -> str | None:
    return f"click[{BACK.lower()}]" if page.number > 1 else None


def _choose_or_buy(page: Page, wanted: set[str]) -> str:
    for name, values in page.product.options.items():
        named = [value for value in values if set(value.split()) <= wanted]
        best = max(named, key=lambda value: len(value.split()), default=None)
        if best is not None and page.chosen.get(name) != best:
            return f"click[{visible(best)}]"
    return f"click[{BUY.lower()}]"
