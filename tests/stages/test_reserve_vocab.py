import hashlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.config import Config, ModelConfig, ValueConfig
from runtime.distributed import Distributed
from runtime.model import load_policy
from runtime.pretrained import load_tokenizer
from runtime.prompts import TemplateError
from runtime.vocabulary import read_value_tokens
from runtime.weight_files import ModelFilesError
from stages.reserve_vocab import run
from tests.model_folders import byte_model

ADAPTER = SimpleNamespace(vocabulary=lambda: ("go to shelf 1", "take mug 1 from shelf 2"))


def context(folder, name="tiny", seed=0, rank=0, chat_template=False, **value):
    model = ModelConfig(name=str(name), tiny_width=16, tiny_layers=1, tiny_heads=2, chat_template=chat_template)
    config = Config(model=model, value=ValueConfig(**value))
    config = replace(config, run=replace(config.run, seed=seed))
    distributed = replace(Distributed.single(), rank=rank)
    return SimpleNamespace(config=config, paths=SimpleNamespace(model=folder), distributed=distributed, adapter=ADAPTER)


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_tiny_run_gets_a_model_whose_values_are_zero(tmp_path):
    result = run(context(tmp_path / "run" / "model", r_max=4.0, temperature=0.5))
    folder = tmp_path / "run" / "model"
    tokens = read_value_tokens(folder)
    assert (tokens.r_max, tokens.temperature) == (4.0, 0.5)
    # go to shelf take mug from, 10 digits in two forms, 4 tags, 3 special tokens: 6 + 20 + 4 + 3 = 33
    assert (tokens.positive_id, tokens.negative_id) == (33, 34) and len(AutoTokenizer.from_pretrained(folder)) == 33
    assert result.counts["vocabulary_rows"] == 35 and result.counts["positive_id"] == 33
    assert set(result.seconds) == {"resolve_s", "reserve_s"}
    logits = AutoModelForCausalLM.from_pretrained(folder)(torch.arange(1, 33).view(2, 16)).logits
    assert not logits[..., 33:].any() and logits[..., 1:33].abs().min() > 0  # 0 is <pad>: also zero
    assert load_policy(folder, dtype="float32").value_tokens == tokens
    assert load_tokenizer(folder).encode("go to mug 1")
    assert [path.name for path in folder.parent.iterdir()] == ["model"]  # the scratch folder is gone


def test_the_run_seed_names_the_bytes(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(context(tmp_path / name, seed=seed))
    assert digests(tmp_path / "a") == digests(tmp_path / "b") != digests(tmp_path / "c")
    run(context(tmp_path / "a"))  # once more into the same folder
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_a_run_started_from_another_runs_model_keeps_the_ids(tmp_path):
    run(context(tmp_path / "first"))
    (tmp_path / "first" / "manifest.json").write_text("{}")
    run(context(tmp_path / "second", name=tmp_path / "first"))
    assert read_value_tokens(tmp_path / "second") == read_value_tokens(tmp_path / "first")
    assert digests(tmp_path / "second") == {
        k: v for k, v in digests(tmp_path / "first").items() if k != "manifest.json"
    }
    with pytest.raises(ModelFilesError, match="set value.temperature=1.0"):
        run(context(tmp_path / "third", name=tmp_path / "first", temperature=0.125))


def test_a_users_folder_is_left_as_it_was(tmp_path):
    source = byte_model(tmp_path / "source", 259, sharded=True)
    before = digests(source)
    run(context(tmp_path / "model", name=source))
    assert digests(source) == before and read_value_tokens(tmp_path / "model").positive_id == 259


def test_other_ranks_write_nothing(tmp_path):
    assert run(context(tmp_path / "model", rank=1)).counts == {}
    assert not (tmp_path / "model").exists()


def test_a_refused_model_leaves_no_folder(tmp_path):
    with pytest.raises(ModelFilesError, match="no folder"):
        run(context(tmp_path / "run" / "model", name=tmp_path / "none"))
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())


def test_a_template_that_cannot_render_is_refused_at_the_first_stage(tmp_path):
    source = byte_model(tmp_path / "source", 259)
    with pytest.raises(TemplateError, match="cannot render a user's message"):
        run(context(tmp_path / "model", name=source, chat_template=True))
    (source / "chat_template.jinja").write_text("{{ messages[0].content }}")
    run(context(tmp_path / "model", name=source, chat_template=True))
