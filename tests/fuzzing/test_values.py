"""Readers against whatever hypothesis makes up: any JSON value in any place, any bytes or text; the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from env_adapters.responses import format_response, parse_response
from env_adapters.webshop.shop import parse_action
from pipeline.config import ConfigError
from pipeline.config_loading import apply_settings, build_config, parse_setting
from pipeline.faults import printable
from runtime.records import RecordError, from_json, to_json
from runtime.shards import read_shards, to_line
from tests.fuzzing.environment_readers import alfworld, hostile_responses, webshop
from tests.fuzzing.mutations import places, with_value
from tests.fuzzing.reader import is_one_line
from tests.model_folders import byte_tokenizer
from tests.trajectories import trajectory
from tests.whole_run import SETTINGS

LINE = json.loads(to_line(to_json(trajectory("train/a", 2)), "sample"))
ANY_TEXT = st.text(st.characters())  # lone surrogates, NUL and marks included
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


def tried(max_examples: int) -> settings:
    return settings(
        max_examples=max_examples, derandomize=True, deadline=None, database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )  # fmt: skip


@tried(400)
@given(st.sampled_from(list(places(LINE))), ANY_JSON)
def test_a_record_with_any_value_in_any_place_is_whole_or_refused(place, value):
    try:
        found = from_json(with_value(LINE, place, value), "shard:1")
    except RecordError as fault:
        assert is_one_line(printable(str(fault))) and str(fault).startswith("shard:1: ")
        return
    try:
        line = to_line(to_json(found), "again")
    except RecordError:  # a payload with NaN in it, which no adapter's task may hold
        assert place[0] == "task"
        return
    assert from_json(json.loads(line), "shard:1") == found


@tried(200)
@given(st.binary(max_size=200))
def test_a_shard_of_any_bytes_is_read_or_refused(tmp_path, content):
    Path(tmp_path / "rank-00000.jsonl").write_bytes(content)
    try:
        assert read_shards(tmp_path).trajectories == ()
    except RecordError as fault:
        assert is_one_line(printable(str(fault)))


@tried(150)
@given(st.sampled_from(list(places(SETTINGS))), ANY_JSON)
def test_settings_of_any_value_are_checked(place, value):
    try:
        build_config(with_value(SETTINGS, place, value))
    except ConfigError as fault:
        assert str(fault)


@tried(300)
@given(ANY_TEXT)
def test_set_with_any_text(text):
    try:
        build_config(apply_settings(SETTINGS, [parse_setting(text)]))
    except ConfigError as fault:
        assert str(fault)


@tried(500)
@given(ANY_TEXT, st.booleans(), st.booleans())
def test_any_text_is_an_action_or_none(text, lower, think_tags):
    parsed = parse_response(text, lower=lower, think_tags=think_tags)
    assert parsed.valid == bool(parsed.action) and len(parsed.action) <= 300
    if parsed.valid:
        assert parse_response(format_response(parsed.action), lower=lower).valid
    parse_action(text)


@tried(300)
@given(st.lists(st.integers(0, 258), max_size=40))
def test_tokens_that_decode_to_broken_utf8_are_stored_as_they_were_sampled(ids):
    """Byte tokens cut anywhere: the text has replacement signs, the ids survive the shard."""
    text = TOKENIZER.decode(ids)
    parsed = parse_response(text)
    tokens = {"response_ids": [*ids, 258], "sampling_logprobs": [-1.0] * (len(ids) + 1)}
    record = LINE["turns"][0] | {"response": text, "action": parsed.action} | tokens
    line = to_line({**LINE, "turns": [record, LINE["turns"][1]]}, "sample")
    found = from_json(json.loads(line), "shard:1").turns[0]
    assert found.response_ids == (*ids, 258) and found.response == text


TOKENIZER = byte_tokenizer()


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    root = tmp_path_factory.mktemp("environments")
    return {"alfworld": alfworld(root / "games", source="generated"), "webshop": webshop(root / "shop")}


@pytest.mark.parametrize("name", ["alfworld", "webshop"])
def test_environments_answer_every_response(environments, name):
    """Tags nested, missing and repeated, 100 kB texts, surrogates, NUL: an observation, never a crash or a reward."""
    adapter = environments[name]
    environment, task = adapter.make(), adapter.tasks("train")[0]
    environment.reset(task)
    answered = {True: 0, False: 0}
    for response in hostile_responses(name, 300):
        result = environment.step(response)
        answered[result.valid] += 1
        assert isinstance(result.observation.text, str) and result.action == result.action.strip()
        assert not result.success and result.reward == 0.0
        if result.terminated:  # bought something by accident
            environment.reset(task)
    assert min(answered.values()) > 10
