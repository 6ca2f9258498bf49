"""One shop, many customers: the shared read-only engine of a process, and the light session of each episode."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from env_adapters.webshop.goals import Goal, GoalList, price_of
from env_adapters.webshop.pages import BACK, BUY, NEXT, PREVIOUS, Click, Page, clickables
from env_adapters.webshop.products import Product
from env_adapters.webshop.reward import Verdict, judge
from env_adapters.webshop.search import SearchIndex
from env_adapters.webshop.store import ProductStore
from env_adapters.webshop.tagger import Tagger

MOST_RESULTS = 50  # of a search, published
KEPT_PRODUCTS, KEPT_SEARCHES = 2048, 2048  # remembered a process
_ACTION = re.compile(r"(search|click)\[(.+)\]", re.DOTALL)  # what follows the last bracket is ignored, as published


def parse_action(action: str) -> tuple[str, str] | None:
    """("search" or "click", its lower-case argument), or None for anything else. Names are case-sensitive.

    Example: parse_action("click[Buy Now]") == ("click", "buy now")
    """
    found = _ACTION.match(action)
    return (found[1], found[2].lower()) if found and found[2].strip() else None


class Shop:
    """Catalogue, index, goals and the rules of the reward. Everything large is mapped, so processes share it."""

    def __init__(
        self, store: ProductStore, index: SearchIndex, goals: GoalList, tagger: Tagger, compat: str, seed: int,
        page_size: int,
    ) -> None:  # fmt: skip
        self.store, self.goals, self.tagger, self.compat, self.page_size = store, goals, tagger, compat, page_size
        self._index, self._seed = index, seed
        self.product = lru_cache(maxsize=KEPT_PRODUCTS)(store.product)
        self.search = lru_cache(maxsize=KEPT_SEARCHES)(self._search)

    def _search(self, query: str) -> tuple[int, ...]:
        ids, _ = self._index.search(query, MOST_RESULTS)
        return tuple(ids.tolist())

    def results(self, page: Page, query: str, number: int) -> Page:
        """The results page of that number, with no product open and no option chosen."""
        found = self.search(query)
        shown = found[(number - 1) * self.page_size : number * self.page_size]
        products = tuple(self.product(one) for one in shown)
        return Page("results", page.instruction, query, number, len(found), products, visited=page.visited)

    def judge(self, product: Product, goal: Goal, chosen: dict[str, str]) -> Verdict:
        """What buying the product with these options is worth."""
        return judge(product, goal, price_of(product, self._seed), chosen, self.tagger, self.compat)


class Session:
    """One customer: the open page, and after Buy Now the verdict."""

    def __init__(self, shop: Shop, goal: Goal) -> None:
        self.shop, self.goal = shop, goal
        self.page = Page("index", goal.instruction)
        self.verdict: Verdict | None = None

    def act(self, action: str) -> bool:
        """Play an action. Returns whether it did anything: what is not on the page changes nothing."""
        parsed = parse_action(action)
        if parsed is None or self.verdict is not None:
            return False
        name, argument = parsed
        if name == "search":
            self.page = self.shop.results(self.page, argument, 1)
            return True
        click = clickables(self.page).get(argument)
        if click is None:
            return False
        self.page = self._buy() if click.target == BUY and click.kind == "button" else self._follow(click)
        return True

    def _buy(self) -> Page:
        self.verdict = self.shop.judge(self.page.product, self.goal, dict(self.page.chosen))
        return replace(self.page, kind="done", score=self.verdict.score)

    def _follow(self, click: Click) -> Page:
        page = self.page
        if click.kind == "product":
            product = next(one for one in page.results if one.asin == click.target)
            return replace(page, kind="item", product=product, visited=page.visited | {product.asin})
        if click.kind == "option":
            return replace(page, chosen={**page.chosen, click.target: click.value})
        if click.target == BACK:
            return Page("index", page.instruction)
        if click.target == NEXT:
            return self.shop.results(page, page.query, page.number + 1)
        if click.target != PREVIOUS:
            return replace(page, kind=click.target.lower())
        if page.kind == "results":
            return self.shop.results(page, page.query, page.number - 1)
        if page.kind == "item":
            return self.shop.results(page, page.query, page.number)
        return replace(page, kind="item")
