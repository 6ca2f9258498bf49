"""The door to transformers: models and tokenizers as folders on disk. Nothing else of this project imports it.

Models are built and read here, never downloaded (`runtime.sources` does that), and weights come from safetensors only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.utils import logging as transformers_logging

from runtime.files import in_one_line
from runtime.weight_files import ModelFilesError

TOKENIZER_FILES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken")


def load_config(directory: Path) -> Any:
    """What config.json says, as transformers understands it.

    Raises:
        ModelFilesError: there is none, or it says nothing to transformers.
    """
    try:
        return AutoConfig.from_pretrained(str(directory), local_files_only=True)
    except Exception as fault:  # of transformers, of the hub's validators, of json: all mean the same
        raise ModelFilesError(
            f"{directory}: no config.json that transformers understands ({in_one_line(fault)}); copy the model again, "
            "or take one that this version of transformers knows"
        ) from fault


def load_tokenizer(directory: str | Path) -> Any:
    """The tokenizer of a model folder.

    Raises:
        ModelFilesError: there is none, or it has ids beyond the model's embedding matrix.
    """
    directory = Path(directory)
    config = load_config(directory)
    if not any(path for pattern in TOKENIZER_FILES for path in directory.glob(pattern)):
        # transformers would make up a tokenizer with an empty vocabulary
        raise ModelFilesError(f"{directory}: no tokenizer files ({', '.join(TOKENIZER_FILES)}); copy the model again")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except Exception as fault:  # a damaged file ends in a bare Exception of the tokenizers library, or a KeyError
        raise ModelFilesError(
            f"{directory}: no tokenizer that transformers can load ({in_one_line(fault)}); copy the model again"
        ) from fault
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= config.get_text_config().vocab_size:
        raise ModelFilesError(
            f"{directory}: the tokenizer has id {largest}, the model {config.get_text_config().vocab_size} rows; "
            "use the tokenizer that belongs to the model"
        )
    return tokenizer


def load_generation_config(directory: Path) -> Any:
    """generation_config.json as transformers understands it; where there is none, what config.json says of it.

    Raises:
        ModelFilesError: one of them says nothing to transformers.
    """
    if not (directory / "generation_config.json").is_file():
        return GenerationConfig.from_model_config(load_config(directory))
    try:
        return GenerationConfig.from_pretrained(str(directory), local_files_only=True)
    except Exception as fault:  # of transformers, or of json
        raise ModelFilesError(
            f"{directory}: no generation_config.json that transformers understands ({in_one_line(fault)}); copy the "
            "model again"
        ) from fault


def load_causal_lm(directory: Path, dtype: torch.dtype, attention: str) -> nn.Module:
    """The model of a folder with its weights; within `partitioned_construction` born partitioned.

    Raises:
        ModelFilesError: transformers refuses it.
    """
    return _load(AutoModelForCausalLM, directory, dtype, attention)


def load_token_classifier(directory: Path, dtype: torch.dtype, attention: str) -> nn.Module:
    """The token classifier of a folder with its weights; otherwise as `load_causal_lm`."""
    return _load(AutoModelForTokenClassification, directory, dtype, attention)


def _load(kind: Any, directory: Path, dtype: torch.dtype, attention: str) -> nn.Module:
    transformers_logging.disable_progress_bar()
    try:
        return kind.from_pretrained(
            str(directory), dtype=dtype, attn_implementation=attention, use_safetensors=True, local_files_only=True
        )
    except Exception as fault:  # of transformers, or of the model's own code
        raise ModelFilesError(
            f"{directory}: transformers cannot load the model ({in_one_line(fault)}); copy the model again, or take "
            "one that this version of transformers knows"
        ) from fault


def save_as_token_classifier(source: Path, folder: Path) -> None:
    """Write a causal model's decoder with a head of one label in place of the vocabulary, all zeros, no dropout.

    Raises:
        ModelFilesError: the model's family has no token classifier in transformers.
    """
    config = load_config(source)
    config.num_labels, config.classifier_dropout = 1, 0.0
    transformers_logging.disable_progress_bar()
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # the head is not in the files, as it should be
    try:
        model = AutoModelForTokenClassification.from_pretrained(
            str(source), config=config, use_safetensors=True, local_files_only=True, dtype="auto"
        )
    except (OSError, ValueError, RuntimeError, ImportError) as fault:
        raise ModelFilesError(
            f"{source}: transformers makes no critic of a {config.model_type} model ({in_one_line(fault)}); use a "
            "model such as Qwen2.5 or Llama, or an algorithm without a critic"
        ) from fault
    finally:
        transformers_logging.set_verbosity(level)
    for parameter in model.score.parameters():
        nn.init.zeros_(parameter)
    model.save_pretrained(folder)


def empty_causal_lm(directory: Path) -> nn.Module:
    """The model of a folder without storage, to ask for its modules' names and shapes.

    Raises:
        ModelFilesError: transformers builds none from it.
    """
    config = load_config(directory)
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)
    except Exception as fault:  # of transformers, or of the model's own code
        raise ModelFilesError(
            f"{directory}: transformers builds no causal language model from it ({in_one_line(fault)}); copy the model "
            "again, or take one that this version of transformers knows"
        ) from fault


def register_attention(name: str, function: Callable[..., tuple[torch.Tensor, None]]) -> None:
    """An attention implementation of our own, which a config can name: transformers' AttentionInterface."""
    AttentionInterface.register(name, function)


def sdpa_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    **more: Any,
) -> torch.Tensor:
    """transformers' attention by torch's SDPA, grouped heads included; without a mask it is causal.

    Args:
        query: [B, heads, T, head_dim]. key, value: [B, kv_heads, L, head_dim]. mask: bool [B, 1, T, L].

    Returns:
        [B, T, heads, head_dim].
    """
    return sdpa_attention_forward(module, query, key, value, mask, **more)[0]


def block_classes(model: Any) -> list[str]:
    """Class names of a transformers model's blocks (its decoder layers), as the model declares them; maybe none."""
    return sorted(model._no_split_modules or ())


@contextmanager
def partitioned_construction(deepspeed_config: dict[str, Any]) -> Iterator[None]:
    """Within it transformers builds and loads models under deepspeed.zero.Init: no rank ever holds all weights."""
    from transformers.integrations import HfDeepSpeedConfig, unset_hf_deepspeed_config  # they import deepspeed

    config = HfDeepSpeedConfig(deepspeed_config)  # noqa: F841 - transformers keeps a weak reference to it
    try:
        yield
    finally:
        unset_hf_deepspeed_config()


def fast_tokenizer(core: Any, **settings: Any) -> Any:
    """A transformers tokenizer around a `tokenizers.Tokenizer`; `settings` name its special tokens and limits."""
    return PreTrainedTokenizerFast(tokenizer_object=core, **settings)


def save_random_llama(folder: Path, seed: int, **settings: Any) -> None:
    """Write a Llama with random float32 weights; `settings` are those of its config. The same seed, the same bytes."""
    config = LlamaConfig(**settings, dtype="float32")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).float()
    transformers_logging.disable_progress_bar()
    model.save_pretrained(folder)


def save_gguf_as_llama(gguf: Path, folder: Path) -> None:
    """Write the Llama of a GGUF file as a plain folder: float32 weights, tokenizer."""
    transformers_logging.disable_progress_bar()
    quantised = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    config = quantised.config
    del config.quantization_config  # the weights are plain now; with it transformers would refuse to save them
    plain = LlamaForCausalLM(config)
    plain.load_state_dict(quantised.state_dict())
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
