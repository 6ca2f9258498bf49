"""Models of random weights for the benchmarks: Qwen2 shapes by name, and policies of them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from runtime.model import Policy
from runtime.vocabulary import ValueTokens


@dataclass(frozen=True)
class Shape:
    """A Qwen2 model with tied embeddings; its last two entries are the value tokens."""

    vocabulary: int
    width: int
    inner: int  # of the feed-forward part
    layers: int
    heads: int
    key_heads: int

    @property
    def value_ids(self) -> tuple[int, int]:
        return self.vocabulary - 2, self.vocabulary - 1


SHAPES = {
    "tiny": Shape(512, 64, 192, 2, 2, 2),  # the tiny preset's
    "3m": Shape(2048, 256, 512, 4, 4, 4),
    "21m": Shape(8192, 512, 1024, 6, 8, 8),
    "head": Shape(151_936, 128, 256, 2, 2, 2),  # Qwen2.5's vocabulary on next to nothing
    "qwen2.5-0.5b": Shape(151_936, 896, 4864, 24, 14, 2),
    "qwen2.5-1.5b": Shape(151_936, 1536, 8960, 28, 12, 2),
}


def make_model(shape: Shape, device: str = "cpu", dtype: str = "float32", stops: list[int] | None = None) -> object:
    """A Qwen2ForCausalLM of this shape in evaluation mode; seed 0.

    Args:
        stops: tokens that end a response; None: token 1.
    """
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=stops or [1],
        attn_implementation="sdpa",
    )
    with torch.device(device):
        return Qwen2ForCausalLM(config).to(getattr(torch, dtype)).eval()


def make_policy(shape: Shape, device: str = "cpu", dtype: str = "float32") -> Policy:
    """The same model as a policy at temperature 1."""
    tokens = ValueTokens(*shape.value_ids, r_max=1.0, temperature=1.0, fingerprint="random")
    return Policy(make_model(shape, device, dtype), tokens, 1.0).to(device)


def add_device_flags(parser: argparse.ArgumentParser) -> None:
    """--device and --dtype, the same in every script that takes them."""
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
