"""The KV cache of the decode loop: a row a conversation, in one tensor, written where the generator says."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class RowCache:
    """Keys and values of all rows and layers in one tensor [layers, 2, slots, kv_heads, max_len, head_dim].

    It stands where transformers expects its own cache: attention layers call `update`. Before a forward, the generator
    says what the forward is: whole prompts into rows first..last-1, or tokens behind what rows first..last-1 hold.
    """

    is_compileable = False

    def __init__(self, config: Any, slots: int, max_len: int, dtype: torch.dtype, device: torch.device) -> None:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.max_len = max_len
        # one position more than the longest row: padding goes there that would be beyond the end
        shape = (config.num_hidden_layers, 2, slots, config.num_key_value_heads, max_len + 1, head_dim)
        self.store = torch.zeros(shape, dtype=dtype, device=device)
        self._rows = slice(0, 0)
        self._longest = 0
        self._positions: tuple[Tensor, Tensor] | None = None

    def write_prompts(self, first: int, last: int) -> None:
        """The next forward is a prefill of rows first..last-1, from position 0."""
        self._rows, self._positions = slice(first, last), None

    def write_behind(self, first: int, last: int, longest: int, positions: Tensor) -> None:
        """The next forward puts tokens of rows first..last-1 at `positions` [n, T]; keys up to `longest` are read."""
        self._rows, self._longest = slice(first, last), longest
        rows = torch.arange(last - first, device=positions.device)[:, None].expand_as(positions)
        self._positions = (rows, positions.clamp(max=self.max_len))

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store what a layer computed, [n, kv_heads, T, head_dim]; return what it shall attend to."""
        stored_keys, stored_values = self.store[layer, 0, self._rows], self.store[layer, 1, self._rows]
        if self._positions is None:
            length = keys.shape[2]
            stored_keys[:, :, :length] = keys
            stored_values[:, :, :length] = values
            return keys, values
        rows, positions = self._positions
        stored_keys[rows, :, positions] = keys.transpose(1, 2)
        stored_values[rows, :, positions] = values.transpose(1, 2)
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
