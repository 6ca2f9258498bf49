"""Search: BM25 worked by hand, against Lucene's own results, against a naive loop; ties, odd queries, torn files."""

import json
import math
import random
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from env_adapters.base import EnvironmentFault
from env_adapters.webshop import index_writer, text_analysis
from env_adapters.webshop.index_writer import LENGTH_TABLE, document, length_byte
from env_adapters.webshop.search import MAX_TERMS, SearchIndex, ensure_index
from env_adapters.webshop.store import ensure_store
from tests.env_adapters.webshop_catalogues import indexed, product

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "webshop_lucene.json").read_text())


def ids(store, found) -> list[str]:
    return [store.product(int(number)).asin for number in found[0]]


@pytest.fixture(scope="module")
def lamps(tmp_path_factory):
    """Three documents of 2, 1 and 3 terms: N = 3, average length 2."""
    texts = [("B2", "red lamp"), ("B1", "lamp"), ("B3", "the green lamp, lamp")]
    return indexed(tmp_path_factory.mktemp("lamps"), texts)


# ------------------------------------------------------------------------------------------------------------ scores
@pytest.mark.parametrize(
    "query, expected",
    [
        # red: df 1, idf = ln(1 + 2.5 / 1.5) = ln(8 / 3) = 0.980829. B2 has the average length, so its norm is
        # 0.9 (0.6 + 0.4) = 0.9 and its score idf (1 - 1 / (1 + 1 / 0.9)) = idf / 1.9 = 0.516226.
        ("red", [0.516226, 0, 0]),
        # lamp: df 3, idf = ln(1 + 0.5 / 3.5) = ln(8 / 7) = 0.133531.
        # B2: idf / 1.9 = 0.070280. B1, length 1: norm 0.9 (0.6 + 0.4 / 2) = 0.72, idf / 1.72 = 0.077634.
        # B3, length 3, twice in it: norm 0.9 (0.6 + 0.4 * 1.5) = 1.08, idf 2 / (2 + 1.08) = 0.086709.
        ("lamp", [0.070280, 0.077634, 0.086709]),
        # a sum, in any order, with words that are not known or not searched for
        ("Lamps the red unheardof", [0.586506, 0.077634, 0.086709]),
        # a repeated term counts twice
        ("lamp lamp", [0.140559, 0.155269, 0.173417]),
    ],
)
def test_scores_by_hand(lamps, query, expected):
    assert lamps[1].scores(query) == pytest.approx(expected, abs=1e-6)


def test_best_first_and_how_many(lamps):
    store, index = lamps
    assert ids(store, index.search("lamp", 10)) == ["B3", "B1", "B2"]
    assert ids(store, index.search("lamp", 2)) == ["B3", "B1"] and index.search("lamp", 2)[1] == 3
    assert ids(store, index.search("red", 10)) == ["B2"] and index.search("red", 10)[1] == 1
    assert index.search("lamp", 2)[0].dtype == np.int64


@pytest.mark.parametrize("query", ["", "   ", "the of and", "unheardof", "[SEP]!?", "\0", "\ud800", "_"])
def test_nothing_to_find(lamps, query):
    numbers, total = lamps[1].search(query, 10)
    assert numbers.shape == (0,) and numbers.dtype == np.int64 and total == 0


def smallfloat(length: int) -> int:
    """Lucene's byte for a length, bit by bit: 24 free values, then 4 significant bits, the first one implied."""
    rest = length - 24
    if rest < 0:
        return length
    shift = max(rest.bit_length() - 4, 0)
    code = rest if rest.bit_length() < 4 else (rest >> shift & 7) | (shift + 1) << 3
    return 24 + code


def test_lengths_are_quantised_as_lucene_does():
    # Exact below 41. 41 - 24 = 17 = 0b10001: four bits of it are 16, so 41 counts as 40. 100 - 24 = 76 = 0b1001100:
    # 72, so 96. 1000 - 24 = 976 = 0b1111010000: 960, so 984. The largest byte is 24 + 15 * 2**27, of which a 32-bit
    # float keeps 15 * 2**27.
    pairs = [(0, 0), (1, 1), (39, 39), (40, 40), (41, 40), (42, 42), (100, 96), (1000, 984), (2**31 - 1, 2013265920)]
    lengths = np.array([length for length, _ in pairs])
    assert LENGTH_TABLE[length_byte(lengths)].tolist() == [counted for _, counted in pairs]
    every = np.arange(20000)
    assert length_byte(every).tolist() == [smallfloat(length) for length in every.tolist()]


def test_every_ranking_is_lucenes(tmp_path):
    store, index = indexed(tmp_path, GOLDEN["documents"])
    for query, expected in GOLDEN["results"]:
        found = index.search(query, len(expected) or 1)
        assert ids(store, found) == [asin for asin, _ in expected], query
        scores = index.scores(query)[found[0]]
        assert scores == pytest.approx([score for _, score in expected], abs=1e-4), query
    assert len(GOLDEN["results"]) >= 60 and sum(len(expected) for _, expected in GOLDEN["results"]) > 500


def naive_ranking(documents: dict[str, list[str]], query: list[str], k: int) -> list[str]:
    """The definition, document by document and term by term, in 32-bit steps as Lucene takes them."""
    one, k1, b = np.float32(1), np.float32(0.9), np.float32(0.4)
    average = np.float32(sum(map(len, documents.values())) / len(documents))
    ranked = []
    for asin, words in documents.items():
        code = smallfloat(len(words)) - 24
        length = len(words) if code < 0 else 24 + (code if code < 8 else (code % 8 + 8) << (code // 8 - 1))
        score = 0.0
        for term in sorted(set(query)):
            frequency = words.count(term)
            if not frequency:
                continue
            df = sum(term in other for other in documents.values())
            weight = np.float32(math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))) * np.float32(query.count(term))
            norm = one / (k1 * ((one - b) + b * np.float32(length) / average))
            score += float(weight - weight / (one + np.float32(frequency) * norm))
        if score:
            ranked.append((-np.float32(score), asin))
    return [asin for _, asin in sorted(ranked)[:k]]


@pytest.mark.parametrize("seed", range(3))
def test_rankings_are_those_of_the_definition(tmp_path, seed):
    rng = random.Random(seed)
    vocabulary = [f"{letter}{number}" for letter in "kmz" for number in range(30)]  # no word of these is stemmed
    documents = {}
    for number in rng.sample(range(10**6), 60):
        words = [vocabulary[min(int(rng.expovariate(0.1)), 89)] for _ in range(rng.choice([1, 5, 5, 50, 90]))]
        documents[f"B{number}"] = words if rng.random() < 0.7 or not documents else list(documents.values())[-1]
    store, index = indexed(tmp_path, [(asin, " ".join(words)) for asin, words in documents.items()])
    for _ in range(60):
        query = [vocabulary[min(int(rng.expovariate(0.1)), 89)] for _ in range(rng.randint(1, 9))]
        for k in (1, 10, 100):
            assert ids(store, index.search(" ".join(query), k)) == naive_ranking(documents, query, k)


def test_ties_go_by_id_whatever_the_catalogues_order(tmp_path):
    asins = [f"{letter}{number:02d}" for letter in "ZAB0" for number in range(20)]
    for seed in range(3):
        random.Random(seed).shuffle(asins)
        store, index = indexed(tmp_path / str(seed), [(asin, "blue kettle") for asin in asins] + [("M", "red kettle")])
        assert ids(store, index.search("kettle", 50)) == sorted([*asins, "M"])[:50]
        assert ids(store, index.search("red kettle", 3)) == ["M", *sorted(asins)[:2]]


def test_a_document_is_title_description_first_bullet_and_options():
    lamp = product(
        "B1", "LED Lamp", description="It Glows.", bullets=("Warm", "Cold"),
        options={"color": ("grey", "white"), "size": ("5 in",)},
    )  # fmt: skip
    assert document(lamp) == "led lamp it glows. warm color: grey, white, and size: 5 in"
    assert document(product("B1", "Lamp", bullets=())) == "lamp   "


# ------------------------------------------------------------------------------------------------------- odd queries
def test_a_long_query_is_cut_after_so_many_terms_and_stays_fast(tmp_path):
    words = [f"w{number}" for number in range(3 * MAX_TERMS)]
    _, index = indexed(tmp_path, [(f"B{number}", word) for number, word in enumerate(words)])
    begin = time.process_time()
    numbers, total = index.search(" ".join(words * 6), 5000)  # 100 kB
    assert total == MAX_TERMS and sorted(numbers.tolist()) == list(range(MAX_TERMS))
    for hostile in ("a" * 100_000, "_" * 100_000, "a_" * 50_000, "_\u0301" * 50_000, "a." * 50_000, "\u0301" * 100_000):
        index.search(hostile, 10)
    assert time.process_time() - begin < 10


def test_searches_leave_no_memory_behind(lamps):
    queries = [f"lamp n{number} red" for number in range(50)]

    def search(count: int) -> int:
        for number in range(count):
            lamps[1].search(queries[number % len(queries)], 2)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = search(500)
        assert search(3000) - before < 10_000
    finally:
        tracemalloc.stop()
    assert text_analysis._term.cache_info().maxsize  # what other words leave behind is bounded


# ------------------------------------------------------------------------------------------------------------- files
def test_blocks_make_the_same_files_as_one_piece(tmp_path, monkeypatch):
    whole = indexed(tmp_path / "whole", GOLDEN["documents"])[1]
    monkeypatch.setattr(index_writer, "BLOCK_WORDS", 300)
    blocks = indexed(tmp_path / "blocks", GOLDEN["documents"])[1]
    names = sorted(path.name for path in (tmp_path / "whole" / "index").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "blocks" / "index").iterdir())
    for name in names:
        assert (tmp_path / "whole/index" / name).read_bytes() == (tmp_path / "blocks/index" / name).read_bytes(), name
    assert whole.search("kettle", 5)[0].tolist() == blocks.search("kettle", 5)[0].tolist()


def test_an_index_belongs_to_its_catalogue(tmp_path):
    _, _ = indexed(tmp_path, [("B1", "lamp")])
    with pytest.raises(
        EnvironmentFault, match="indexes catalogue .*, the store holds 000000000000; delete that folder"
    ):
        SearchIndex(tmp_path / "index", "0" * 64)
    other = ensure_store(tmp_path / "products", {"seed": 1}, lambda: [product("B1", "kettle")])
    with pytest.raises(EnvironmentFault, match="indexes catalogue"):
        SearchIndex(tmp_path / "index", other.catalogue)
    assert ensure_index(tmp_path / "index", other).search("kettle", 1)[1] == 1


def test_a_torn_index_is_refused_and_made_again(tmp_path):
    store, index = indexed(tmp_path, GOLDEN["documents"])
    expected = index.search("kettle lamp", 20)[0].tolist()
    for path in sorted((tmp_path / "index").iterdir()):
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(EnvironmentFault, match="no whole search index"):
            SearchIndex(tmp_path / "index", store.catalogue)
        assert ensure_index(tmp_path / "index", store).search("kettle lamp", 20)[0].tolist() == expected
    assert not list(tmp_path.glob(".*.tmp")) and not list(tmp_path.glob(".*.old"))


def test_a_catalogue_without_any_term(tmp_path):
    _, index = indexed(tmp_path, [("B1", ""), ("B2", "the of")])
    assert index.search("lamp", 10)[1] == 0
