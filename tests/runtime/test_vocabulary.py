import itertools
import json

import pytest

from runtime.vocabulary import RowChoice, ValueTokens, choose_rows, read_value_tokens, write_value_tokens
from runtime.weight_files import ModelFilesError

RECORD = ValueTokens(positive_id=151665, negative_id=151666, r_max=10.0, temperature=0.125, fingerprint="8c1e")


def ids(count):
    return {f"t{i}": i for i in range(count)}


def test_qwen25_has_spare_rows_in_both_sizes():
    """Its tokenizer has ids 0..151,664: 151,936 - 151,665 = 271 rows are spare (1.5B), 152,064 - 151,665 = 399 (7B)."""
    for rows in (151_936, 152_064):
        assert choose_rows(rows, ids(151_665), {151_645, 151_643}, ()) == RowChoice(151_665, 151_666, rows, "spare")


def test_llama3_gives_up_its_last_two_reserved_tokens():
    """128,000 pieces and 256 special tokens fill 128,256 rows; reserved_special_token_247 is the last."""
    reserved = range(128_011, 128_256)
    assert choose_rows(128_256, ids(128_256), {128_009, 128_004}, reserved) == RowChoice(
        128_254, 128_255, 128_256, "reserved"
    )
    assert choose_rows(128_256, ids(128_256), {128_255}, reserved).kind == "grown"  # the pad token of that model


def test_full_matrices_grow_to_the_next_multiple_of_64():
    """SmolLM2: 49,152 + 2 = 49,154 <= 769 * 64 = 49,216. Llama-2: 32,000 + 2 <= 501 * 64 = 32,064."""
    assert choose_rows(49_152, ids(49_152), (), ()) == RowChoice(49_152, 49_153, 49_216, "grown")
    assert choose_rows(32_000, ids(32_000), (), ()) == RowChoice(32_000, 32_001, 32_064, "grown")
    assert choose_rows(62, ids(62), (), ()).num_rows == 64
    assert choose_rows(63, ids(63), (), ()).num_rows == 128


def test_never_shrinks_never_takes_a_used_row():
    for rows, short in itertools.product(range(1, 140), range(5)):
        used = max(0, rows - short)
        for named in ((), (rows - 1,), (used,)):
            choice = choose_rows(rows, ids(used), named, (used - 2, used - 1))
            chosen = {choice.positive_id, choice.negative_id}
            assert len(chosen) == 2 and max(chosen) < choice.num_rows >= rows and not chosen.intersection(named)
            assert choice.kind == "reserved" or min(chosen) >= used
            assert choice.num_rows == rows or choice.num_rows % 64 == 0 and choice.num_rows < rows + 66


def test_holes_in_the_tokenizer_do_not_make_it_shorter():
    """Two texts, but the id 9: len(tokenizer) is 2, the first free row is 10."""
    assert choose_rows(12, {"a": 0, "b": 9}, (), ()) == RowChoice(10, 11, 12, "spare")


def test_a_tokenizer_longer_than_the_matrix_is_refused():
    with pytest.raises(ModelFilesError, match="the tokenizer has id 64, the embedding matrix 64 rows"):
        choose_rows(64, ids(65), (), ())


def test_record_round_trip(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 151936}')
    write_value_tokens(tmp_path, RECORD)
    assert read_value_tokens(tmp_path) == RECORD
    assert json.loads((tmp_path / "value_tokens.json").read_text()) == {
        "positive_id": 151665,
        "negative_id": 151666,
        "r_max": 10.0,
        "temperature": 0.125,
        "fingerprint": "8c1e",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positive_id": 151666}, "two different ids"),
        ({"positive_id": -1}, "two different ids"),
        ({"positive_id": True}, "two different ids"),
        ({"negative_id": 151936}, "id 151936, but config.json has vocab_size 151936"),
        ({"r_max": 0}, "must be numbers > 0"),
        ({"r_max": float("inf")}, "must be numbers > 0"),
        ({"temperature": "1"}, "must be numbers > 0"),
        ({"fingerprint": ""}, "fingerprint must be a text"),
        ({"surprise": 1}, "not a record of value tokens .*surprise"),
    ],
)
def test_a_wrong_record_is_refused(tmp_path, change, message):
    (tmp_path / "config.json").write_text('{"vocab_size": 151936}')
    write_value_tokens(tmp_path, RECORD)
    path = tmp_path / "value_tokens.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ModelFilesError, match=message):
        read_value_tokens(tmp_path)


def test_a_record_that_is_missing_or_torn(tmp_path):
    with pytest.raises(ModelFilesError, match="no value_tokens.json; run stages/reserve_vocab.py"):
        read_value_tokens(tmp_path)
    write_value_tokens(tmp_path, RECORD)
    text = (tmp_path / "value_tokens.json").read_text()
    for cut in range(len(text) - 1):
        (tmp_path / "value_tokens.json").write_text(text[:cut])
        with pytest.raises(ModelFilesError, match="value_tokens.json"):
            read_value_tokens(tmp_path)
    (tmp_path / "value_tokens.json").write_text('{"positive_id": 1}')
    with pytest.raises(ModelFilesError, match="not a record of value tokens .*missing"):
        read_value_tokens(tmp_path)
