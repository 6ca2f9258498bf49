"""Small models on disk with real tokenizers of three kinds, as a user's folder would hold them."""

from __future__ import annotations

import json
from pathlib import Path

import sentencepiece
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

TEXT = "the mug is on the desk and you go to the shelf to take a cup of tea "
END = "<|end|>"


def byte_tokenizer(num_reserved: int = 0) -> PreTrainedTokenizerFast:
    """Byte-level BPE as Llama-3 and Qwen have it: 256 bytes, `th`, `the`, `<|end|>`, then reserved special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: i for i, text in enumerate([*letters, "th", "the"])}
    core = Tokenizer(models.BPE(vocabulary, [("t", "h"), ("th", "e")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    names = [END, *(f"<|reserved_special_token_{i}|>" for i in range(num_reserved))]
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END, pad_token=END)


BYTE_TOKENS = 259  # 256 bytes, th, the, <|end|>


def save_model(
    folder: Path,
    rows: int,
    *,
    family: str = "llama",
    tied: bool = True,
    sharded: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Random weights, large enough that logits differ clearly."""
    config_class, model_class = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}[
        family
    ]
    config = config_class(
        vocab_size=rows,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=258,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    model = model_class(config).to(dtype)
    model.save_pretrained(folder, max_shard_size="12KB" if sharded else "1GB")
    assert (folder / "model.safetensors.index.json").exists() == sharded
    return folder


def byte_model(folder: Path, rows: int, num_reserved: int = 0, **options) -> Path:
    save_model(folder, rows, **options)
    byte_tokenizer(num_reserved).save_pretrained(folder)
    return folder


def sentencepiece_model(folder: Path, rows: int | None = None) -> Path:
    """A Llama with nothing but a `tokenizer.model`, trained here on a few sentences. Returns the folder."""
    folder.mkdir(parents=True)
    corpus = folder / "corpus"
    corpus.write_text("\n".join(TEXT * (n % 3 + 1) for n in range(50)), "utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    corpus.unlink()
    (folder / "tokenizer.vocab").unlink()
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model")).get_piece_size()
    save_model(folder, rows or pieces)
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder
