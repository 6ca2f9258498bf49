"""A critic of the policy's size: the same decoder with one number a position in place of the vocabulary.

transformers' token classifier with one label is that model; a critic's folder is a plain transformers folder. The
first critic has the weights of policy 0 and a head of zeros, so that every value is 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from runtime.batches import TokenBatch
from runtime.files import atomic_folder
from runtime.hidden_states import hidden_states_at
from runtime.pretrained import load_token_classifier, save_as_token_classifier


class Critic(nn.Module):
    """Values at the turn boundaries, or before every response token, in units of r_max."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    @property
    def pretrained(self) -> nn.Module:
        """The transformers model that is saved."""
        return self.classifier

    def forward(self, batch: TokenBatch, by_token: bool) -> torch.Tensor:
        """float32 [N] before each response token, or [K] at the last token of each turn's prompt."""
        at = batch.response_mask.flatten().nonzero().squeeze(1) if by_token else batch.turn_start
        hidden = hidden_states_at(self.classifier.base_model, at - 1, input_ids=batch.input_ids, use_cache=False)
        return self.classifier.score(hidden).squeeze(1).float()


def make_first_critic(policy_folder: Path, folder: Path) -> None:
    """Write the critic that training starts from; `folder` appears whole. The same policy, the same bytes."""
    with atomic_folder(folder) as temporary:
        save_as_token_classifier(policy_folder, temporary)


def load_critic(
    folder: Path, *, dtype: str, attention: str, device: torch.device | str | None = None
) -> Critic:  # fmt: skip
    """The critic of a folder.

    Raises:
        ModelFilesError: it is not there, or damaged.
    """
    critic = Critic(load_token_classifier(Path(folder), getattr(torch, dtype), attention))
    return critic if device is None else critic.to(device)


def resident_critic(
    resident: Any, folder: Path, fingerprint: str, *, dtype: str, attention: str, device: torch.device | str
) -> Critic:
    """The process's plain inference critic with the weights of `folder`: kept, or loaded anew.

    Args:
        resident: stages.context.Resident; its `critic_replica` and `critic_version` are updated.
        fingerprint: of the folder's weights.
    """
    if resident.critic_version != fingerprint:
        resident.critic_replica = None  # the old one goes before the new one comes
        loaded = load_critic(folder, dtype=dtype, attention=attention, device=device)
        resident.critic_replica = loaded.eval().requires_grad_(False)
        resident.critic_version = fingerprint
    return resident.critic_replica
