"""The tensors that go into and come out of the policy: pure torch.

One alignment: index t of a per-token tensor speaks of `input_ids[:, t]`; the logits that predict it stand at t-1.
N counts response tokens (packed row-major, x[response_mask]), K turns, B rows, T padded length.

`TokenBatch` and `PolicyOutput` are tuples because DeepSpeed's hooks find tensors in tuples only.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch


class TokenBatch(NamedTuple):
    """Token rows, right-padded; causal attention makes an attention mask needless.

    Example (two rows, prompts 7 8 and 7, responses 3 2 and 4; pad id 0):
        input_ids [[7, 8, 3, 2], [7, 4, 0, 0]], response_mask [[F, F, T, T], [F, T, F, F]],
        turn_start [2, 5], turn_end [3, 5], token_turn [0, 0, 1]
    """

    input_ids: torch.Tensor  # int64 [B, T]
    response_mask: torch.Tensor  # bool [B, T], True = sampled token
    turn_start: torch.Tensor  # int64 [K], flat index (b * T + t) of a turn's first response token
    turn_end: torch.Tensor  # int64 [K], of its last
    token_turn: torch.Tensor  # int64 [N], the turn of each response token

    def to(self, device: torch.device | str) -> TokenBatch:
        return TokenBatch(*(x.to(device) for x in self))


class PolicyOutput(NamedTuple):
    """What one forward pass says of a TokenBatch, float32."""

    logprobs: torch.Tensor  # [N] over W_act at the sampling temperature
    entropies: torch.Tensor  # [N] of the distributions the tokens came from
    value_margins: torch.Tensor  # [K] z[w+] - z[w-] after the prompt (V)
    q_margins: torch.Tensor  # [K] after the response (Q)


@dataclass(frozen=True)
class TrainBatch:
    """A TokenBatch with everything the losses need, packed like it. Values, returns, q_targets are normalised.

    What the algorithm does not have is None: V and Q of the policy, or of a critic those per turn or per token.
    """

    tokens: TokenBatch
    old_logprobs: torch.Tensor  # float32 [N]
    ref_logprobs: torch.Tensor | None  # float32 [N]; None: no KL
    advantages: torch.Tensor  # float32 [N]
    token_weights: torch.Tensor  # float32 [N]; 0 on dummy rows, else the trajectory's (1, or what its length makes it)
    turn_weights: torch.Tensor  # float32 [K]; 0 on the turns of dummy rows, else 1
    old_values: torch.Tensor | None = None  # float32 [K]
    old_q_values: torch.Tensor | None = None  # float32 [K]
    returns: torch.Tensor | None = None  # float32 [K]
    q_targets: torch.Tensor | None = None  # float32 [K]
    token_values: torch.Tensor | None = None  # float32 [N]
    token_returns: torch.Tensor | None = None  # float32 [N]

    def to(self, device: torch.device | str) -> TrainBatch:
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return TrainBatch(**{name: x if x is None else x.to(device) for name, x in moved.items()})
