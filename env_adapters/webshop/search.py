"""BM25 as Lucene ranks it, over arrays on disk that all workers map and share.

Anserini's defaults, which the original shop uses: k1 = 0.9, b = 0.4, no coordination. For a query with term t
occurring c_t times, document d with f occurrences of t, and N documents with any term, df_t of them with t:

    idf_t = ln(1 + (N - df_t + 0.5) / (df_t + 0.5))
    score(d) = sum over t of  w - w / (1 + f / (k1 (1 - b + b length_d / average)))   with w = c_t idf_t

length_d is quantised to one byte (SmallFloat), the average is exact. Each summand is computed in 32-bit floats in
Lucene's order and summed in 64 bits, so that equal documents tie; ties are ranked by product id.

    terms.bin, term_starts.npy       the terms, sorted bytes behind each other; int64 [V + 1]
    postings_starts.npy              int64 [V + 1]: where each term's postings start
    documents.npy                    int32 [P]: product numbers, ascending within a term
    denominators.npy                 float32 [P]: 1 + f / (k1 (1 - b + b length_d / average))
    ranks.npy                        int32 [N]: place of each product's id among the sorted ids
    manifest.json                    written last; "catalogue" is the hash of the catalogue that was indexed
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections import Counter
from pathlib import Path

import numpy as np

from env_adapters.base import EnvironmentFault
from env_adapters.webshop.folders import build_folder, mapped, read_manifest
from env_adapters.webshop.index_writer import FORMAT, Progress, write_index
from env_adapters.webshop.store import ProductStore
from env_adapters.webshop.text_analysis import analyze

MAX_TERMS = 1024  # distinct terms of a query; Lucene refuses longer ones (its limit of clauses), ours drops the rest


class SearchIndex:
    """An index opened for reading: `index.search(query, k)`. Every worker opens its own and shares the pages."""

    def __init__(self, folder: Path, catalogue: str) -> None:
        """Open the index in `folder`, which must be that of `catalogue` (`ProductStore.catalogue`).

        Raises:
            EnvironmentFault: there is no whole index of this format, or one of another catalogue.
        """
        manifest = read_manifest(folder, FORMAT, catalogue=str, documents_with_terms=int)
        if manifest is None:
            raise EnvironmentFault(f"{folder}: no whole search index of format {FORMAT}; prepare() makes it again")
        if manifest["catalogue"] != catalogue:
            raise EnvironmentFault(
                f"{folder}: indexes catalogue {manifest['catalogue'][:12]}, the store holds {catalogue[:12]}; "
                "delete that folder and prepare again"
            )
        self._num_indexed: int = manifest["documents_with_terms"]
        self._term_starts, self._starts, self._documents, self._denominators, self._ranks = (
            mapped(folder, name) for name in ("term_starts", "postings_starts", "documents", "denominators", "ranks")
        )
        with open(folder / "terms.bin", "rb") as file:
            self._terms = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def search(self, query: str, k: int) -> tuple[np.ndarray, int]:
        """The best products for a query, best first.

        Returns:
            (numbers, total): product numbers int64 [min(k, total)] and how many products have any term of the query.
            Nothing where the query has no known term (empty, stop words alone).
        """
        scores = self.scores(query)
        found = np.flatnonzero(scores)
        if not len(found):
            return np.empty(0, dtype=np.int64), 0
        # One integer orders score, then id: positive floats sort as their bits do.
        keys = scores[found].astype(np.float32).view(np.int32).astype(np.int64) << 32
        keys -= self._ranks[found]
        best = np.argpartition(keys, len(keys) - k)[-k:] if len(keys) > k else np.arange(len(keys))
        return found[best[np.argsort(-keys[best])]], len(found)

    def scores(self, query: str) -> np.ndarray:
        """float64 [N]; 0 exactly where a product has no term of the query."""
        scores = np.zeros(len(self._ranks))
        for term, count in list(Counter(analyze(query)).items())[:MAX_TERMS]:
            number = self._term_number(term.encode("utf-8", "surrogatepass"))
            if number is None:
                continue
            start, end = int(self._starts[number]), int(self._starts[number + 1])
            weight = np.float32(count) * idf(end - start, self._num_indexed)
            scores[self._documents[start:end]] += weight - weight / self._denominators[start:end]
        return scores

    def _term_number(self, term: bytes) -> int | None:
        """Where a term stands among the sorted terms, or None where no product has it."""
        num_terms = len(self._term_starts) - 1
        number = bisect_left(range(num_terms), term, key=self._term)
        return number if number < num_terms and self._term(number) == term else None

    def _term(self, number: int) -> bytes:
        return self._terms[self._term_starts[number] : self._term_starts[number + 1]]


def idf(document_frequency: int, num_documents: int) -> np.float32:
    """ln(1 + (N - df + 0.5) / (df + 0.5)), rounded to 32 bits as Lucene does."""
    return np.float32(np.log(1 + (num_documents - document_frequency + 0.5) / (document_frequency + 0.5)))


def ensure_index(folder: Path, store: ProductStore, progress: Progress | None = None) -> SearchIndex:
    """The index of a store in `folder`, built unless it is there for this very catalogue.

    `progress(done, total, what)` is called now and then where it is given.
    """

    def is_ready() -> bool:
        found = read_manifest(folder, FORMAT, documents_with_terms=int)
        return found is not None and found.get("catalogue") == store.catalogue

    build_folder(folder, is_ready, lambda temporary: write_index(temporary, store, progress))
    return SearchIndex(folder, store.catalogue)
