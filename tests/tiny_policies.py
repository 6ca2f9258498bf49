"""Tiny random models in memory and on disk, for tests."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from runtime.model import Policy
from runtime.vocabulary import ValueTokens, write_value_tokens

VOCABULARY = 37
POSITIVE, NEGATIVE = 35, 36


def value_tokens(r_max: float = 10.0, temperature: float = 1.0) -> ValueTokens:
    return ValueTokens(
        positive_id=POSITIVE, negative_id=NEGATIVE, r_max=r_max, temperature=temperature, fingerprint="test"
    )


def causal_lm(family: str = "qwen2", tied: bool = True, seed: int = 0, width: int = 16) -> torch.nn.Module:
    """Weights large enough that the logits differ clearly."""
    config_class, model_class = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}[
        family
    ]
    config = config_class(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(seed)
    return model_class(config).eval()


def policy(
    family: str = "qwen2", tied: bool = True, seed: int = 0, temperature: float = 1.0, value_temperature: float = 1.0
) -> Policy:
    return Policy(causal_lm(family, tied, seed), value_tokens(temperature=value_temperature), temperature)


def save_policy(model: torch.nn.Module, directory: Path, r_max: float = 10.0, max_shard_size: str = "1GB") -> None:
    """A policy folder without a tokenizer."""
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    write_value_tokens(directory, value_tokens(r_max))
