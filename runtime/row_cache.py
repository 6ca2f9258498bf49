"""The KV cache of the decode loop, a row a request, and attention of packed tokens over its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runtime.pretrained import register_attention, sdpa_attention

PACKED = "sapo_packed_rows"
MAX_SPREAD = 3  # rows that a decode step reads in place, to each of its own


class Packing:
    """N new tokens of n rows of the cache, one row's behind the other's, without padding; and what attention reads.

    Attention reads a tensor of rows. Rows that stand side by side it reads in the cache, and in a decode step, where a
    row has one query, with up to two rows of others to each of ours between them, whose results are dropped. Rows
    further apart are copied together, layer by layer.

    Args:
        lengths: how many tokens each row has, >= 1; their sum is N, their largest T.
        slots: the rows, ascending.
    """

    def __init__(self, lengths: Sequence[int], slots: Sequence[int], device: torch.device) -> None:
        ends, ours = np.cumsum(lengths), np.asarray(slots)
        owners = np.repeat(np.arange(len(lengths)), lengths)
        columns = np.arange(ends[-1]) - (ends - lengths)[owners]
        span, longest = int(ours[-1] - ours[0]) + 1, max(lengths)
        in_place = span <= (MAX_SPREAD if longest == 1 else 1) * len(ours)
        rows = (ours - ours[0])[owners] if in_place else owners
        self.shape = span if in_place else len(ours), longest  # rows that are read, T
        self.dense = len(owners) == self.shape[0] * self.shape[1]
        # int64 [N], [N], [N] and [n]: a token's row of the cache, its row among those that are read, its place among
        # the row's new ones; a row's last token
        places = (ours[owners], rows, columns, ends - 1)
        self.slots, self.rows, self.columns, self.last = (torch.from_numpy(x).to(device) for x in places)
        self.read = slice(slots[0], slots[0] + span) if in_place else torch.from_numpy(ours).to(device)

    def pad(self, packed: Tensor) -> Tensor:
        """[N, ...] to [rows, T, ...], with zeros where no token of ours is."""
        if self.dense:
            return packed.reshape(*self.shape, *packed.shape[1:])
        padded = packed.new_zeros(*self.shape, *packed.shape[1:])
        padded[self.rows, self.columns] = packed
        return padded

    def pack(self, padded: Tensor) -> Tensor:
        """[rows, T, ...] to [N, ...]."""
        return padded.flatten(0, 1) if self.dense else padded[self.rows, self.columns]


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, packing: Packing, **more: Any
) -> tuple[Tensor, None]:
    """transformers' attention function `PACKED`: only here is a batch padded, all else of a layer works on N tokens.

    Args:
        query: [1, heads, N, head_dim]. key, value: [rows, kv_heads, L, head_dim], from the cache.
        attention_mask: bool [rows, 1, T, L]; None: causal, every row's first new token is its first.

    Returns:
        [1, N, heads, head_dim].
    """
    padded = packing.pad(query[0].transpose(0, 1)).transpose(1, 2)
    return packing.pack(sdpa_attention(module, padded, key, value, attention_mask, **more))[None], None


register_attention(PACKED, packed_attention)


@contextmanager
def attending_packed(config: Any) -> Iterator[None]:
    """A model of this config attends by `packed_attention` as long as this lasts."""
    own, config._attn_implementation = config._attn_implementation, PACKED
    try:
        yield
    finally:
        config._attn_implementation = own


class RowCache:
    """Keys and values of all rows and layers in one tensor [layers, 2, slots, kv_heads, max_len, head_dim].

    It stands where transformers expects its own cache: attention layers call `update`. Before a forward, the generator
    says which tokens come.
    """

    is_compileable = False

    def __init__(self, config: Any, slots: int, max_len: int, dtype: torch.dtype, device: torch.device) -> None:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, 2, slots, config.num_key_value_heads, max_len, head_dim)
        self.store = torch.zeros(shape, dtype=dtype, device=device)
        self._expected: tuple[Packing, Tensor, int] | None = None

    def expect(self, packing: Packing, positions: Tensor, longest: int) -> None:
        """The next forward: where in their rows its tokens stand [N]; keys up to `longest` are read."""
        self._expected = packing, positions, longest

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store what a layer computed, [1, kv_heads, N, head_dim]; return [rows, kv_heads, L, head_dim] to read."""
        packing, positions, longest = self._expected
        stored_keys, stored_values = self.store[layer]
        stored_keys[packing.slots, :, positions] = keys[0].transpose(0, 1)
        stored_values[packing.slots, :, positions] = values[0].transpose(0, 1)
        return stored_keys[packing.read, :, :longest], stored_values[packing.read, :, :longest]

    def get_seq_length(self, layer: int = 0) -> int:
        """transformers asks for it where no positions are given; they always are."""
        return 0
