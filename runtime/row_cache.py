"""The KV cache of the decode loop, a row a conversation, and attention of packed tokens over its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runtime.pretrained import register_attention, sdpa_attention

PACKED = "sapo_packed_rows"


class Packing:
    """N new tokens of n rows, one row's behind the other's, without padding.

    Args:
        lengths: how many each row has, >= 1; their sum is N, their largest T.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        ends = np.cumsum(lengths)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        columns = np.arange(ends[-1]) - (ends - lengths)[rows]
        self.shape = len(lengths), max(lengths)  # n, T
        self.dense = len(rows) == self.shape[0] * self.shape[1]
        # int64 [N], [N] and [n]: a token's row, its place among the row's new ones; a row's last token
        self.rows, self.columns, self.last = (torch.from_numpy(x).to(device) for x in (rows, columns, ends - 1))

    def pad(self, packed: Tensor) -> Tensor:
        """[N, ...] to [n, T, ...], with zeros behind the shorter rows."""
        if self.dense:
            return packed.reshape(*self.shape, *packed.shape[1:])
        padded = packed.new_zeros(*self.shape, *packed.shape[1:])
        padded[self.rows, self.columns] = packed
        return padded

    def pack(self, padded: Tensor) -> Tensor:
        """[n, T, ...] to [N, ...]."""
        return padded.flatten(0, 1) if self.dense else padded[self.rows, self.columns]


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, packing: Packing, **more: Any
) -> tuple[Tensor, None]:
    """transformers' attention function `PACKED`: only here is a batch padded, all else of a layer works on N tokens.

    Args:
        query: [1, heads, N, head_dim]. key, value: [n, kv_heads, L, head_dim] of the rows, from the cache.
        attention_mask: bool [n, 1, T, L]; None: causal, every row's first new token is its first.

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
        self._span, self._longest = slice(0, 0), 0
        self._rows = self._positions = torch.empty(0, dtype=torch.long, device=device)

    def expect(self, first: int, last: int, longest: int, rows: Tensor, positions: Tensor) -> None:
        """The next forward: tokens at `positions` [N] of rows first + `rows` [N]; keys up to `longest` are read."""
        self._span, self._longest, self._rows, self._positions = slice(first, last), longest, rows, positions

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store what a layer computed, [1, kv_heads, N, head_dim]; return the rows, [n, kv_heads, L, head_dim]."""
        stored_keys, stored_values = self.store[layer, 0, self._span], self.store[layer, 1, self._span]
        stored_keys[self._rows, :, self._positions] = keys[0].transpose(0, 1)
        stored_values[self._rows, :, self._positions] = values[0].transpose(0, 1)
        return stored_keys[:, :, : self._longest], stored_values[:, :, : self._longest]

    def move(self, to: Tensor, source: Tensor, length: int) -> None:
        """Copy the first `length` positions of rows `source` onto rows `to`."""
        self.store[:, :, to, :, :length] = self.store[:, :, source, :, :length]

    def get_seq_length(self, layer: int = 0) -> int:
        """transformers asks for it where no positions are given; they always are."""
        return 0
