"""Continuous batching for a plain transformers causal LM (Qwen2, Llama): requests join and leave at any time.

Live requests occupy rows 0..n-1 of one preallocated KV cache; where one leaves, the last row moves into its place, so
that a decode step always works on a dense batch. Joiners are prefilled in right-padded batches of similar length:
with causal attention padding on the right is never seen, and positions count from 0 in every row.

A request brings its own uniform numbers, so its randomness does not depend on its batch mates. (Rounding does: a
matrix product may round differently in another batch. That moves a sampled token where a uniform number falls within
about 1e-7 of an edge of the distribution.)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

PREFILL_TOKENS = {"cpu": 2048, "cuda": 16384}  # a CPU wants activations that stay in its caches, a GPU wants work


class GenerationError(Exception):
    """A request cannot be served. The message names object, fact and remedy."""


@dataclass(frozen=True)
class Request:
    """One response to sample.

    Example: Request(key="task#0/3", prompt_ids=(5, 9, 11), uniforms=uniforms(0, 1, "task", 0, 3, n=16))
    """

    key: Any  # comes back with the completion
    prompt_ids: Sequence[int]
    uniforms: np.ndarray  # float64 [max_response] in [0, 1): the i-th one picks the i-th token


@dataclass(frozen=True)
class Completion:
    """A finished response."""

    key: Any
    response_ids: tuple[int, ...]  # as sampled, the end-of-turn token included where there is one
    sampling_logprobs: tuple[float, ...]  # over W_act at the temperature (at temperature 0: at 1); one per id
    stopped: bool  # False: cut at the length limit
    seconds: float  # from `submit` to here


class Generator:
    """A decode loop over `slots` rows.

    Args:
        causal_lm: transformers Qwen2ForCausalLM, LlamaForCausalLM or alike; its weights are read at every call, and
            nothing is remembered of them between requests.
        slots: rows of the cache, the largest batch.
        max_prompt, max_response: tokens; the cache holds their sum in every row.
        temperature: of sampling; 0 takes the most likely token.
        banned_ids: never sampled and outside the distribution (the value tokens: Eq. 3).
        stop_ids: end a response; kept in it.
        prefill_tokens: padded tokens a prefill batch; None: PREFILL_TOKENS of the device.
    """

    def __init__(
        self,
        causal_lm: Any,
        slots: int,
        max_prompt: int,
        max_response: int,
        temperature: float,
        banned_ids: Collection[int],
        stop_ids: Collection[int],
        prefill_tokens: int | None = None,
    ) -> None:
        config = causal_lm.config
        room = config.max_position_embeddings
        if max_prompt + max_response > room:
            raise GenerationError(
                f"model {config.name_or_path!r} has {room} positions, env.prompt_tokens + env.response_tokens = "
                f"{max_prompt + max_response}; lower one of them"
            )
        if not stop_ids:
            raise GenerationError(
                f"model {config.name_or_path!r}: neither tokenizer nor generation_config names an end-of-turn token; "
                "give the tokenizer an eos_token"
            )
        self.causal_lm, self.decoder, self.head = causal_lm, causal_lm.get_decoder(), causal_lm.get_output_embeddings()
        self.slots, self.max_prompt, self.max_response = slots, max_prompt, max_response
        self.temperature = temperature
        self.device = self.head.weight.device
        self.prefill_tokens = prefill_tokens or PREFILL_TOKENS[self.device.type]
        self.banned = torch.tensor(sorted(banned_ids), dtype=torch.long, device=self.device)
        self.stops = torch.tensor(sorted(stop_ids), dtype=torch.long, device=self.device)
        self.cache = RowCache(config, slots, max_prompt + max_response, self.head.weight.dtype, self.device)
        self.waiting: deque[tuple[Request, float]] = deque()
        self.rows: list[tuple[Request, float]] = []  # the request in each live row and when it was submitted
        self.lengths = torch.zeros(slots, dtype=torch.long, device=self.device)  # tokens in the cache
        self.counts = torch.zeros(slots, dtype=torch.long, device=self.device)  # tokens sampled
        self.ids = torch.zeros(slots, max_response, dtype=torch.long, device=self.device)
        self.logprobs = torch.zeros(slots, max_response, dtype=torch.float64, device=self.device)
        self.uniforms = torch.zeros(slots, max_response, dtype=torch.float64, device=self.device)
        self.num_prompt_tokens = self.num_response_tokens = 0  # served so far

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is being generated."""
        return not self.rows and not self.waiting

    def submit(self, request: Request) -> None:
        """Queue a request; it joins at the next `step` that has a free row.

        Raises:
            GenerationError: prompt empty or longer than max_prompt, too few uniform numbers.
        """
        length = len(request.prompt_ids)
        if not 0 < length <= self.max_prompt:
            raise GenerationError(
                f"request {request.key!r}: prompt of {length} tokens, allowed are 1 to {self.max_prompt}; "
                "raise env.prompt_tokens"
            )
        if len(request.uniforms) < self.max_response:
            raise GenerationError(
                f"request {request.key!r}: {len(request.uniforms)} uniform numbers for up to {self.max_response} tokens"
            )
        self.waiting.append((request, time.perf_counter()))

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """Let waiting requests join, sample one token for every live row; those that ended leave.

        A joiner gets its first token from the prefill and its second in the same call.
        """
        done: list[Completion] = []
        if self.waiting and len(self.rows) < self.slots:
            self._join()
            done += self._leave()
        if self.rows:
            self._decode()
            done += self._leave()
        return done

    def _join(self) -> None:
        first = len(self.rows)
        joiners = [self.waiting.popleft() for _ in range(min(self.slots - first, len(self.waiting)))]
        joiners.sort(key=lambda one: len(one[0].prompt_ids))
        for batch in _batches_by_budget(joiners, self.prefill_tokens):
            self._prefill(batch)

    def _prefill(self, batch: list[tuple[Request, float]]) -> None:
        first, last = len(self.rows), len(self.rows) + len(batch)
        self.rows.extend(batch)
        lengths = [len(request.prompt_ids) for request, _ in batch]
        ids = np.zeros((len(batch), lengths[-1]), dtype=np.int64)
        for row, (request, _) in enumerate(batch):
            ids[row, : lengths[row]] = request.prompt_ids
        uniforms = np.stack([request.uniforms[: self.max_response] for request, _ in batch])
        self.lengths[first:last] = torch.tensor(lengths, device=self.device)
        self.counts[first:last] = 0
        self.uniforms[first:last] = torch.from_numpy(uniforms).to(self.device)
        self.num_prompt_tokens += sum(lengths)
        self.cache.write_prompts(first, last)
        hidden = self._forward(torch.from_numpy(ids).to(self.device), mask=None, positions=None)
        final = hidden[torch.arange(last - first, device=self.device), self.lengths[first:last] - 1]
        self._sample(final, first, last)

    def _decode(self) -> None:
        n = len(self.rows)
        positions = self.lengths[:n]
        newest = self.ids[:n].gather(1, self.counts[:n, None] - 1)
        longest = int(positions.max()) + 1
        visible = torch.arange(longest, device=self.device) <= positions[:, None]
        self.cache.write_tokens(n, longest, positions)
        hidden = self._forward(newest, mask=self._mask(visible), positions=positions[:, None])
        self.lengths[:n] += 1
        self._sample(hidden[:, 0], 0, n)

    def _mask(self, visible: Tensor) -> Tensor:
        """The mask of one decode step in the form that the attention implementation takes; `visible` is bool [n, L]."""
        kind = self.causal_lm.config._attn_implementation
        if kind == "flash_attention_2":
            return visible.long()
        if kind == "eager":  # additive
            dtype = self.head.weight.dtype
            blocked = torch.full(visible.shape, torch.finfo(dtype).min, dtype=dtype, device=self.device)
            return blocked.masked_fill(visible, 0)[:, None, None]
        return visible[:, None, None]

    def _forward(self, ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
        """Last hidden states [n, T, D]; keys and values go through the cache."""
        return self.decoder(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=self.cache, use_cache=True
        ).last_hidden_state

    def _sample(self, hidden: Tensor, first: int, last: int) -> None:
        """One token for rows first..last-1 out of their last hidden states [n, D]."""
        logits = F.linear(hidden, self.head.weight, self.head.bias)
        counts = self.counts[first:last]
        uniforms = self.uniforms[first:last].gather(1, counts[:, None])[:, 0]
        tokens, logprobs = sample_tokens(logits, uniforms, self.temperature, self.banned)
        self.ids[first:last].scatter_(1, counts[:, None], tokens[:, None])
        self.logprobs[first:last].scatter_(1, counts[:, None], logprobs[:, None])
        counts += 1  # a view: the state moves on
        self.num_response_tokens += last - first

    def _leave(self) -> list[Completion]:
        n = len(self.rows)
        counts = self.counts[:n]
        newest = self.ids[:n].gather(1, counts[:, None] - 1)
        stopped = (newest == self.stops).any(1)
        ended = (stopped | (counts >= self.max_response)).nonzero()[:, 0].tolist()
        if not ended:
            return []
        index = torch.tensor(ended, device=self.device)
        columns = (counts[index], self.ids[index], self.logprobs[index], stopped[index])
        facts = zip(ended, *(column.tolist() for column in columns), strict=True)
        now = time.perf_counter()
        done = []
        for row, count, ids, logprobs, stop in facts:
            request, since = self.rows[row]
            done.append(Completion(request.key, tuple(ids[:count]), tuple(logprobs[:count]), stop, now - since))
        self._close_gaps(ended)
        return done

    def _close_gaps(self, ended: list[int]) -> None:
        """Move the last live rows into the places of those that ended (ascending)."""
        remaining = len(self.rows) - len(ended)
        gone = set(ended)
        holes = [row for row in ended if row < remaining]
        movers = [row for row in range(remaining, len(self.rows)) if row not in gone]
        if holes:
            to, source = torch.tensor(holes, device=self.device), torch.tensor(movers, device=self.device)
            self.cache.move(to, source, int(self.lengths[source].max()))
            for state in (self.lengths, self.counts, self.ids, self.logprobs, self.uniforms):
                state[to] = state[source]
            for hole, mover in zip(holes, movers, strict=True):
                self.rows[hole] = self.rows[mover]
        del self.rows[remaining:]


def sample_tokens(logits: Tensor, uniforms: Tensor, temperature: float, banned: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token a row from softmax(logits / temperature) over W_act = all tokens but `banned` (Eq. 3).

    Inverse of the cumulative distribution: the token is the first one at which the running sum of the probabilities
    exceeds the row's uniform number. Temperature 0 takes the most likely token, and its log-prob is at temperature 1.

    Args:
        logits: [n, V]. uniforms: float64 [n] in [0, 1). banned: int64 [b].

    Returns:
        tokens int64 [n], log-probs float64 [n].

    Raises:
        GenerationError: logits that are not finite.
    """
    scaled = logits.float() / (temperature or 1.0)
    logprobs = scaled.index_fill_(1, banned, float("-inf")).log_softmax(-1)
    if temperature == 0:
        tokens = logprobs.argmax(-1)
    else:
        running = logprobs.double().exp_().cumsum_(-1)
        total = running[:, -1]
        goal = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
        tokens = torch.searchsorted(running, goal[:, None], right=True)[:, 0]
    chosen = logprobs.gather(1, tokens.clamp_(max=logits.shape[1] - 1)[:, None])[:, 0].double()
    if not bool(torch.isfinite(chosen).all()):
        raise GenerationError(
            "the policy's logits are not finite: its weights have diverged, or are damaged; begin a new run from an "
            "earlier policy (--model runs/X/checkpoints/NNNN/policy) with a lower optimize.learning_rate"
        )
    return tokens, chosen


def stop_ids(tokenizer: Any, generation_config: Any) -> tuple[int, ...]:
    """The end-of-turn tokens: the tokenizer's eos and those that the model's generation_config lists."""
    listed = getattr(generation_config, "eos_token_id", None)
    listed = [listed] if isinstance(listed, int) else list(listed or ())
    return tuple(sorted({*listed, *([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])}))


def _batches_by_budget(joiners: list[tuple[Request, float]], budget: int) -> list[list[tuple[Request, float]]]:
    """Cut a list that is sorted by length so that rows * longest <= budget (a longer row stands alone)."""
    batches: list[list[tuple[Request, float]]] = []
    for joiner in joiners:
        if batches and (len(batches[-1]) + 1) * len(joiner[0].prompt_ids) <= budget:
            batches[-1].append(joiner)
        else:
            batches.append([joiner])
    return batches


class RowCache:
    """Keys and values of all rows and layers in one tensor [layers, 2, slots, kv_heads, max_len, head_dim].

    It stands where transformers expects its own cache: attention layers call `update`. Before a forward, the generator
    says what the forward is: prompts into rows first..last-1, or one token for each of the rows 0..n-1.
    """

    is_compileable = False

    def __init__(self, config: Any, slots: int, max_len: int, dtype: torch.dtype, device: torch.device) -> None:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, 2, slots, config.num_key_value_heads, max_len, head_dim)
        self.store = torch.zeros(shape, dtype=dtype, device=device)
        self._rows = slice(0, 0)
        self._longest = 0
        self._positions: tuple[Tensor, Tensor] | None = None

    def write_prompts(self, first: int, last: int) -> None:
        """The next forward is a prefill of rows first..last-1, from position 0."""
        self._rows, self._positions = slice(first, last), None

    def write_tokens(self, n: int, longest: int, positions: Tensor) -> None:
        """The next forward adds one token to each of rows 0..n-1 at `positions` [n]; keys up to `longest` are read."""
        self._rows, self._longest = slice(0, n), longest
        self._positions = (torch.arange(n, device=positions.device), positions)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store what a layer computed, [n, kv_heads, T, head_dim]; return what it shall attend to."""
        stored_keys, stored_values = self.store[layer, 0, self._rows], self.store[layer, 1, self._rows]
        if self._positions is None:
            length = keys.shape[2]
            stored_keys[:, :, :length] = keys
            stored_values[:, :, :length] = values
            return keys, values
        rows, positions = self._positions
        stored_keys[rows, :, positions] = keys[:, :, 0]
        stored_values[rows, :, positions] = values[:, :, 0]
        return stored_keys[:, :, : self._longest], stored_values[:, :, : self._longest]

    def move(self, to: Tensor, source: Tensor, length: int) -> None:
        """Copy the first `length` positions of rows `source` onto rows `to`."""
        self.store[:, :, to, :, :length] = self.store[:, :, source, :, :length]

    def get_seq_length(self, layer: int = 0) -> int:
        """Positions before this forward's tokens, for masks that transformers makes: a prefill starts at 0."""
        return 0

    def get_query_offset(self, layer: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer: int = 0) -> tuple[int, int]:
        return query_length, 0
