"""The catalogue on disk: one line of JSON a product, memory-mapped and shared by all workers.

products.jsonl   one product a line, in the catalogue's order
offsets.npy      int64 [N + 1]: where each line starts
asins.npy        bytes [N]: the ids, sorted
positions.npy    int32 [N]: the product number of each sorted id
manifest.json    written last; "catalogue" is the SHA-256 of products.jsonl, the name of its content
"""

from __future__ import annotations

import hashlib
import json
import mmap
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from env_adapters.base import EnvironmentFault
from env_adapters.webshop.folders import build_folder, mapped, read_manifest
from env_adapters.webshop.products import Product, from_dict, to_dict

FORMAT = 1
ASIN_LENGTH = 10  # characters at most


class ProductStore:
    """A catalogue opened for reading: `len(store)`, `store.product(i)`, `store.index_of(asin)`, `iter(store)`.

    Opening maps the files and reads almost nothing, so every worker opens its own; the pages are shared.
    """

    def __init__(self, folder: Path) -> None:
        """Raises EnvironmentFault where there is no whole store of this format in `folder`."""
        manifest = read_manifest(folder, FORMAT, catalogue=str, facts=dict, products=int)
        if manifest is None:
            raise EnvironmentFault(f"{folder}: no whole product store of format {FORMAT}; prepare() makes it again")
        self.folder = folder
        self.catalogue: str = manifest["catalogue"]  # SHA-256 of all products; an index is tied to it
        self.facts: Mapping[str, Any] = manifest["facts"]  # where the products came from
        self._size: int = manifest["products"]
        self._offsets, self._asins, self._positions = (
            mapped(folder, name) for name in ("offsets", "asins", "positions")
        )
        with open(folder / "products.jsonl", "rb") as file:
            self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Product]:
        """All products in order, read rather than mapped: one pass leaves no pages in the process."""
        with open(self.folder / "products.jsonl", "rb", buffering=1 << 20) as file:
            for number, line in enumerate(file):
                yield self._parse(number, line)

    def product(self, number: int) -> Product:
        """Product `number`, 0 <= number < len(self). Raises IndexError, or EnvironmentFault where it is damaged."""
        if not 0 <= number < self._size:
            raise IndexError(f"product {number} of {self._size}")
        return self._parse(number, self._lines[self._offsets[number] : self._offsets[number + 1]])

    def _parse(self, number: int, line: bytes) -> Product:
        try:
            return from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise EnvironmentFault(
                f"{self.folder}: product {number} is damaged ({error}); delete that folder and prepare again"
            ) from error

    def index_of(self, asin: str) -> int:
        """The number of the product with this id. Raises KeyError where there is none."""
        wanted = asin.encode("utf-8", "replace")
        place = int(np.searchsorted(self._asins, wanted))
        if place == self._size or self._asins[place] != wanted:
            raise KeyError(asin)
        return int(self._positions[place])

    def ranks(self) -> np.ndarray:
        """int32 [N]: the place of each product's id among the sorted ids."""
        ranks = np.empty(self._size, dtype=np.int32)
        ranks[self._positions] = np.arange(self._size, dtype=np.int32)
        return ranks


def ensure_store(folder: Path, facts: Mapping[str, Any], products: Callable[[], Iterable[Product]]) -> ProductStore:
    """The store in `folder`, made from `products()` unless there is one with the same `facts`.

    Args:
        facts: what the products depend on (JSON types): generator and seed, or the original files.
        products: called at most once; its products are written as they come.

    Raises:
        EnvironmentFault: an id is not printable ASCII of 1 to 10 characters or occurs twice, no product came, or the
            disk does not take it.
    """

    def is_ready() -> bool:
        found = read_manifest(folder, FORMAT, catalogue=str, products=int)
        return found is not None and found.get("facts") == facts

    build_folder(folder, is_ready, lambda temporary: {**_write(temporary, products()), "facts": dict(facts)})
    return ProductStore(folder)


def _write(folder: Path, products: Iterable[Product]) -> dict[str, Any]:
    """Stream products into the files of a store. Keeps ids and offsets in memory, about 60 bytes a product."""
    digest, offsets, asins = hashlib.sha256(), array("q", [0]), bytearray()
    with open(folder / "products.jsonl", "wb", buffering=1 << 20) as file:
        for product in products:
            asins += _checked_asin(product.asin)
            line = json.dumps(to_dict(product), separators=(",", ":")).encode("ascii") + b"\n"
            file.write(line)
            digest.update(line)
            offsets.append(offsets[-1] + len(line))
    if not asins:
        raise EnvironmentFault(f"{folder}: no product came; a catalogue needs one at least")
    ids = np.frombuffer(asins, dtype=f"S{ASIN_LENGTH}")
    positions = np.argsort(ids, kind="stable").astype(np.int32)
    ids = ids[positions]
    twice = np.flatnonzero(ids[1:] == ids[:-1])
    if len(twice):
        raise EnvironmentFault(f"product id {ids[twice[0]].decode()!r} occurs twice; ids must be unique")
    np.save(folder / "offsets.npy", np.frombuffer(offsets, dtype=np.int64))
    np.save(folder / "asins.npy", ids)
    np.save(folder / "positions.npy", positions)
    return {"format": FORMAT, "products": len(ids), "catalogue": digest.hexdigest()}


def _checked_asin(asin: str) -> bytes:
    """The id, padded with zero bytes as numpy does."""
    if not (0 < len(asin) <= ASIN_LENGTH and asin.isascii() and asin.isprintable()):
        raise EnvironmentFault(f"product id {asin[:40]!r}: must be 1 to {ASIN_LENGTH} printable ASCII characters")
    return asin.encode("ascii").ljust(ASIN_LENGTH, b"\0")
