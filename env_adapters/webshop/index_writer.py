"""Builds the arrays of `search.SearchIndex` in one pass over the catalogue, in blocks of bounded memory.

A block of products is turned into postings (term, product, how often), sorted by term, and set down on disk. When
all are counted, each block's postings go to their places in the final arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from env_adapters.webshop.products import Product
from env_adapters.webshop.store import ProductStore
from env_adapters.webshop.text_analysis import term, words

FORMAT = 1
K1, B = np.float32(0.9), np.float32(0.4)
BLOCK_WORDS = 4_000_000  # a block takes about 100 MB while it is sorted
STOPPED = -1  # in place of a term number: a stop word

Progress = Callable[[int, int, str], None]


def document(product: Product) -> str:
    """The text that a product is found by: title, description, first bullet and options, in lower case."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    first = product.bullets[0] if product.bullets else ""
    return " ".join((product.title, product.description, first, options)).lower()


class _TermNumbers(dict):
    """word -> term number, filled as words are met. `terms` numbers the terms in order of first appearance."""

    def __init__(self) -> None:
        self.terms: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        found = term(word)
        number = self[word] = STOPPED if found is None else self.terms.setdefault(found, len(self.terms))
        return number


def write_index(folder: Path, store: ProductStore, progress: Progress | None = None) -> dict[str, Any]:
    """Write the files of an index of `store` into `folder`. Returns the facts for its manifest."""
    numbers, block, lengths = _TermNumbers(), array("i"), np.zeros(len(store), dtype=np.int32)
    sizes, blocks, first = array("i"), [], 0
    for number, product in enumerate(store):
        found = words(document(product))
        block.extend([numbers[word] for word in found])
        sizes.append(len(found))
        if len(block) >= BLOCK_WORDS or number + 1 == len(store):
            blocks.append(folder / f"block-{len(blocks):04d}.npy")
            lengths[first : number + 1] = _set_down(block, sizes, first, blocks[-1])
            block, sizes, first = array("i"), array("i"), number + 1
        if progress is not None and number % 1000 == 999:
            progress(number + 1, len(store), "products indexed")
    num_with_terms = int(np.count_nonzero(lengths))
    order = _write_terms(folder, numbers.terms)
    del numbers
    _write_postings(folder, blocks, order, length_norms(lengths))
    np.save(folder / "ranks.npy", store.ranks())
    return {"format": FORMAT, "catalogue": store.catalogue, "documents_with_terms": num_with_terms}


def _set_down(block: array, sizes: array, first: int, path: Path) -> np.ndarray:
    """Save a block's postings: int32 [3, P] rows term, product, how often, sorted by term and product.

    Returns the number of terms of each product, repeated ones counted.
    """
    terms = np.frombuffer(block, dtype=np.int32) if len(block) else np.empty(0, np.int32)
    products = np.repeat(np.arange(len(sizes), dtype=np.int64), np.frombuffer(sizes, dtype=np.int32))
    kept = terms != STOPPED
    terms, products = terms[kept], products[kept]
    keys, counts = np.unique((terms.astype(np.int64) << 32) | (products + first), return_counts=True)
    np.save(path, np.stack([(keys >> 32).astype(np.int32), keys.astype(np.int32), counts.astype(np.int32)]))
    return np.bincount(products, minlength=len(sizes))


def _write_terms(folder: Path, terms: dict[str, int]) -> np.ndarray:
    """Write the terms, sorted by their bytes. Returns int32 [V]: the sorted place of each term number."""
    encoded = [one.encode("utf-8", "surrogatepass") for one in terms]
    by_bytes = sorted(range(len(encoded)), key=encoded.__getitem__)
    with open(folder / "terms.bin", "wb") as file:
        file.writelines(encoded[number] for number in by_bytes)
        file.write(b"\n")  # never part of a term; an empty file could not be mapped
    starts = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(encoded[number]) for number in by_bytes], out=starts[1:])
    np.save(folder / "term_starts.npy", starts)
    places = np.empty(len(encoded), dtype=np.int32)
    places[by_bytes] = np.arange(len(encoded), dtype=np.int32)
    return places


def _write_postings(folder: Path, blocks: list[Path], places: np.ndarray, norms: np.ndarray) -> None:
    """Merge the blocks into the final arrays and remove them. `norms`: float32 [N], what f is multiplied by."""
    frequencies = np.zeros(len(places), dtype=np.int64)
    for path in blocks:
        frequencies += np.bincount(np.load(path, mmap_mode="r")[0], minlength=len(places))
    starts = np.zeros(len(places) + 1, dtype=np.int64)
    starts[places + 1] = frequencies
    np.cumsum(starts, out=starts)
    np.save(folder / "postings_starts.npy", starts)
    shape = (int(starts[-1]),)
    documents = np.lib.format.open_memmap(folder / "documents.npy", "w+", np.int32, shape)
    denominators = np.lib.format.open_memmap(folder / "denominators.npy", "w+", np.float32, shape)
    following = starts[places]  # per term number: where its next posting goes
    for path in blocks:
        terms, products, counts = np.load(path)
        met, first, many = np.unique(terms, return_index=True, return_counts=True)
        where = following[terms] + np.arange(len(terms)) - np.repeat(first, many)
        documents[where] = products
        denominators[where] = np.float32(1) + counts.astype(np.float32) * norms[products]
        following[met] += many
        path.unlink()
    documents.flush()
    denominators.flush()


def length_norms(lengths: np.ndarray) -> np.ndarray:
    """1 / (k1 (1 - b + b length / average)) in 32-bit floats, float32 [N]; lengths quantised, the average exact.

    Args:
        lengths: int [N], terms of each document; the average is over documents with any.
    """
    table = 1 / (K1 * ((np.float32(1) - B) + B * LENGTH_TABLE / np.float32(_average(lengths))))
    return table[length_byte(lengths)]


def _average(lengths: np.ndarray) -> float:
    with_terms = np.count_nonzero(lengths)
    return int(lengths.sum(dtype=np.int64)) / with_terms if with_terms else 1.0


def length_byte(length: np.ndarray) -> np.ndarray:
    """Lucene's SmallFloat.intToByte4: lengths to 0..255, exact below 40, then 4 significant bits. uint8 [N]."""
    return (np.searchsorted(LENGTH_TABLE, length, side="right") - 1).astype(np.uint8)


def _length_table() -> np.ndarray:
    """float32 [256]: the length that each byte stands for, the smallest that is encoded to it.

    24 free values stand for themselves; a byte 24 + 8 e + m stands for 24 + m at e = 0 and 24 + (8 + m) 2^(e-1) above.
    """
    exponent, mantissa = np.divmod(np.arange(256 - 24), 8)
    coded = np.where(exponent == 0, mantissa, (8 + mantissa) << np.maximum(exponent - 1, 0))
    return np.concatenate([np.arange(24), 24 + coded]).astype(np.float32)


LENGTH_TABLE = _length_table()
