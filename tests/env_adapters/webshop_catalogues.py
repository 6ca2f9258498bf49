"""Small catalogues for the tests of WebShop's store and search."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from env_adapters.webshop.products import Product
from env_adapters.webshop.search import SearchIndex, ensure_index
from env_adapters.webshop.store import ProductStore, ensure_store


def product(asin: str, title: str = "", **others) -> Product:
    """A product of which only the title is found by a search, unless `others` say more."""
    fields = {
        "category": "garden", "query": "lamps", "product_category": "Home › Lamps", "description": "",
        "bullets": ("",), "pricing": (9.99,),
    }  # fmt: skip
    return Product(asin=asin, title=title, **{**fields, **others})


def indexed(folder: Path, texts: Iterable[tuple[str, str]]) -> tuple[ProductStore, SearchIndex]:
    """A store and index of products given as (id, title)."""
    store = ensure_store(folder / "products", {}, lambda: (product(asin, title) for asin, title in texts))
    return store, ensure_index(folder / "index", store)
