"""The pages of the shop: what stands on them, what can be clicked, and the two text forms of the original engine.

A page is a list of pieces; both forms and the clickable texts come from it. A control character, a lone surrogate or
a run of blanks in a product's text is one blank on the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from env_adapters.webshop.products import Product

BACK, PREVIOUS, NEXT, BUY = "Back to Search", "< Prev", "Next >", "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")
NO_RATING = "Rating: N.A."
SEARCH_HINT = "search[<your query>]"  # the one admissible action that is a form to fill in
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class Page:
    """What is open, and all that decides what it shows.

    Example: the page of a product with one option clicked, reached from the first results.
        Page(kind="item", instruction="i need grey curtains", query="curtains", number=1, results=(...),
             total=50, product=Product(...), chosen={"color": "grey"})
    """

    kind: Literal["index", "results", "item", "description", "features", "reviews", "done"]
    instruction: str
    query: str = ""
    number: int = 1  # of the results page
    total: int = 0  # results of the query
    results: tuple[Product, ...] = ()  # those of this number
    product: Product | None = None
    chosen: Mapping[str, str] = field(default_factory=dict)  # option name to the value clicked
    visited: frozenset[str] = frozenset()  # ids that were opened since the last Back to Search
    score: float = 0.0  # of the purchase


@dataclass(frozen=True)
class Click:
    """What a click does: press a button, open a product, or choose an option's value."""

    kind: Literal["button", "product", "option"]
    target: str  # the button's text, the product's id, the option's name
    value: str = ""  # of the option


@dataclass(frozen=True)
class Piece:
    """One visible text; `click` is None where it is only text."""

    text: str
    click: Click | None = None
    marked: bool = False  # clicked before


def visible(text: str) -> str:
    """A product's text as a page shows it."""
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def pieces(page: Page) -> Iterator[Piece]:
    """What stands on a page, in order. Empty texts are left out."""
    found = _index(page) if page.kind == "index" else _done(page) if page.kind == "done" else _inner(page)
    return (piece for piece in found if piece.text)


def _index(page: Page) -> Iterator[Piece]:
    yield from (Piece("WebShop"), Piece("Instruction:"), Piece(visible(page.instruction)))
    yield _button("Search")


def _done(page: Page) -> Iterator[Piece]:
    yield from (Piece("Thank you for shopping with us!"), Piece("Your score (min 0.0, max 1.0)"))
    yield Piece(str(page.score))


def _inner(page: Page) -> Iterator[Piece]:
    yield from (Piece("Instruction:"), Piece(visible(page.instruction)), _button(BACK))
    if page.kind == "results":
        yield from _results(page)
        return
    yield _button(PREVIOUS)
    product = page.product
    if page.kind == "item":
        yield from _item(page, product)
    elif page.kind == "description":
        yield Piece(visible(product.description))
    elif page.kind == "features":
        yield from (Piece(visible(bullet)) for bullet in product.bullets)


def _results(page: Page) -> Iterator[Piece]:
    yield Piece(f"Page {page.number} (Total results: {page.total})")
    if page.number > 1:
        yield _button(PREVIOUS)
    yield _button(NEXT)
    for product in page.results:
        yield Piece(product.asin, Click("product", product.asin), product.asin in page.visited)
        yield from (Piece(visible(product.title)), Piece(product.price_tag))


def _item(page: Page, product: Product) -> Iterator[Piece]:
    for name, values in product.options.items():
        yield Piece(visible(name))
        for value in values:
            yield Piece(visible(value), Click("option", name, value), page.chosen.get(name) == value)
    yield from (Piece(visible(product.title)), Piece(f"Price: {product.price_tag}"), Piece(NO_RATING))
    yield from (_button(name) for name in (*SUB_PAGES, BUY))


def _button(text: str) -> Piece:
    return Piece(text, Click("button", text))


# ------------------------------------------------------------------------------------------------------------ clicks
def clickables(page: Page) -> dict[str, Click]:
    """Lower-case texts that can be clicked, buttons first. Where two are alike the later one counts, as in the engine.

    The search button of the index is no click: a search is an action of its own.
    """
    found = [piece for piece in pieces(page) if piece.click is not None]
    found.sort(key=lambda piece: piece.click.kind != "button")  # stable
    clicks = {piece.text.lower(): piece.click for piece in found}
    clicks.pop("search", None)
    return clicks


def admissible(page: Page) -> tuple[str, ...]:
    """The actions as the prompt lists them: on the index a search, elsewhere clicks."""
    search = (SEARCH_HINT,) if page.kind == "index" else ()
    return (*search, *(f"click[{text}]" for text in clickables(page)))


# ------------------------------------------------------------------------------------------------------------- texts
def text(page: Page) -> str:
    """Mode `text`: the visible texts with [SEP] between them."""
    return " [SEP] ".join(piece.text for piece in pieces(page))


def text_rich(page: Page) -> str:
    """Mode `text_rich`: one text a line, what can be clicked and what was clicked marked so."""
    lines, notes = [], []
    for piece in pieces(page):
        if piece.click is None:
            lines.append(piece.text)
            continue
        word = "clicked button" if piece.marked else "button"
        lead = {"button": "", "product": "\n", "option": "  "}[piece.click.kind]
        lines.append(f"{lead}[{word}] {piece.text} [{word}_]")
        if piece.marked and piece.click.kind == "option":
            notes.insert(0, f"You have clicked {piece.text}.")
    return "\n".join([*notes, *lines])
