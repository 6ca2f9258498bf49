from __future__ import annotations

import json

import pytest
import torch

from runtime.deepspeed_settings import deepspeed_config
from runtime.engine import learning_rate_at
from runtime.engine_files import (
    EngineError,
    check_state_record,
    copy_companions,
    read_state_record,
    write_state_record,
)
from runtime.parameter_groups import decay_groups


def test_learning_rate_worked_by_hand():
    # warm-up of 4 updates to 0.8: 0.2, 0.4, 0.6, 0.8, then constant
    found = [learning_rate_at(update, 0.8, 4) for update in range(6)]
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8], rel=1e-15)
    assert learning_rate_at(0, 0.8, 0) == 0.8


def test_norms_and_biases_do_not_decay():
    layer, norm = torch.nn.Linear(2, 3), torch.nn.LayerNorm(3)
    partitioned = torch.nn.Parameter(torch.empty(0))
    partitioned.ds_shape = torch.Size([4, 5])  # a matrix whose values are elsewhere
    named = [*layer.named_parameters(), *norm.named_parameters(), ("head", partitioned)]
    decayed, plain = decay_groups(named, 0.1)
    assert decayed["weight_decay"] == 0.1 and plain["weight_decay"] == 0.0
    assert [id(p) for p in decayed["params"]] == [id(layer.weight), id(partitioned)]
    assert [id(p) for p in plain["params"]] == [id(layer.bias), id(norm.weight), id(norm.bias)]


def test_an_empty_group_is_left_out():
    assert len(decay_groups(torch.nn.Linear(2, 3, bias=False).named_parameters(), 0.1)) == 1


def test_configuration_holds_what_was_asked_for():
    config = deepspeed_config(
        zero_stage=3,
        dtype="bfloat16",
        max_grad_norm=0.5,
        offload_optimizer=True,
        offload_parameters=True,
        device="cuda",
    )
    assert config["gradient_clipping"] == 0.5
    assert config["bf16"]["enabled"] and config["data_types"] == {"grad_accum_dtype": "fp32"}
    zero = config["zero_optimization"]
    assert (zero["stage"], zero["overlap_comm"]) == (3, True)
    assert zero["offload_optimizer"]["device"] == zero["offload_param"]["device"] == "cpu"
    assert "bf16" not in deepspeed_config(zero_stage=1, dtype="float32", max_grad_norm=1.0)
    json.dumps(config)  # the dry run prints it


def make_state(folder):
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "rank0.pt").write_bytes(b"12345")
    write_state_record(folder, world_size=2, zero_stage=3, dtype="float32", num_updates=7, skipped_steps=0)
    return folder


def spoil(folder, **facts):
    record = json.loads((folder / "engine.json").read_text())
    (folder / "engine.json").write_text(json.dumps(record | facts))


def test_state_record_round_trip(tmp_path):
    record = read_state_record(make_state(tmp_path / "engine"))
    assert record["num_updates"] == 7 and record["files"] == {"state/rank0.pt": 5}


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: (f / "state/rank0.pt").write_bytes(b"1234"), r"rank0.pt: has 4 bytes, 5 bytes were written; delete"),
        (lambda f: (f / "state/rank0.pt").unlink(), r"rank0.pt: is missing, 5 bytes were written"),
        (lambda f: (f / "engine.json").unlink(), r"engine: no engine checkpoint"),
        (lambda f: (f / "engine.json").write_text('{"schema": 1, '), r"engine: no engine checkpoint"),
        (lambda f: (f / "engine.json").write_text('{"schema": 2}'), r"of another version"),
        (lambda f: (f / "engine.json").write_text('{"schema": 1}'), r"engine.json is damaged"),
        (lambda f: spoil(f, num_updates="7"), r"damaged \(Expected `int`, got `str` - at `\$.num_updates`\)"),
        (lambda f: spoil(f, files={"../rank0.pt": 5}), r"lists '../rank0.pt', which is not below that folder"),
        (lambda f: spoil(f, files={"/etc/passwd": 5}), r"lists '/etc/passwd', which is not below that folder"),
        (lambda f: (f / "engine.json").write_text("[" * 100_000), r"no engine checkpoint"),
    ],
)
def test_a_damaged_state_is_refused_by_name(tmp_path, harm, message):
    folder = make_state(tmp_path / "engine")
    harm(folder)
    with pytest.raises(EngineError, match=message):
        read_state_record(folder)


def test_another_stage_is_refused(tmp_path):
    record = read_state_record(make_state(tmp_path / "engine"))
    check_state_record(record, tmp_path, zero_stage=3, dtype="float32")
    with pytest.raises(EngineError, match="written with zero_stage 3, asked for 1; use 3"):
        check_state_record(record, tmp_path, zero_stage=1, dtype="float32")


def test_companions_are_all_but_the_weights(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir(), target.mkdir()
    for name in (
        "tokenizer.json",
        "value_tokens.json",
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
    ):
        (source / name).write_text("old")
    (target / "config.json").write_text("new")
    copy_companions(source, target)
    assert {path.name: path.read_text() for path in target.iterdir()} == {
        "tokenizer.json": "old", "value_tokens.json": "old", "config.json": "new"
    }  # fmt: skip
