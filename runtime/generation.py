"""Continuous batching for a plain transformers causal LM (Qwen2, Llama): requests join and leave at any time.

Live requests occupy rows 0..n-1 of one preallocated KV cache; where one leaves, the last row moves into its place, so
that a decode step always works on a dense batch. Joiners are prefilled several at a time, their tokens packed one
behind the other; only attention sees rows (runtime/row_cache.py), by SDPA whatever `model.attention` says.

A request may ask that its row be kept when it ends. Kept rows lie behind the live ones; the next request of the same
conversation, whose prompt begins with what the row holds, finds it there and only what is new is prefilled.

A request brings its own uniform numbers, so its randomness does not depend on its batch mates. (Rounding does: a
matrix product may round differently in another batch. That moves a sampled token where a uniform number falls within
about 1e-7 of an edge of the distribution.)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
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
    """Whose a row of the cache is."""

    request: Request
    since: float  # when it was submitted
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
        self.rows: list[_Row] = []  # the live ones
        self.kept: list[_Row] = []  # behind them: row len(self.rows) + i of the cache
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
        others = [row for row in self.kept if row.request.conversation != conversation]
        if len(others) < len(self.kept):
            self._arrange(self.rows, others)

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
            kept = self._kept_row(row.request)
            if kept is None:
                fresh.append(row)
            else:
                kept.request, kept.since = row.request, row.since
                continued.append(kept)
        for group in (continued, fresh):
            group.sort(key=_num_new)
            for batch in _batches_by_budget(group, self.prefill_tokens):
                self._prefill(batch)

    def _kept_row(self, request: Request) -> _Row | None:
        """The row that holds the beginning of a prompt; one that holds something else is given up."""
        if request.conversation is None:
            return None
        for row in self.kept:
            if row.request.conversation == request.conversation:
                prompt = tuple(request.prompt_ids[: len(row.held)])
                if prompt == row.held and len(request.prompt_ids) > len(row.held):
                    return row
                self.forget(request.conversation)
        return None

    def _prefill(self, batch: list[_Row]) -> None:
        """The new tokens of rows that join: whole prompts, or what comes behind what kept rows hold."""
        first, last = len(self.rows), len(self.rows) + len(batch)
        others = [row for row in self.kept if row not in batch][-(self.slots - last) or len(self.kept) :]
        self._arrange(self.rows + batch, others)
        batch = self.rows[first:]  # in the order of the cache
        new = [row.request.prompt_ids[len(row.held) :] for row in batch]
        uniforms = np.stack([row.request.uniforms[: self.max_response] for row in batch])
        self.lengths[first:last] = torch.tensor([len(row.held) for row in batch], device=self.device)
        self.counts[first:last] = 0
        self.uniforms[first:last] = torch.from_numpy(uniforms).to(self.device)
        self.num_prompt_tokens += sum(map(len, new))
        ids = torch.tensor([token for own in new for token in own], device=self.device)
        hidden = self._forward(ids, [*map(len, new)], first, last)
        self._sample(hidden, first, last)

    def _decode(self) -> None:
        n = len(self.rows)
        newest = self.ids[:n].gather(1, self.counts[:n, None] - 1)[:, 0]
        self._sample(self._forward(newest, [1] * n, 0, n), 0, n)

    def _forward(self, ids: Tensor, lengths: Sequence[int], first: int, last: int) -> Tensor:
        """Read new tokens behind what rows first..last-1 hold; their keys and values go through the cache.

        Args:
            ids: [N], those of a row together. lengths: how many are whose, >= 1.

        Returns:
            [n, D], the last hidden state of each row.
        """
        past, packing = self.lengths[first:last], Packing(lengths, self.device)
        positions = past[packing.rows] + packing.columns
        longest, mask = int(positions.max()) + 1, None
        if past.any():  # else every row begins here
            reach = past[:, None] + torch.arange(packing.shape[1], device=self.device)
            mask = (torch.arange(longest, device=self.device) <= reach[:, :, None])[:, None]
        self.cache.expect(first, last, longest, packing.rows, positions)
        hidden = hidden_states_at(
            self.decoder, packing.last, input_ids=ids[None], attention_mask=mask, position_ids=positions[None],
            past_key_values=self.cache, use_cache=True, packing=packing,
        )  # fmt: skip
        past.copy_(positions[packing.last] + 1)  # a view: the state moves on
        return hidden

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
        done, kept = [], []
        for index, count, ids, logprobs, stop in facts:
            row, response = self.rows[index], tuple(ids[:count])
            done.append(Completion(row.request.key, response, tuple(logprobs[:count]), stop, now - row.since))
            if row.request.conversation is not None:
                row.held = (*row.request.prompt_ids, *response[:-1])  # the last token has not been through the model
                kept.append(row)
        gone = set(ended)
        self._arrange([row for index, row in enumerate(self.rows) if index not in gone], self.kept + kept)
        return done

    def _arrange(self, rows: list[_Row], kept: list[_Row]) -> None:
        """Make the cache hold these live rows, then these kept ones; whoever is in the right part stays where it is."""
        places = {row: place for place, row in enumerate(self.rows + self.kept)}
        self.rows, self.kept = _in_place(rows, 0, places), _in_place(kept, len(rows), places)
        moves = [(to, places.get(row, to)) for to, row in enumerate(self.rows + self.kept)]  # a new row holds nothing
        moves = [(to, source) for to, source in moves if to != source]
        if not moves:
            return
        to, source = (torch.tensor(index, device=self.device) for index in zip(*moves, strict=True))
        self.cache.move(to, source, int(self.lengths[source].max()))
        for state in (self.lengths, self.counts, self.ids, self.logprobs, self.uniforms):
            state[to] = state[source]


def _in_place(rows: list[_Row], start: int, places: Mapping[_Row, int]) -> list[_Row]:
    """The rows in an order in which as many as can be keep their places, when they begin at `start`."""
    slots: list[_Row | None] = [None] * len(rows)
    others = []
    for row in rows:
        place = places.get(row, -1) - start
        if 0 <= place < len(rows):
            slots[place] = row
        else:
            others.append(row)
    return [others.pop() if row is None else row for row in slots]


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
