"""Which weights decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def decay_groups(
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]], weight_decay: float
) -> list[dict[str, Any]]:
    """AdamW parameter groups: matrices decay, norms and biases (fewer than two dimensions) do not, as is usual."""
    decayed, plain = [], []
    for _, parameter in named_parameters:
        shape = getattr(parameter, "ds_shape", parameter.shape)  # a partitioned parameter's own shape is empty
        (decayed if len(shape) >= 2 else plain).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
