"""Policies from and to folders: what is loaded, what is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, PreTrainedTokenizerFast

from runtime.microbatches import token_batch
from runtime.model import Policy, load_policy, resident_replica
from runtime.pretrained import load_tokenizer
from runtime.records import Row
from runtime.weight_files import ModelFilesError, policy_fingerprint
from tests.tiny_policies import causal_lm, save_policy, value_tokens

BATCH = token_batch(
    [
        Row(key="a#0", turn_index=0, input_ids=(3, 4, 5, 6, 7), spans=((2, 5),)),
        Row(key="b#0", turn_index=0, input_ids=(9, 8), spans=((1, 2),)),
    ]
)
MODELS = [("qwen2", True), ("qwen2", False), ("llama", True), ("llama", False)]


@pytest.mark.parametrize(("family", "tied"), MODELS)
@pytest.mark.parametrize("shard_size", ["1GB", "4KB"])
def test_a_saved_policy_is_loaded_to_the_bit(tmp_path, family, tied, shard_size):
    model = causal_lm(family, tied)
    save_policy(model, tmp_path, max_shard_size=shard_size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard_size == "4KB")
    loaded = load_policy(tmp_path, dtype="float32", temperature=0.6)
    assert loaded.temperature == 0.6 and loaded.value_tokens == value_tokens()
    for got, expected in zip(loaded(BATCH), Policy(model, value_tokens(), 0.6)(BATCH), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize(("family", "tied"), MODELS)
@pytest.mark.parametrize("shard_size", ["1GB", "4KB"])
def test_load_weights_refreshes_in_place(tmp_path, family, tied, shard_size):
    save_policy(causal_lm(family, tied, seed=0), tmp_path / "0")
    save_policy(causal_lm(family, tied, seed=1), tmp_path / "1", max_shard_size=shard_size)
    replica = load_policy(tmp_path / "0", dtype="float32")
    before = {name: p.data_ptr() for name, p in replica.named_parameters()}
    replica.load_weights(tmp_path / "1")
    assert {name: p.data_ptr() for name, p in replica.named_parameters()} == before
    for got, expected in zip(replica(BATCH), load_policy(tmp_path / "1", dtype="float32")(BATCH), strict=True):
        assert torch.equal(got, expected)
    shared = replica.causal_lm.get_output_embeddings().weight is replica.causal_lm.get_input_embeddings().weight
    assert shared == tied


@pytest.mark.parametrize("tied", [True, False])
def test_what_the_policy_saves_plain_transformers_load(tmp_path, tied):
    policy = Policy(causal_lm("llama", tied), value_tokens(), 1.0)
    policy.causal_lm.save_pretrained(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[3, 4, 5]])
    assert torch.equal(plain(input_ids=ids).logits, policy.causal_lm(input_ids=ids).logits)
    stored = sum(x.numel() for path in tmp_path.glob("*.safetensors") for x in load_file(path).values())
    assert stored == sum(p.numel() for p in policy.parameters())


def refused(folder, match: str) -> None:
    with pytest.raises(ModelFilesError, match=match) as caught:
        load_policy(folder, dtype="float32")
    assert "\n" not in str(caught.value).strip()[:200]
    with pytest.raises(ModelFilesError):
        policy_and_refresh(folder)


def policy_and_refresh(folder) -> None:
    """A replica that is refreshed from the folder must refuse it too."""
    Policy(causal_lm(tied=False), value_tokens(), 1.0).load_weights(folder)


def test_no_weights_and_pickled_weights(tmp_path):
    save_policy(causal_lm(tied=False), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    refused(tmp_path, "no model.safetensors")
    torch.save(weights, tmp_path / "pytorch_model.bin")
    refused(tmp_path, "only pickled weights")


def test_a_missing_shard(tmp_path):
    save_policy(causal_lm(tied=False), tmp_path, max_shard_size="4KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    refused(tmp_path, f"shard {shard.name} .* is missing")


@pytest.mark.parametrize("kept", [0, 5, 1000, -1])
def test_a_truncated_shard(tmp_path, kept):
    save_policy(causal_lm(tied=False), tmp_path, max_shard_size="4KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:kept])
    refused(tmp_path, f"{shard.name}: .*truncated")


def test_a_missing_tensor_is_not_made_up(tmp_path):
    save_policy(causal_lm(tied=False), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    refused(tmp_path, "up_proj.weight is missing")


def test_weights_of_another_size_change_nothing(tmp_path):
    save_policy(causal_lm(tied=False, width=32), tmp_path)
    replica = Policy(causal_lm(tied=False), value_tokens(), 1.0)
    before = {name: x.clone() for name, x in replica.state_dict().items()}
    with pytest.raises(ModelFilesError, match="shape"):
        replica.load_weights(tmp_path)
    assert all(torch.equal(x, before[name]) for name, x in replica.state_dict().items())


def test_a_damaged_index_and_a_missing_config(tmp_path):
    save_policy(causal_lm(tied=False), tmp_path, max_shard_size="4KB")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    refused(tmp_path, "index")
    save_policy(causal_lm(tied=False), tmp_path / "second")
    (tmp_path / "second" / "config.json").unlink()
    with pytest.raises(ModelFilesError, match="config.json"):
        load_policy(tmp_path / "second", dtype="float32")


def test_models_that_change_logits_after_the_head_are_refused(tmp_path):
    config = Gemma2Config(
        vocab_size=37, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=8, final_logit_softcapping=30.0,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config)
    with pytest.raises(ModelFilesError, match="final_logit_softcapping = 30.0"):
        Policy(model, value_tokens(), 1.0)
    save_policy(model, tmp_path)
    with pytest.raises(ModelFilesError, match="final_logit_softcapping = 30.0"):
        load_policy(tmp_path, dtype="float32")
    config = json.loads((tmp_path / "config.json").read_text()) | {"final_logit_softcapping": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    load_policy(tmp_path, dtype="float32")  # without the cap it is as good as any


def test_fingerprints_tell_weights_apart_and_nothing_else(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        save_policy(causal_lm(seed=seed), tmp_path / name)
    (tmp_path / "b" / "note.txt").write_text("x")
    a, b, c = (policy_fingerprint(tmp_path / name) for name in "abc")
    assert a == b != c
    weights = load_file(tmp_path / "a" / "model.safetensors")
    weights["model.norm.weight"][3] += 1e-6
    save_file(weights, tmp_path / "a" / "model.safetensors", metadata={"format": "pt"})
    assert policy_fingerprint(tmp_path / "a") != b


def test_the_resident_replica_is_kept_refreshed_or_loaded(tmp_path):
    save_policy(causal_lm(seed=0), tmp_path / "0")
    save_policy(causal_lm(seed=1), tmp_path / "1")
    resident = SimpleNamespace(replica=None, replica_policy=None)
    prints = [policy_fingerprint(tmp_path / name) for name in "01"]

    def replica(version: int, temperature: float = 1.0) -> Policy:
        return resident_replica(
            resident, tmp_path / str(version), prints[version],
            dtype="float32", attention="sdpa", temperature=temperature, device="cpu",
        )  # fmt: skip

    first = replica(0)
    assert resident.replica is first and resident.replica_policy == prints[0]
    assert not first.training and not any(p.requires_grad for p in first.parameters())
    (tmp_path / "0" / "model.safetensors").rename(tmp_path / "gone")
    assert replica(0, 0.6) is first and first.temperature == 0.6  # same weights: nothing is read
    assert replica(1) is first and resident.replica_policy == prints[1]
    for got, expected in zip(first(BATCH), load_policy(tmp_path / "1", dtype="float32")(BATCH), strict=True):
        assert torch.equal(got, expected)
    with pytest.raises(ModelFilesError):
        replica(0)
    assert resident.replica_policy is None  # nothing half-loaded passes for a policy


def save_tokenizer(directory, num_words: int) -> None:
    words = {f"w{index}": index for index in range(num_words)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="w0").save_pretrained(directory)


def test_a_tokenizer_must_be_there_and_fit_the_model(tmp_path):
    save_policy(causal_lm("llama"), tmp_path)  # for Qwen2 transformers 5 insists on its own tokenizer class
    with pytest.raises(ModelFilesError, match="no tokenizer"):
        load_tokenizer(tmp_path)
    save_tokenizer(tmp_path, 35)
    assert load_tokenizer(tmp_path)("w3 w34")["input_ids"] == [3, 34]
    save_tokenizer(tmp_path, 40)
    with pytest.raises(ModelFilesError, match="id 39, the model 37 rows"):
        load_tokenizer(tmp_path)


def test_attention_implementations_agree_and_bfloat16_reads_out_in_float32(tmp_path):
    save_policy(causal_lm(), tmp_path)
    expected = load_policy(tmp_path, dtype="float32", attention="sdpa")(BATCH)
    for got, other in zip(load_policy(tmp_path, dtype="float32", attention="eager")(BATCH), expected, strict=True):
        torch.testing.assert_close(got, other, rtol=0, atol=5e-6)
    half = load_policy(tmp_path, dtype="bfloat16")
    output = half(BATCH)
    sum(x.sum() for x in output).backward()
    assert {x.dtype for x in output} == {torch.float32}
    assert all(p.dtype == torch.bfloat16 and torch.isfinite(p.grad).all() for p in half.parameters())
    torch.testing.assert_close(output.logprobs, expected.logprobs, rtol=0, atol=0.3)
