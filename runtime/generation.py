"""Continuous batching for a plain transformers causal LM (Qwen2, Llama): requests join and leave at any time.

A request has a row of one preallocated KV cache and stays in it. What a forward reads, prompts of several joiners or
the newest token of every live request, lies packed, one request's tokens behind the other's; only attention sees rows
(runtime/row_cache.py), by SDPA whatever `model.attention` says.

A request may ask that its row be kept when it ends. The next request of the same conversation, whose prompt begins with
what the row holds, goes on in it and only what is new is prefilled. Where rows run out, the one kept longest is given
up.

A request brings its own uniform numbers, so its randomness does not depend on its batch mates. (Rounding does: a
matrix product may round differently in another batch. That moves a sampled token where a uniform number falls within
about 1e-7 of an edge of the distribution.)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.generator import Completion, GenerationError, Request, check_limits, check_request, not_finite
from runtime.hidden_states import hidden_states_at
from runtime.row_cache import Packing, RowCache, attending_packed

# Requests wait until they are this share (one in so many) of the live rows: at small sizes a prefill of two rows costs
# as much as a decode step of all.
JOIN_SHARE = 3
PREFILL_TOKENS = {"cpu": 2048, "cuda": 16384}  # a CPU wants activations that stay in its caches, a GPU wants work


@dataclass(eq=False)
class _Row:
    """A request, and its row of the cache."""

    request: Request
    since: float  # when it was submitted
    slot: int = -1  # which row; -1: it waits for one
    held: tuple[int, ...] = ()  # the ids whose keys and values a kept row holds


class TransformersGenerator:
    """The `Generator` of the backend `transformers`: a decode loop over `slots` rows.

    Args:
        causal_lm: transformers Qwen2ForCausalLM, LlamaForCausalLM or alike; its weights are read at every call, and
            nothing is remembered of them between requests.
        slots: rows of the cache, the largest batch; kept rows count too.
        max_prompt, max_response: tokens; the cache holds their sum in every row.
        temperature: of sampling; 0 takes the most likely token.
        banned_ids: never sampled and outside the distribution (the value tokens: Eq. 3).
        stop_ids: end a response; kept in it.
        prefill_tokens: tokens of a prefill batch; None: PREFILL_TOKENS of the device.
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
        _check_attention(causal_lm)
        check_limits(config.name_or_path, _positions(config), max_prompt, max_response, stop_ids)
        self.decoder, self.head = causal_lm.get_decoder(), causal_lm.get_output_embeddings()
        self.slots, self.max_prompt, self.max_response = slots, max_prompt, max_response
        self.temperature = temperature
        self.device = self.head.weight.device
        self.prefill_tokens = prefill_tokens or PREFILL_TOKENS[self.device.type]
        self.banned = torch.tensor(sorted(banned_ids), dtype=torch.long, device=self.device)
        self.stops = torch.tensor(sorted(stop_ids), dtype=torch.long, device=self.device)
        self.cache = RowCache(config, slots, max_prompt + max_response, self.head.weight.dtype, self.device)
        self.waiting: deque[_Row] = deque()
        self.rows: list[_Row] = []  # the live ones, by slot
        self.kept: dict[Hashable, _Row] = {}  # by conversation, the one kept longest first
        self.free = list(range(slots))  # a heap
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
        check_request(request, self.max_prompt, self.max_response)
        self.waiting.append(_Row(request, time.perf_counter()))

    def forget(self, conversation: Hashable) -> None:
        """Give up the row that is kept for a conversation, where there is one."""
        row = self.kept.pop(conversation, None)
        if row is not None:
            heappush(self.free, row.slot)

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """Let waiting requests join, sample one token for every live row; those that ended leave.

        A joiner gets its first token from the prefill and its second in the same call.
        """
        done: list[Completion] = []
        with attending_packed(self.decoder.config):
            if len(self.waiting) * JOIN_SHARE >= len(self.rows) and self.waiting and len(self.rows) < self.slots:
                self._join()
                done += self._leave()
            if self.rows:
                self._decode()
                done += self._leave()
        return done

    def _join(self) -> None:
        joiners = [self.waiting.popleft() for _ in range(min(self.slots - len(self.rows), len(self.waiting)))]
        continued, fresh = [], []
        for row in joiners:
            if self._takes_kept_row(row):
                continued.append(row)
            else:
                fresh.append(row)
        for row in fresh:
            if not self.free:
                self.forget(next(iter(self.kept)))
            row.slot = heappop(self.free)
        for group in (continued, fresh):
            group.sort(key=_num_new)
            for batch in _batches_by_budget(group, self.prefill_tokens):
                self._prefill(batch)

    def _takes_kept_row(self, row: _Row) -> bool:
        """Whether a joiner goes on in the row that its conversation kept; one that holds something else is given up."""
        prompt, kept = row.request.prompt_ids, self.kept.get(row.request.conversation)
        if kept is None:
            return False
        if len(prompt) <= len(kept.held) or tuple(prompt[: len(kept.held)]) != kept.held:
            self.forget(row.request.conversation)
            return False
        del self.kept[row.request.conversation]
        row.slot, row.held = kept.slot, kept.held
        return True

    def _prefill(self, batch: list[_Row]) -> None:
        """The new tokens of rows that join: whole prompts, or what comes behind what kept rows hold."""
        batch = sorted(batch, key=attrgetter("slot"))
        self.rows = sorted([*self.rows, *batch], key=attrgetter("slot"))
        slots = self._slots(batch)
        new = [row.request.prompt_ids[len(row.held) :] for row in batch]
        uniforms = np.stack([row.request.uniforms[: self.max_response] for row in batch])
        self.lengths[slots] = torch.tensor([len(row.held) for row in batch], device=self.device)
        self.counts[slots] = 0
        self.uniforms[slots] = torch.from_numpy(uniforms).to(self.device)
        self.num_prompt_tokens += sum(map(len, new))
        ids = torch.tensor([token for own in new for token in own], device=self.device)
        self._sample(self._forward(ids, [*map(len, new)], batch), slots)

    def _decode(self) -> None:
        slots = self._slots(self.rows)
        newest = self.ids[slots, self.counts[slots] - 1]
        self._sample(self._forward(newest, [1] * len(slots), self.rows), slots)

    def _slots(self, rows: Sequence[_Row]) -> Tensor:
        return torch.tensor([row.slot for row in rows], device=self.device)

    def _forward(self, ids: Tensor, lengths: Sequence[int], rows: Sequence[_Row]) -> Tensor:
        """Read new tokens behind what rows hold; their keys and values go through the cache.

        Args:
            ids: [N], those of a row together. lengths: how many are whose, >= 1. rows: n, by slot.

        Returns:
            [n, D], the last hidden state of each row.
        """
        packing = Packing(lengths, [row.slot for row in rows], self.device)
        positions = self.lengths[packing.slots] + packing.columns
        past = self.lengths[packing.read]
        longest, mask = int(positions.max()) + 1, None
        if past.any():  # else every row begins here
            reach = past[:, None] + torch.arange(packing.shape[1], device=self.device)
            mask = (torch.arange(longest, device=self.device) <= reach[:, :, None])[:, None]
        self.cache.expect(packing, positions, longest)
        hidden = hidden_states_at(
            self.decoder, packing.last, input_ids=ids[None], attention_mask=mask, position_ids=positions[None],
            past_key_values=self.cache, use_cache=True, packing=packing,
        )  # fmt: skip
        self.lengths[packing.slots[packing.last]] = positions[packing.last] + 1
        return hidden

    def _sample(self, hidden: Tensor, slots: Tensor) -> None:
        """One token for the rows `slots` [n] out of their last hidden states [n, D]."""
        logits = F.linear(hidden, self.head.weight, self.head.bias)
        at = slots, self.counts[slots]
        self.ids[at], self.logprobs[at] = sample_tokens(logits, self.uniforms[at], self.temperature, self.banned)
        self.counts[slots] += 1
        self.num_response_tokens += len(slots)

    def _leave(self) -> list[Completion]:
        slots = self._slots(self.rows)
        counts = self.counts[slots]
        newest = self.ids[slots, counts - 1]
        stopped = (newest[:, None] == self.stops).any(1)
        ended = (stopped | (counts >= self.max_response)).nonzero()[:, 0]
        if not len(ended):
            return []
        columns = (ended, counts[ended], self.ids[slots[ended]], self.logprobs[slots[ended]], stopped[ended])
        now, done = time.perf_counter(), []
        for index, count, ids, logprobs, stop in zip(*(column.tolist() for column in columns), strict=True):
            row, response = self.rows[index], tuple(ids[:count])
            done.append(Completion(row.request.key, response, tuple(logprobs[:count]), stop, now - row.since))
            row.held = (*row.request.prompt_ids, *response[:-1])  # the last token has not been through the model
            self._release(row)
        gone = set(columns[0].tolist())
        self.rows = [row for index, row in enumerate(self.rows) if index not in gone]
        return done

    def _release(self, row: _Row) -> None:
        """Keep a row for its conversation, or let others have it."""
        conversation = row.request.conversation
        if conversation is None:
            heappush(self.free, row.slot)
        else:
            self.forget(conversation)  # of two requests at a time, the later one's row is kept
            self.kept[conversation] = row


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
        raise not_finite()
    return tokens, chosen


def _check_attention(causal_lm: Any) -> None:
    """Refuse a model whose attention cannot be `packed_attention`: it would read nonsense, or end on an error.

    Raises:
        GenerationError: transformers does not let its attention be replaced, or has it compute more than SDPA does.
    """
    if not (causal_lm._supports_attention_backend and causal_lm._supports_sdpa):
        raise GenerationError(
            f"model {causal_lm.config.name_or_path!r}: transformers cannot run {type(causal_lm).__name__} with another "
            "attention than its own, which the decode loop needs; use another model, or rollout.backend=vllm"
        )


def _positions(config: Any) -> int:
    """The longest row a model can read: attention looks back over the whole row, so a sliding window is a limit."""
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]  # without kinds every layer has the window
    window = getattr(config, "sliding_window", None) if "sliding_attention" in kinds else None
    return min(config.max_position_embeddings, window or config.max_position_embeddings)


def _num_new(row: _Row) -> int:
    """Tokens of its prompt that are not in the cache."""
    return len(row.request.prompt_ids) - len(row.held)


def _batches_by_budget(joiners: list[_Row], budget: int) -> list[list[_Row]]:
    """Cut a list that is sorted by new tokens into batches of at most `budget` of them (a longer row stands alone).

    Attention pads: no batch is more than half padding there.
    """
    batches: list[list[_Row]] = []
    tokens = 0
    for joiner in joiners:
        longest = _num_new(joiner)
        tokens += longest
        if batches and tokens <= budget and (len(batches[-1]) + 1) * longest <= 2 * tokens:
            batches[-1].append(joiner)
        else:
            batches.append([joiner])
            tokens = longest
    return batches
