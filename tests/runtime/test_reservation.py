"""Reservation on real folders: transformers loads what comes out, and nothing but the value tokens has changed."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from runtime.model import load_policy
from runtime.reservation import reserve_value_tokens
from runtime.vocabulary import read_value_tokens
from runtime.weight_files import ModelFilesError
from tests.model_folders import BYTE_TOKENS, byte_model, sentencepiece_model

ROOT = Path(__file__).resolve().parents[2]


def reserve(source, target, r_max=10.0, temperature=1.0):
    return reserve_value_tokens(source, target, r_max, temperature)


def stored(folder):
    """All tensors of a folder, as safetensors itself reads them."""
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def logits(folder, ids):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(input_ids=ids).logits


def texts_to_try(tokenizer):
    """The text of every token, with neighbours, and random strings."""
    rng = random.Random(0)
    names = list(tokenizer.get_vocab())
    yield from names
    yield from (f"x{name} {name}" for name in names)
    yield from tokenizer.batch_decode([[i] for i in range(len(tokenizer) + 5)])
    yield from (f"<|reserved_special_token_{i}|>" for i in range(300))
    yield from ("<w+>", "<w->", "w+", "<unk>", "<pad>", "")
    for _ in range(500):
        yield "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0xD800)))) for _ in range(rng.randrange(20)))


CASES = {  # rows, reserved tokens in the tokenizer -> how, w+, w-, rows after
    "spare": (320, 0, "spare", 259, 260, 320),
    "exactly two spare": (261, 0, "spare", 259, 260, 261),
    # 259 ids + 6 reserved = 265 rows, all taken: the last two go, their texts become ordinary pieces
    "reserved": (265, 6, "reserved", 263, 264, 265),
    "one spare is not enough": (260, 0, "grown", 260, 261, 320),
    "full": (259, 0, "grown", 259, 260, 320),
    "full at a multiple": (320, 61, "reserved", 318, 319, 320),
}


@pytest.mark.parametrize("sharded", [False, True], ids=["single file", "sharded"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("case", CASES)
def test_only_the_value_rows_change(tmp_path, case, tied, sharded):
    rows, num_reserved, kind, plus, minus, rows_after = CASES[case]
    source = byte_model(tmp_path / "source", rows, num_reserved, tied=tied, sharded=sharded)
    target = tmp_path / "run" / "model"
    done = reserve(source, target)
    assert (done.kind, done.tokens.positive_id, done.tokens.negative_id) == (kind, plus, minus)
    assert json.loads((target / "config.json").read_text())["vocab_size"] == done.num_rows == rows_after

    before, after = stored(source), stored(target)
    head, embedding = ("lm_head.weight", "model.embed_tokens.weight")
    assert before.keys() == after.keys() and (head in after) == (not tied)
    for name, tensor in before.items():
        if name not in (head, embedding):
            assert torch.equal(after[name], tensor)
    readout = after[embedding if tied else head]
    assert readout.shape[0] == after[embedding].shape[0] == rows_after
    assert not readout[[plus, minus]].any()
    kept = [i for i in range(rows) if i not in (plus, minus)]
    for name in {head, embedding} & before.keys():
        assert torch.equal(after[name][kept], before[name][kept])

    ids = torch.tensor([[3, 100, 258, 7, 7, 31], [200, 1, 0, 250, 99, 5]])
    old, new = logits(source, ids), logits(target, ids)
    # a matrix product of another width may block its sums in another way; the rows themselves are equal bits
    torch.testing.assert_close(new[..., kept], old[..., kept], rtol=0, atol=0 if rows == rows_after else 1e-5)
    assert torch.equal(new[..., [plus, minus]], torch.zeros(2, 6, 2))  # V = Q = 0 after every context
    assert load_policy(target, dtype="float32").value_tokens == read_value_tokens(target) == done.tokens


@pytest.mark.parametrize("case", CASES)
def test_no_text_gives_a_value_token_and_no_other_id_moves(tmp_path, case):
    rows, num_reserved, _, plus, minus, _ = CASES[case]
    source = byte_model(tmp_path / "source", rows, num_reserved)
    reserve(source, tmp_path / "model")
    before, after = AutoTokenizer.from_pretrained(source), AutoTokenizer.from_pretrained(tmp_path / "model")
    removed = {before.convert_ids_to_tokens(i) for i in (plus, minus) if i < len(before)}
    for text in texts_to_try(before):
        ids = after.encode(text)
        assert not {plus, minus}.intersection(ids), text
        if not any(name in text for name in removed):
            assert ids == before.encode(text)
        assert after.decode(ids) == before.decode(before.encode(text)), text  # also as ordinary pieces
    assert (removed != set()) == (CASES[case][2] == "reserved")


def test_reserved_tokens_that_something_names_are_left_alone(tmp_path):
    source = byte_model(tmp_path / "source", 265, 6)
    (source / "generation_config.json").write_text('{"eos_token_id": [258, 264]}')
    assert reserve(source, tmp_path / "a").kind == "grown"
    (source / "generation_config.json").write_text("{}")
    (source / "chat_template.jinja").write_text("{{ messages[0].content }}<|reserved_special_token_5|>")
    assert reserve(source, tmp_path / "b").kind == "grown"
    (source / "chat_template.jinja").write_text("{{ messages[0].content }}<|reserved_special_token_3|>")
    assert reserve(source, tmp_path / "c").kind == "reserved"


def test_spare_rows_that_a_config_names_are_left_alone(tmp_path):
    source = byte_model(tmp_path / "source", 320)
    (source / "generation_config.json").write_text('{"pad_token_id": 259}')
    done = reserve(source, tmp_path / "model")
    assert (done.tokens.positive_id, done.tokens.negative_id) == (260, 261)


def test_rows_that_pad_a_grown_matrix_never_exceed_the_mean_probability(tmp_path):
    """The logit of a mean row is the mean logit: exp(mean z) <= mean exp z, so p <= 1/V (Jensen)."""
    source = byte_model(tmp_path / "source", 259, tied=False)
    reserve(source, tmp_path / "model")
    torch.testing.assert_close(
        stored(tmp_path / "model")["lm_head.weight"][261:],
        stored(source)["lm_head.weight"].mean(0).expand(59, -1),
        rtol=0,
        atol=1e-7,
    )
    z = logits(tmp_path / "model", torch.arange(250).view(10, 25))
    padding = z[..., 261:].exp() / z[..., :259].exp().sum(-1, keepdim=True)
    assert padding.max() <= 1 / 259 + 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_stored_dtype_stays(tmp_path, dtype):
    source = byte_model(tmp_path / "source", 259, dtype=dtype)
    reserve(source, tmp_path / "model")
    assert {tensor.dtype for tensor in stored(tmp_path / "model").values()} == {dtype}
    mean = stored(source)["model.embed_tokens.weight"].double().mean(0).to(dtype)
    assert torch.equal(stored(tmp_path / "model")["model.embed_tokens.weight"][300], mean)


def test_file_sizes_and_metadata_are_those_of_the_tensors(tmp_path):
    """Growing 259 rows of 16 float32 to 320 adds 61 * 16 * 4 = 3904 bytes of tensors to each matrix."""
    for tied, matrices in ((True, 1), (False, 2)):
        source = byte_model(tmp_path / f"{tied}", 259, tied=tied, sharded=True)
        target = tmp_path / f"{tied}-reserved"
        done = reserve(source, target)
        total = sum(tensor.nbytes for tensor in stored(target).values())
        assert total == sum(tensor.nbytes for tensor in stored(source).values()) + matrices * 3904
        index = json.loads((target / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == total
        assert index["metadata"]["total_parameters"] == total // 4
        rewritten = [path for path in target.glob("*.safetensors") if path.stat().st_nlink == 1]
        assert done.rewritten_bytes == sum(path.stat().st_size for path in rewritten)
        for path in target.glob("*.safetensors"):
            with safe_open(path, "pt") as opened:
                concerned = {"model.embed_tokens.weight", "lm_head.weight"}.intersection(opened.keys())
            assert bool(concerned) == (path in rewritten)  # the others are hard links
            assert path.samefile(source / path.name) != bool(concerned)


def test_with_spare_rows_an_untied_embedding_is_not_rewritten(tmp_path):
    source = byte_model(tmp_path / "source", 320, tied=False, sharded=True)
    reserve(source, tmp_path / "model")
    index = json.loads((source / "model.safetensors.index.json").read_text())["weight_map"]
    head, embedding = index["lm_head.weight"], index["model.embed_tokens.weight"]
    assert head != embedding and (tmp_path / "model" / embedding).samefile(source / embedding)
    assert not (tmp_path / "model" / head).samefile(source / head)


def test_a_tied_model_that_stores_its_head_too_gets_both_edited(tmp_path):
    source = byte_model(tmp_path / "source", 320)
    tensors = stored(source)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, source / "model.safetensors")
    reserve(source, tmp_path / "model")
    after = stored(tmp_path / "model")
    assert torch.equal(after["lm_head.weight"], after["model.embed_tokens.weight"])
    assert not after["lm_head.weight"][259:261].any()


def test_a_model_that_was_reserved_before_keeps_ids_and_trained_rows(tmp_path):
    first = reserve(byte_model(tmp_path / "source", 259, tied=False), tmp_path / "first")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "first")
    with torch.no_grad():
        model.get_output_embeddings().weight[first.tokens.positive_id] = 0.5  # it has learned
    model.save_pretrained(tmp_path / "export")
    for name in ("tokenizer.json", "tokenizer_config.json", "value_tokens.json"):
        shutil.copyfile(tmp_path / "first" / name, tmp_path / "export" / name)
    (tmp_path / "export" / "manifest.json").write_text("{}")
    again = reserve(tmp_path / "export", tmp_path / "second")
    assert (again.kind, again.tokens, again.rewritten_bytes, again.num_rows) == ("kept", first.tokens, 0, 320)
    assert (tmp_path / "second" / "model.safetensors").samefile(tmp_path / "export" / "model.safetensors")
    assert not (tmp_path / "second" / "manifest.json").exists()  # another run's
    with pytest.raises(ModelFilesError, match=r"trained with r_max 10.0.*set value.r_max=10.0, or delete value_tokens"):
        reserve(tmp_path / "export", tmp_path / "third", r_max=5.0)
    assert not (tmp_path / "third").exists()
    (tmp_path / "export" / "value_tokens.json").unlink()  # the remedy of that message: 61 rows are spare now
    afresh = reserve(tmp_path / "export", tmp_path / "third", r_max=5.0)
    assert afresh.kind == "spare" and not stored(tmp_path / "third")["lm_head.weight"][[259, 260]].any()


def test_a_second_run_into_the_same_folder_replaces_it_with_equal_bytes(tmp_path):
    source = byte_model(tmp_path / "source", 259)
    reserve(source, tmp_path / "model")
    first = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    (tmp_path / "model" / "left_by_a_killed_attempt").write_text("x")
    reserve(source, tmp_path / "model")
    assert first == {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "source"]  # no temporaries


def test_sentencepiece_models_grow(tmp_path):
    source = sentencepiece_model(tmp_path / "source")
    rows = json.loads((source / "config.json").read_text())["vocab_size"]
    done = reserve(source, tmp_path / "model")
    assert done.kind == "grown" and done.num_rows == -(-(rows + 2) // 64) * 64
    before, after = AutoTokenizer.from_pretrained(source), AutoTokenizer.from_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "tokenizer.model").read_bytes() == (source / "tokenizer.model").read_bytes()
    assert len(before.encode("the mug is on the desk")) < 15  # it is no byte tokenizer
    for text in texts_to_try(before):
        assert after.encode(text) == before.encode(text)
        assert max(after.encode(text), default=0) < rows <= done.tokens.positive_id
    assert logits(tmp_path / "model", torch.tensor([[1, 5, 9]])).shape[-1] == done.num_rows


def test_everything_beside_the_weights_comes_along_and_pickles_do_not(tmp_path):
    source = byte_model(tmp_path / "source", 320)
    (source / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    (source / "LICENSE").write_text("free")
    (source / "pytorch_model.bin").write_bytes(b"x")
    (source / "consolidated.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool.jinja").write_text("t")
    reserve(source, tmp_path / "model")
    assert sorted(p.relative_to(tmp_path / "model").as_posix() for p in (tmp_path / "model").rglob("*")) == [
        "LICENSE",
        "additional_chat_templates",
        "additional_chat_templates/tool.jinja",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "value_tokens.json",
    ]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi!"


def only_bin(source):
    (source / "model.safetensors").rename(source / "pytorch_model.bin")


def too_long_tokenizer(source):
    shutil.copytree(source, source / "long")
    byte_model(source / "long", 400, 100)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / "long" / name, source / name)


def other_config(source):
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "vocab_size": 300}))


def quantised(source):
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))


def set_config(**fields):
    def spoil(source):
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps({**config, **fields}))

    return spoil


def no_end_token(source):
    config = json.loads((source / "tokenizer_config.json").read_text())
    kept = {key: value for key, value in config.items() if key not in ("eos_token", "pad_token")}
    (source / "tokenizer_config.json").write_text(json.dumps(kept))


def truncate(source):
    os.truncate(source / "model.safetensors", (source / "model.safetensors").stat().st_size - 1)


DAMAGES = {
    "no weights": (lambda s: (s / "model.safetensors").unlink(), "no model.safetensors and no .*index"),
    "pickled only": (only_bin, "only pickled weights .pytorch_model.bin.*save_pretrained as safetensors"),
    "truncated": (truncate, "model.safetensors: .*truncated"),
    "no config": (lambda s: (s / "config.json").unlink(), "config"),
    "torn config": (lambda s: (s / "config.json").write_text('{"vocab'), "config.json: cannot be read as JSON"),
    "config not UTF-8": (lambda s: (s / "config.json").write_bytes(b"\xff{}"), "config.json: cannot be read as JSON"),
    "torn tokenizer": (lambda s: (s / "tokenizer.json").write_text('{"mo'), "tokenizer.json: cannot be read as JSON"),
    "empty tokenizer": (lambda s: (s / "tokenizer.json").write_text("{}"), "tokenizer"),
    "no tokenizer": (
        lambda s: [p.unlink() for p in s.glob("tokenizer*")],
        "tokenizer",
    ),
    "other config": (other_config, r"shape \[320, 16\], config.json says vocab_size 300"),
    "config of a wider layer": (
        set_config(intermediate_size=64),
        r"tensor model.layers.0.mlp.\w+_proj.weight has shape \(.*, the model \(.*; use its own files",
    ),
    "config of more layers": (
        set_config(num_hidden_layers=3),
        "tensor model.layers.2.* is missing; copy the model again",
    ),
    "config that contradicts itself": (
        set_config(num_attention_heads=3),
        "no config.json that transformers understands .*heads",
    ),
    "config of an unknown kind": (set_config(model_type="nosuch"), "no config.json that transformers understands"),
    "no end of turn": (no_end_token, "the tokenizer has no eos_token, which ends a turn; name one in its config"),
    "quantised": (quantised, "config.json has a quantization_config; use a model that is not quantised"),
    "tokenizer too long": (too_long_tokenizer, "the tokenizer has id 358, the model 320 rows"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line_and_nothing_is_left(tmp_path, damage):
    source = byte_model(tmp_path / "source", 320)
    assert BYTE_TOKENS + 100 - 1 == 358
    spoil, message = DAMAGES[damage]
    spoil(source)
    with pytest.raises(ModelFilesError, match=message) as caught:
        reserve(source, tmp_path / "model")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_an_index_that_names_what_is_not_there(tmp_path):
    source = byte_model(tmp_path / "source", 320, sharded=True)
    shards = sorted(source.glob("*.safetensors"))
    shards[-1].rename(tmp_path / "away")
    with pytest.raises(ModelFilesError, match=f"shard {shards[-1].name} of model.safetensors.index.json is missing"):
        reserve(source, tmp_path / "model")
    shutil.copyfile(shards[0], shards[-1])
    with pytest.raises(ModelFilesError, match="lacks tensor"):
        reserve(source, tmp_path / "model")


def test_a_folder_that_is_not_there_or_is_the_target(tmp_path):
    with pytest.raises(ModelFilesError, match="no such model folder"):
        reserve(tmp_path / "none", tmp_path / "model")
    source = byte_model(tmp_path / "source", 320)
    with pytest.raises(ModelFilesError, match="in place"):
        reserve(source, source)


MEASURE = """
import resource, sys
from pathlib import Path
from runtime.reservation import reserve_value_tokens
small, large, target = map(Path, sys.argv[1:])
reserve_value_tokens(small, target / "small", 10.0, 1.0)  # imports and buffers are there before the measurement
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
done = reserve_value_tokens(large, target / "large", 10.0, 1.0)
growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(done.kind, done.num_rows, done.rewritten_bytes, growth * 1024)
"""


def made_up_checkpoint(folder, rows, width, shard_bytes, shards):
    """A sharded bf16 checkpoint of holes: full size for its readers, no time and no disk to make."""
    byte_model(folder, 259)
    config = json.loads((folder / "config.json").read_text())
    config |= {"vocab_size": rows, "hidden_size": width, "tie_word_embeddings": True, "num_hidden_layers": shards}
    config["intermediate_size"] = shard_bytes // (3 * 2 * width)  # three matrices of bf16 a layer
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").unlink()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    headers, weight_map = defaultdict(dict), {}
    for name, parameter in model.named_parameters():
        header = headers["-".join(name.split(".")[1:3])]  # embed_tokens-weight, layers-0, ..., norm-weight
        start = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        shape, end = list(parameter.shape), start + 2 * parameter.numel()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    for shard, header in headers.items():
        text = json.dumps(header).encode()
        path = folder / f"model-{shard}.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        os.truncate(path, 8 + len(text) + max(entry["data_offsets"][1] for entry in header.values()))
        weight_map |= dict.fromkeys(header, path.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def test_peak_memory_is_a_piece_not_the_model(tmp_path):
    """600 MB in 4 shards, an embedding of 49,152 * 1,536 * 2 = 151 MB that grows: twice that is allowed."""
    small = byte_model(tmp_path / "small", 259)
    large = made_up_checkpoint(tmp_path / "large", 49_152, 1536, 150_000_000, 3)
    # every row below 49,152 is made taken by name, so that the matrix has to grow
    (large / "generation_config.json").write_text(json.dumps({"suppressed_token_id": list(range(259, 49_152))}))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, small, large, tmp_path / "out"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    kind, rows, rewritten, growth = done.stdout.split()[-4:]
    embedding = 49_216 * 1536 * 2
    assert (kind, int(rows)) == ("grown", 49_216)
    assert embedding < int(rewritten) < embedding + 1000  # one shard written, 450 MB linked
    assert int(growth) < embedding, f"{int(growth) / 1e6:.0f} MB"
