"""Every reader against spoilt files: nothing but its documented answers, each of them one line."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.fuzzing.environment_readers import environment_readers
from tests.fuzzing.mutations import mutations
from tests.fuzzing.reader import TAKEN, Reader, Undocumented, answer, answers, is_one_line
from tests.fuzzing.run_readers import run_readers

REFUSED = 1000  # spoilt files that readers must refuse or leave out, all together


@pytest.fixture(scope="module")
def readers(tmp_path_factory) -> list[Reader]:
    root = tmp_path_factory.mktemp("fuzzing")
    return [*run_readers(root / "run"), *environment_readers(root / "environments")]


@pytest.fixture(scope="module")
def table(readers) -> dict[str, Counter]:
    return {reader.name: answers(reader) for reader in readers}


def test_all_samples_are_taken(readers):
    for reader in readers:
        reader.path.write_bytes(reader.sample)
        assert not reader.left_out(reader.read()) or "kept" in reader.name, reader.name


def test_a_thousand_spoilt_files_each_get_their_documented_answer(table):
    refused = {name: sum(n for (_, answer), n in found.items() if answer != TAKEN) for name, found in table.items()}
    assert sum(refused.values()) >= REFUSED
    assert min(refused.values()) >= 10, refused  # no reader takes everything


def test_bombs_are_never_taken(table):
    """Deep nesting, numbers of 5,000 digits, bare words where a JSON document should be."""
    for name, found in table.items():
        for kind in ("root is deep nesting", "root is deep objects", "root is huge number", "root is bare word"):
            assert not found[kind, TAKEN], (name, kind)


def test_a_reader_that_crashes_is_noticed(tmp_path):
    path = tmp_path / "x"
    careless = Reader("careless", path, b'{"a": 1}', "json", lambda: json.loads(path.read_bytes())["a"], (ValueError,))
    with pytest.raises(Undocumented, match="careless, missing: KeyError"):
        answer(careless, "missing", b"{}")
    with pytest.raises(Undocumented, match="not one line of object, fact, remedy"):
        answer(careless, "empty", b"")  # a documented kind, but a message without a remedy


def test_what_a_line_is():
    assert is_one_line("shard:3: not JSON; delete the line to replay it")
    assert not is_one_line("shard:3: not JSON")
    assert not is_one_line("shard:3:\nnot JSON; delete the line")
    assert not is_one_line("shard:3: \x1b[2J; delete the line")


def test_mutations_are_distinct_and_the_same_every_time():
    sample = b'{"a": [1, 2], "b": {"c": "d"}}'
    first = mutations(sample, "json", "seed", 200)
    assert first == mutations(sample, "json", "seed", 200) != mutations(sample, "json", "other", 200)
    assert len({content for _, content in first}) == len(first) >= 150
    assert sample not in [content for _, content in first]
    kinds = {kind for kind, _ in first}
    assert {"missing", "unknown key", "repeated key", "cut off", "flipped bit", "lone surrogate", "NUL"} <= kinds
