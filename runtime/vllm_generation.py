"""The backend `vllm`: vLLM's engine in this process. The one importer of vllm, and optional (requirements-vllm.txt).

Paged cache, prefix cache, and on a GPU captured graphs, for models whose rollouts are worth a second copy of the
weights. The engine lives as long as the process and takes over each policy's weights in place.

Every rank has an engine of its own: vLLM finds the process group that is there and makes groups of one rank in it.

vLLM takes no uniform numbers, so a request's first one becomes the seed of the request's own random generator: the
same run samples the same responses whatever the order of play, but not those of the backend `transformers`.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime.distributed import launch_variables
from runtime.generator import Completion, GenerationError, Request, check_limits, check_request, not_finite
from runtime.model import check_complete
from runtime.pretrained import empty_causal_lm, load_config
from runtime.weight_files import read_weights

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process
for name, value in {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}.items():
    os.environ.setdefault(name, value)
try:
    from vllm import EngineArgs, LLMEngine, SamplingParams
    from vllm.inputs.engine import tokens_input
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.platforms import current_platform
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
except ImportError as fault:
    raise GenerationError(
        f"rollout.backend = vllm: vLLM cannot be imported ({fault}); install it (requirements-vllm.txt says how), or "
        "set rollout.backend=transformers"
    ) from fault

LARGEST_BLOCK = 128  # tokens a block of the paged cache: vLLM's on a CPU; a GPU's blocks are smaller
SMALLEST_SHARE = 0.01  # of the device's memory that vLLM wants free at its start; the cache's size is given in bytes
CPU_STEP_TOKENS = 4096  # tokens of a step on a CPU: vLLM's own number there
SEEDS = 2**53  # a uniform number has so many values


@dataclass(frozen=True)
class _Waiting:
    request: Request
    since: float  # when it was submitted


class VllmEngine:
    """vLLM's engine and the fingerprint of the policy whose weights it holds.

    Args:
        directory: policy folder.
        dtype: of weights and computation, e.g. "bfloat16".
        slots: requests at once. The paged cache has room for so many of the longest.
        max_prompt, max_response: tokens.

    Raises:
        GenerationError: vLLM cannot run the model here.
    """

    def __init__(
        self, directory: Path, fingerprint: str, *, dtype: str, slots: int, max_prompt: int, max_response: int
    ) -> None:
        config = load_config(directory).get_text_config()
        _check_head_width(config, directory)
        self.directory, self.positions = directory, config.max_position_embeddings
        self.slots, self.max_prompt, self.max_response = slots, max_prompt, max_response
        self.waiting: dict[str, _Waiting] = {}  # by the name that vLLM knows a request by
        self.numbers = itertools.count()
        self.outline = empty_causal_lm(directory)
        check_complete(self.outline, read_weights(directory), directory)
        os.environ.update(launch_variables(os.environ))  # vLLM looks for its rank there
        longest = min(max_prompt + max_response, self.positions)
        settings = EngineArgs(
            model=str(directory),
            dtype=dtype,
            max_model_len=longest,
            max_num_seqs=slots,
            kv_cache_memory_bytes=slots * cache_bytes(config, longest, getattr(torch, dtype).itemsize),
            gpu_memory_utilization=SMALLEST_SHARE,
            enforce_eager=current_platform.is_cpu(),
            **(cpu_settings(longest) if current_platform.is_cpu() else {}),
            distributed_executor_backend="external_launcher",  # the ranks are there: ours
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            skip_tokenizer_init=True,
            generation_config="vllm",  # none of the model's own sampling settings
            disable_log_stats=True,
            use_tqdm_on_load=False,
        )
        try:
            self.llm = LLMEngine.from_engine_args(settings)
        except (ValueError, NotImplementedError) as fault:
            why = " ".join(str(fault).split())
            raise GenerationError(
                f"{directory}: vLLM cannot run it here ({why}); set rollout.backend=transformers"
            ) from fault
        self.policy: str | None = fingerprint
        finalizer = getattr(self.llm.engine_core, "_finalizer", None)
        if finalizer is not None:  # it would close the process group, which is not vLLM's
            finalizer.detach()

    def refresh(self, directory: Path, fingerprint: str) -> None:
        """Take over the weights of another version of the same model, in place.

        Raises:
            ModelFilesError: the folder does not hold exactly this model's weights.
            GenerationError: vLLM's cache of prefixes cannot be emptied.
        """
        if fingerprint == self.policy:
            return
        check_complete(self.outline, read_weights(directory), directory)  # vLLM keeps old weights where none are new
        self.policy = None  # half-loaded weights must not pass for anything
        self.abort()
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(directory)})
        self.llm.apply_model(_pack_head)
        if not self.llm.reset_prefix_cache():  # keys and values of the old weights
            raise GenerationError(f"{directory}: vLLM keeps prefixes of older weights; start the same command again")
        self.policy = fingerprint

    def abort(self) -> None:
        """Give up all requests, such as those of a sweep that was interrupted."""
        self.llm.abort_request(list(self.waiting))
        self.waiting.clear()


class VllmGenerator:
    """The `Generator` of the backend `vllm`, on the engine's current weights; the newest one of an engine counts.

    Args:
        slots: at most the engine's.
        temperature: of sampling; 0 takes the most likely token.
        banned_ids: never sampled and outside the distribution (the value tokens: Eq. 3).
        stop_ids: end a response; kept in it.

    Raises:
        GenerationError: the model has too few positions, or nothing ends a response.
    """

    def __init__(
        self,
        engine: VllmEngine,
        slots: int,
        temperature: float,
        banned_ids: Collection[int],
        stop_ids: Collection[int],
    ) -> None:
        check_limits(str(engine.directory), engine.positions, engine.max_prompt, engine.max_response, stop_ids)
        self.engine, self.slots, self.temperature = engine, slots, temperature
        self.max_response = engine.max_response
        self.banned = {token: -math.inf for token in banned_ids}
        self.stops = frozenset(stop_ids)
        self.num_prompt_tokens = self.num_response_tokens = 0  # those of finished requests
        engine.abort()

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is being generated."""
        return not self.engine.waiting

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            GenerationError: prompt empty or longer than max_prompt, too few uniform numbers.
        """
        check_request(request, self.engine.max_prompt, self.max_response)
        name = str(next(self.engine.numbers))
        self.engine.waiting[name] = _Waiting(request, time.perf_counter())
        how = SamplingParams(
            temperature=self.temperature,
            max_tokens=self.max_response,
            seed=int(request.uniforms[0] * SEEDS),
            logit_bias=self.banned,
            stop_token_ids=sorted(self.stops),
            ignore_eos=True,  # stop_token_ids says it all
            logprobs=0,  # of the sampled token alone
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self.engine.llm.add_request(name, tokens_input(list(request.prompt_ids)), how)

    def step(self) -> list[Completion]:
        """One step of the engine; returns the responses that ended.

        Raises:
            GenerationError: logits that are not finite.
        """
        return [self._completion(output) for output in self.engine.llm.step()]

    def _completion(self, output: Any) -> Completion:
        waiting, (response,) = self.engine.waiting.pop(output.request_id), output.outputs
        ids = tuple(response.token_ids)
        logprobs = tuple(chosen[token].logprob for token, chosen in zip(ids, response.logprobs, strict=True))
        if not all(map(math.isfinite, logprobs)):
            raise not_finite()
        self.num_prompt_tokens += len(waiting.request.prompt_ids) - output.num_cached_tokens
        self.num_response_tokens += len(ids)
        seconds = time.perf_counter() - waiting.since
        return Completion(waiting.request.key, ids, logprobs, ids[-1] in self.stops, seconds)

    def forget(self, conversation: Hashable) -> None:
        """Nothing to do: prefixes stay in vLLM's cache until others need the room."""


def resident_vllm(
    resident: Any,
    directory: Path,
    fingerprint: str,
    *,
    dtype: str,
    slots: int,
    max_prompt: int,
    max_response: int,
) -> VllmEngine:
    """The rank's engine with the weights of `directory`: kept, refreshed or started. All ranks call this together.

    Args:
        resident: stages.context.Resident; its `vllm` is set.
        fingerprint: `policy_fingerprint(directory)`; weights are read only where it differs from what is held.
    """
    if resident.vllm is None:
        resident.vllm = VllmEngine(
            directory, fingerprint, dtype=dtype, slots=slots, max_prompt=max_prompt, max_response=max_response
        )
    resident.vllm.refresh(directory, fingerprint)
    return resident.vllm


def cpu_settings(longest: int) -> dict[str, Any]:
    """Prompts are prefilled whole: on a CPU vLLM 0.32 ends on an error ("CPU Generator does not use offset") where a
    request with a seed has only a part of its prompt prefilled in a step."""
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": max(CPU_STEP_TOKENS, longest)}


def cache_bytes(config: Any, tokens: int, element: int) -> int:
    """Keys and values of one sequence in whole blocks, and one block more, of all layers.

    Args:
        config: of a transformers model.
        element: bytes of a number.
    """
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    blocks = -(-tokens // LARGEST_BLOCK) + 1
    return 2 * config.num_hidden_layers * heads * _head_width(config) * element * blocks * LARGEST_BLOCK


def _head_width(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _check_head_width(config: Any, directory: Path) -> None:
    """Refuse at the start what vLLM's attention on a CPU refuses at the first token."""
    width, known = _head_width(config), CPUAttentionBackend.get_supported_head_sizes()
    if current_platform.is_cpu() and width not in known:
        raise GenerationError(
            f"{directory}: attention heads of {width} numbers, vLLM on a CPU has {known}; use such a model, or set "
            "rollout.backend=transformers"
        )


def _pack_head(model: torch.nn.Module) -> None:
    """On a CPU vLLM computes with packed copies of the matrices, and its reload packs those anew that it has read.
    A head that shares the embedding's matrix is not among them: it would go on with the old weights."""
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)
