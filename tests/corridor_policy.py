"""A random tiny model and a word-level tokenizer that speak the corridor's language."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from runtime.generation import TransformersGenerator
from runtime.vocabulary import ValueTokens, write_value_tokens
from tests.corridor import ACTIONS, CorridorAdapter

SPECIALS = ["<pad>", "<end>", "<unknown>", "<plus>", "<minus>"]


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = list(dict.fromkeys(" ".join(CorridorAdapter(CorridorAdapter.Options()).vocabulary()).split()))
    vocabulary = {word: index for index, word in enumerate(SPECIALS + words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>"
    )


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, attn_implementation="sdpa",
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(3)  # else every distribution is flat
    return model


def make_generator(
    model, tokenizer, slots: int = 4, max_response: int = 2, temperature: float = 1.0
) -> TransformersGenerator:
    """Speaks in single actions and full stops only, so that a random model walks the corridor."""
    speakable = {tokenizer.eos_token_id, *(tokenizer.convert_tokens_to_ids(word) for word in ACTIONS)}
    banned = [index for index in range(len(tokenizer)) if index not in speakable]
    return TransformersGenerator(model, slots, 96, max_response, temperature, banned, [tokenizer.eos_token_id])


def make_policy_folder(folder: Path, seed: int = 0) -> None:
    """A policy as the pipeline keeps it. Its head favours the three actions and the end, else it would only babble."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed)
    with torch.no_grad():
        head = torch.zeros_like(model.lm_head.weight)
        speakable = [tokenizer.eos_token_id, *(tokenizer.convert_tokens_to_ids(word) for word in ACTIONS)]
        head[speakable] = torch.randn(len(speakable), head.shape[1], generator=torch.Generator().manual_seed(seed)) * 4
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(head)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    plus, minus = tokenizer.convert_tokens_to_ids(["<plus>", "<minus>"])
    write_value_tokens(folder, ValueTokens(plus, minus, r_max=10.0, temperature=1.0, fingerprint="test"))
