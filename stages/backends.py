"""Who speaks in rollouts and evaluations: the backend that `rollout.backend` names, with a policy's weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.generation import TransformersGenerator
from runtime.generator import Generator, stop_ids
from runtime.model import resident_replica
from runtime.pretrained import load_generation_config
from runtime.vocabulary import read_value_tokens

if TYPE_CHECKING:
    from stages.context import Context

MakeGenerator = Callable[[float, int], Generator]  # temperature, number of episodes -> an idle generator


def ready_backend(context: Context, directory: Path, fingerprint: str, tokenizer: Any) -> MakeGenerator:
    """Bring the rank's backend to the weights of a policy folder; it stays in context.resident. All ranks call this.

    Args:
        fingerprint: of the folder's weights; they are read only where others are held.

    Returns:
        What makes the generators of that policy; only the newest one may be used.
    """
    stops = stop_ids(tokenizer, load_generation_config(directory))
    ready = _ready_vllm if context.config.rollout.backend == "vllm" else _ready_transformers
    return ready(context, directory, fingerprint, stops)


def _ready_transformers(context: Context, directory: Path, fingerprint: str, stops: tuple[int, ...]) -> MakeGenerator:
    config = context.config
    policy = resident_replica(
        context.resident,
        directory,
        fingerprint,
        dtype=config.model.dtype,
        attention=config.model.attention,
        temperature=config.rollout.temperature,
        device=context.distributed.device,
    )

    def make(temperature: float, num_episodes: int) -> Generator:
        return TransformersGenerator(
            policy.causal_lm,
            slots=max(1, min(config.rollout.slots, num_episodes)),
            max_prompt=config.env.prompt_tokens,
            max_response=config.env.response_tokens,
            temperature=temperature,
            banned_ids=policy.value_ids.tolist(),
            stop_ids=stops,
        )

    return make


def _ready_vllm(context: Context, directory: Path, fingerprint: str, stops: tuple[int, ...]) -> MakeGenerator:
    from runtime.vllm_generation import VllmGenerator, resident_vllm  # not installed everywhere, and heavy

    config = context.config
    engine = resident_vllm(
        context.resident,
        directory,
        fingerprint,
        dtype=config.model.dtype,
        slots=config.rollout.slots,
        max_prompt=config.env.prompt_tokens,
        max_response=config.env.response_tokens,
    )
    tokens = read_value_tokens(directory)

    def make(temperature: float, num_episodes: int) -> Generator:
        return VllmGenerator(
            engine,
            slots=max(1, min(config.rollout.slots, num_episodes)),
            temperature=temperature,
            banned_ids=(tokens.positive_id, tokens.negative_id),
            stop_ids=stops,
        )

    return make
