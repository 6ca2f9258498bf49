"""What a generation backend is: token ids in, token ids and sampling log-probs out, requests that come and go.

`runtime.generation` is the backend on plain transformers, `runtime.vllm_generation` the one on vLLM.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class GenerationError(Exception):
    """A request cannot be served. The message names object, fact and remedy."""


@dataclass(frozen=True)
class Request:
    """One response to sample.

    Example: Request(key="task#0/3", prompt_ids=(5, 9, 11), uniforms=uniforms(0, 1, "task", 0, 3, n=16))
    """

    key: Any  # comes back with the completion
    prompt_ids: Sequence[int]
    uniforms: np.ndarray  # float64 [max_response] in [0, 1): all the randomness of the response
    conversation: Hashable = None  # where given, what was computed may be kept until its next request, or `forget`


@dataclass(frozen=True)
class Completion:
    """A finished response."""

    key: Any
    response_ids: tuple[int, ...]  # as sampled, the end-of-turn token included where there is one
    sampling_logprobs: tuple[float, ...]  # over W_act at the temperature (at temperature 0: at 1); one per id
    stopped: bool  # False: cut at the length limit
    seconds: float  # from `submit` to here


class Generator(Protocol):
    """Samples responses with one policy at one temperature, many at once; the value tokens never come out (Eq. 3).

    Use: `submit` at any time, then `step` until `idle`. A response depends on its own request and the policy alone, up
    to rounding: not on its batch mates, nor on the order of requests.
    """

    slots: int  # requests that are worked on at once; more may wait
    max_response: int  # tokens
    temperature: float  # 0: the most likely token
    num_prompt_tokens: int  # that went through the model so far
    num_response_tokens: int  # sampled so far

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is being generated."""

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            GenerationError: prompt empty or too long, too few uniform numbers.
        """

    def step(self) -> list[Completion]:
        """Go on by a token or so; returns the responses that ended."""

    def forget(self, conversation: Hashable) -> None:
        """Give up what is kept for a conversation, where there is something."""


def check_limits(model: str, positions: int, max_prompt: int, max_response: int, stop_ids: Collection[int]) -> None:
    """Refuse what no response could be sampled with.

    Raises:
        GenerationError: more tokens than the model has positions; nothing that ends a response.
    """
    if max_prompt + max_response > positions:
        raise GenerationError(
            f"model {model!r} has {positions} positions, env.prompt_tokens + env.response_tokens = "
            f"{max_prompt + max_response}; lower one of them"
        )
    if not stop_ids:
        raise GenerationError(
            f"model {model!r}: neither tokenizer nor generation_config names an end-of-turn token; "
            "give the tokenizer an eos_token"
        )


def check_request(request: Request, max_prompt: int, max_response: int) -> None:
    """Refuse a request that does not fit.

    Raises:
        GenerationError: prompt empty or longer than max_prompt, too few uniform numbers.
    """
    length = len(request.prompt_ids)
    if not 0 < length <= max_prompt:
        raise GenerationError(
            f"request {request.key!r}: prompt of {length} tokens, allowed are 1 to {max_prompt}; "
            "raise env.prompt_tokens"
        )
    if len(request.uniforms) < max_response:
        raise GenerationError(
            f"request {request.key!r}: {len(request.uniforms)} uniform numbers for up to {max_response} tokens"
        )


def not_finite() -> GenerationError:
    """What to say of a policy whose logits are NaN or infinite."""
    return GenerationError(
        "the policy's logits are not finite: its weights have diverged, or are damaged; begin a new run from an "
        "earlier policy (--model runs/X/checkpoints/NNNN/policy) with a lower optimize.learning_rate"
    )


def stop_ids(tokenizer: Any, generation_config: Any) -> tuple[int, ...]:
    """The end-of-turn tokens: the tokenizer's eos and those that the model's generation_config lists."""
    listed = getattr(generation_config, "eos_token_id", None)
    listed = [listed] if isinstance(listed, int) else list(listed or ())
    return tuple(sorted({*listed, *([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])}))
