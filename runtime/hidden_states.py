"""Last hidden states where they are read: after its attention the last block has no work at other positions.

A block's feed-forward takes each position by itself, and nothing follows the last block that looks at others. So in a
row of which only the responses are read, the last feed-forward of the prompt is for nobody: half of a two-layer model's
feed-forward, a twenty-eighth of a larger one's, forward and backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

READ = "read_positions"  # how the positions travel to the last block, recomputed activations included


def hidden_states_at(decoder: Any, wanted: Tensor, **inputs: Any) -> Tensor:
    """[M, D], the last hidden states at some positions of a batch.

    Args:
        decoder: of transformers. Its first call with this function hooks its last block, if that has a dense
            feed-forward as Llama and Qwen2 have; others compute all positions.
        wanted: int64 [M], flat indices into `input_ids`; may repeat.
        inputs: of the decoder.
    """
    read = wanted.unique()
    if len(read) < inputs["input_ids"].numel() and _reads_some_only(decoder):
        inputs[READ] = read
    hidden = decoder(**inputs).last_hidden_state
    return hidden.flatten(0, 1).index_select(0, wanted)  # its backward is faster than that of hidden[...]


def _reads_some_only(decoder: Any) -> bool:
    """Whether the last feed-forward can be told which positions are read; sees to it that it can."""
    if not hasattr(decoder, "_reads_some_only"):
        block = list(getattr(decoder, "layers", None) or [None])[-1]
        feed_forward = getattr(block, "mlp", None)
        decoder._reads_some_only = isinstance(getattr(feed_forward, "gate_proj", None), nn.Linear)
        if decoder._reads_some_only:
            hooks = _LastFeedForward()
            block.register_forward_pre_hook(hooks.begin, with_kwargs=True)
            feed_forward.register_forward_pre_hook(hooks.select)
            feed_forward.register_forward_hook(hooks.spread)
    return decoder._reads_some_only


class _LastFeedForward:
    """The hooks around one call: what is read, and the shape [B, T, D] of what came in."""

    def __init__(self) -> None:
        self.read: Tensor | None = None  # int64 [R]; None: every position
        self.shape = torch.Size()

    def begin(self, _: nn.Module, __: Any, named: dict[str, Any]) -> None:
        """Before the block."""
        self.read = named.get(READ)

    def select(self, _: nn.Module, inputs: tuple[Tensor]) -> Tensor | None:
        """[B, T, D] to [R, D]."""
        if self.read is None:
            return None
        self.shape = inputs[0].shape
        return inputs[0].flatten(0, 1).index_select(0, self.read)

    def spread(self, _: nn.Module, __: Any, output: Tensor) -> Tensor | None:
        """[R, D] to [B, T, D], zeros where nobody reads."""
        if self.read is None:
            return None
        whole = output.new_zeros(self.shape).flatten(0, 1)
        return whole.index_copy(0, self.read, output).view(self.shape)
