"""WebShop's search: time to build and to ask, against bm25s and rank_bm25, and against BM25's definition, in one run.

    pip install bm25s rank_bm25        # optional; without them only ours is measured
    python -m benchmarks.webshop_search [--products 1000] [--queries 500] [--out search.json]

Products are invented ones, queries the first words of their instructions. The definition is a plain loop over the
postings in 64-bit floats, ties by id. CPU time of this process; the alternatives get our terms, so that what differs
is the ranking.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from env_adapters.webshop.catalogue import generate
from env_adapters.webshop.index_writer import LENGTH_TABLE, document, length_byte
from env_adapters.webshop.search import SearchIndex, ensure_index
from env_adapters.webshop.store import ProductStore, ensure_store
from env_adapters.webshop.text_analysis import analyze

K1, B, BEST = 0.9, 0.4, 10
Ranking = Callable[[list[str]], Sequence[int]]  # query terms -> product numbers, best first


def definition(documents: list[list[str]], asins: list[str]) -> Ranking:
    """BM25 by its formula, one posting at a time."""
    postings: dict[str, dict[int, int]] = defaultdict(dict)
    for number, terms in enumerate(documents):
        for term, count in Counter(terms).items():
            postings[term][number] = count
    average = sum(map(len, documents)) / sum(map(bool, documents))
    lengths = LENGTH_TABLE[length_byte(np.array([len(terms) for terms in documents]))].tolist()

    def rank(query: list[str]) -> list[int]:
        scores: dict[int, float] = defaultdict(float)
        for term, repeats in Counter(query).items():
            found = postings.get(term, {})
            idf = math.log(1 + (len(documents) - len(found) + 0.5) / (len(found) + 0.5))
            for number, count in found.items():
                norm = K1 * (1 - B + B * lengths[number] / average)
                scores[number] += repeats * idf * count / (count + norm)
        # In 32 bits: sums that differ in their last bits alone are ties.
        return sorted(scores, key=lambda number: (-np.float32(scores[number]), asins[number]))[:BEST]

    return rank


def with_bm25s(documents: list[list[str]]) -> Ranking:
    import bm25s

    retriever = bm25s.BM25(k1=K1, b=B, method="lucene")
    retriever.index(documents, show_progress=False)
    known = set(retriever.vocab_dict)

    def rank(query: list[str]) -> Sequence[int]:
        asked = [term for term in query if term in known]
        if not asked:
            return ()
        numbers, scores = retriever.retrieve([asked], k=min(BEST, len(documents)), show_progress=False)
        return numbers[0][scores[0] > 0].tolist()

    return rank


def with_rank_bm25(documents: list[list[str]]) -> Ranking:
    from rank_bm25 import BM25Okapi

    ranking = BM25Okapi(documents, k1=K1, b=B)

    def rank(query: list[str]) -> Sequence[int]:
        scores = ranking.get_scores(query)
        return [number for number in np.argsort(-scores, kind="stable")[:BEST].tolist() if scores[number] > 0]

    return rank


def ask(rank: Ranking, queries: list[list[str]], truth: list[Sequence[int]]) -> dict[str, float]:
    """Milliseconds a query, and the share of the definition's best ten that are found."""
    begin = time.process_time()
    found = [rank(query) for query in queries]
    spent = 1e3 * (time.process_time() - begin) / len(queries)
    overlap = [len({*got[:BEST]} & {*true}) / len(true) for got, true in zip(found, truth, strict=True) if true]
    exact = [list(got[:BEST]) == list(true) for got, true in zip(found, truth, strict=True)]
    return {"query_ms": spent, "overlap_at_10": float(np.mean(overlap)), "identical": float(np.mean(exact))}


def timed(make: Callable, *args) -> tuple[object, float]:
    begin = time.process_time()
    return make(*args), time.process_time() - begin


def measure(store: ProductStore, index: SearchIndex, queries: list[str]) -> dict[str, dict[str, float]]:
    documents = [analyze(document(product)) for product in store]
    asins = [product.asin for product in store]
    truth_rank = definition(documents, asins)
    terms = [analyze(query) for query in queries]
    truth = [truth_rank(query) for query in terms]
    text_of = dict(zip(map(tuple, terms), queries, strict=True))  # ours analyses the text too, in its time
    rows = {"ours": ask(lambda query: index.search(text_of[tuple(query)], BEST)[0].tolist(), terms, truth)}
    for name, make in (("bm25s", with_bm25s), ("rank_bm25", with_rank_bm25)):
        try:
            rank, build_s = timed(make, documents)
        except ImportError:
            continue
        rows[name] = {"build_s": build_s, **ask(rank, terms, truth)}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--products", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--out", type=Path, help="write the numbers there, as JSON")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        store, store_s = timed(
            ensure_store, Path(folder) / "products", {}, lambda: generate("full", options.products, 1, 0)
        )
        index, index_s = timed(ensure_index, Path(folder) / "index", store)
        rng = random.Random(0)
        wishes = [store.product(rng.randrange(len(store))).human_instructions[0].text for _ in range(options.queries)]
        rows = measure(store, index, [" ".join(wish.split()[: rng.randint(4, 14)]) for wish in wishes])
    rows["ours"]["build_s"] = index_s
    print(f"{options.products} products, {options.queries} queries; store made in {store_s:.2f} s")
    print(f"{'':10}{'build s':>9}{'query ms':>10}{'ratio':>8}{'overlap@10':>12}{'identical':>11}")
    for name, row in rows.items():
        ratio = row["query_ms"] / rows["ours"]["query_ms"]
        print(
            f"{name:10}{row['build_s']:9.2f}{row['query_ms']:10.3f}{ratio:7.1f}x{row['overlap_at_10']:12.4f}"
            f"{row['identical']:11.4f}"
        )
    print("The alternatives' build leaves out the analysis of the text; ours has it, and reading the store.")
    if options.out:
        facts = {"python": platform.python_version(), "products": options.products, "queries": options.queries}
        options.out.write_text(json.dumps({**facts, "store_s": store_s, "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
