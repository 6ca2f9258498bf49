"""The policy: a causal language model whose one forward gives log-probs, entropies, V and Q (SAPO, arXiv 2608.19842).

`runtime.pretrained` gives the model, this module the head and the readout around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from runtime.batches import PolicyOutput, TokenBatch
from runtime.hidden_states import hidden_states_at
from runtime.logprobs import action_logprobs, value_margins
from runtime.pretrained import load_causal_lm, load_config
from runtime.vocabulary import ValueTokens, read_value_tokens
from runtime.weight_files import ModelFilesError, WeightFile, read_weights

# config fields of models that change logits after the head, and the value that means "not used"
_LOGIT_CHANGES = {
    "final_logit_softcapping": None,
    "logits_soft_cap": None,
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "lm_head_multiplier": 1.0,
}


class ChunkedHead(nn.Linear):
    """The output embedding. Called with hidden states alone it is the linear layer it replaces.

    Called with positions it does the whole head's work of a forward in ONE module call: under ZeRO-3 its weight is
    gathered once for the forward and once for the backward. State-dict names stay those of the model.
    """

    @classmethod
    def replacing(cls, linear: nn.Linear) -> ChunkedHead:
        """A head around the very parameter of `linear`, so that ties to the input embedding stay."""
        head = cls(linear.in_features, linear.out_features, bias=False, device="meta")
        head.weight = linear.weight
        return head

    def forward(
        self,
        hidden: torch.Tensor,
        boundaries: torch.Tensor | None = None,
        token_ids: torch.Tensor | None = None,
        value_ids: torch.Tensor | None = None,
        temperature: float = 1.0,
    ) -> Any:
        """Logits [..., V] of `hidden` [..., D]; or, where the rest is given, (logprobs, entropies, margins).

        Args:
            hidden: at the predicting positions [N, D].
            boundaries: hidden states at the turn boundaries [K, D].
            token_ids: what followed at the predicting positions, int64 [N].
            value_ids: ids of w+ and w-, int64 [2].
            temperature: sampling temperature of the log-probs.

        Returns:
            logprobs [N], entropies [N] over W_act, margins [K]; float32.
        """
        if boundaries is None:
            return super().forward(hidden)
        margins = value_margins(boundaries, self.weight, value_ids)
        logprobs, entropies = action_logprobs(hidden, self.weight, token_ids, value_ids, temperature)
        return logprobs, entropies, margins


class Policy(nn.Module):
    """A causal language model with the value readout.

    Args:
        causal_lm: a transformers causal language model; its output embedding is replaced by a ChunkedHead.
        value_tokens: the reserved entries w+ and w-.
        temperature: the rollout's sampling temperature, > 0; the log-probs carry it (Eq. 3).
        v_offset: V is read so many tokens before a prompt's last one (at its first where it is shorter); 0 is Eq. 1.

    Raises:
        ModelFilesError: the model changes its logits after the head, or its head has a bias.
    """

    def __init__(
        self, causal_lm: nn.Module, value_tokens: ValueTokens, temperature: float, v_offset: int = 0
    ) -> None:  # fmt: skip
        super().__init__()
        _refuse_changed_logits(causal_lm.config)
        head = causal_lm.get_output_embeddings()
        if not isinstance(head, nn.Linear) or head.bias is not None:
            raise ModelFilesError(
                f"{type(causal_lm).__name__}: the output embedding is not a plain linear layer without bias; "
                "use a model such as Qwen2.5 or Llama"
            )
        causal_lm.set_output_embeddings(ChunkedHead.replacing(head))
        self.causal_lm = causal_lm
        self.value_tokens = value_tokens
        self.temperature = temperature
        self.v_offset = v_offset
        value_ids = torch.tensor([value_tokens.positive_id, value_tokens.negative_id], device="cpu")
        self.register_buffer("value_ids", value_ids, persistent=False)

    @property
    def pretrained(self) -> nn.Module:
        """The transformers model that is saved."""
        return self.causal_lm

    def forward(self, batch: TokenBatch) -> PolicyOutput:
        """Log-probs, entropies and the margins of V and Q in one pass; logits at response positions only.

        V is read at the token before a turn's response, Q at its last token (Eq. 1, 2).
        """
        predicting, boundaries = self.hidden_states(batch)
        return self._read(predicting, boundaries, batch.input_ids[batch.response_mask])

    def hidden_states(self, batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states before each response token [N, D], and where V [K, D] and then Q [K, D] are read."""
        predicting = batch.response_mask.flatten().nonzero().squeeze(1) - 1
        prompt_end = batch.turn_start - 1
        row_start = prompt_end - prompt_end % batch.input_ids.shape[1]
        v_read = (prompt_end - self.v_offset).maximum(row_start)
        wanted = torch.cat((predicting, v_read, batch.turn_end))
        hidden = hidden_states_at(self.causal_lm.get_decoder(), wanted, input_ids=batch.input_ids, use_cache=False)
        return hidden[: len(predicting)], hidden[len(predicting) :]

    def _read(self, predicting: torch.Tensor, boundaries: torch.Tensor, token_ids: torch.Tensor) -> PolicyOutput:
        """What the head says: log-probs of `token_ids` [N] where the response tokens stand, and the margins."""
        logprobs, entropies, margins = self.causal_lm.get_output_embeddings()(
            predicting,
            boundaries=boundaries,
            token_ids=token_ids,
            value_ids=self.value_ids,
            temperature=self.temperature,
        )
        return PolicyOutput(logprobs, entropies, *margins.chunk(2))

    @torch.no_grad()
    def value_token_probability(self, batch: TokenBatch) -> float:
        """The highest probability that the action distribution gives w+ or w- at any response position.

        0 by construction (Eq. 3): a check of the code path that gives the log-probs, not an estimate.
        """
        predicting, boundaries = self.hidden_states(batch)
        logprobs = [
            self._read(predicting, boundaries, value_id.expand(len(predicting))).logprobs for value_id in self.value_ids
        ]
        return torch.stack(logprobs).exp().max().item()

    @torch.no_grad()
    def load_weights(self, directory: str | Path) -> None:
        """Take over the weights of another version of the same model, in place.

        All names and shapes are checked before the first weight changes.

        Raises:
            ModelFilesError: the folder does not hold exactly this model's weights.
        """
        directory = Path(directory)
        files = read_weights(directory)
        check_complete(self.causal_lm, files, directory)
        own = self.causal_lm.state_dict()
        for file in files:
            with safe_open(str(file.path), framework="pt") as tensors:
                for name in file.tensors.keys() & own.keys():
                    own[name].copy_(tensors.get_tensor(name))


def load_policy(
    directory: str | Path,
    *,
    dtype: str | torch.dtype,
    attention: str = "sdpa",
    temperature: float = 1.0,
    v_offset: int = 0,
    device: torch.device | str | None = None,
) -> Policy:
    """The policy of a folder: safetensors, config.json, value_tokens.json.

    Args:
        dtype: of the weights, e.g. "bfloat16".
        attention: transformers' attention implementation.
        device: where to put it; None leaves it where transformers (or zero.Init) made it.

    Raises:
        ModelFilesError: no weights, pickled weights only, a missing or truncated shard, missing tensors, a model
            whose logits are changed after the head.
    """
    directory = Path(directory)
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    value_tokens = read_value_tokens(directory)
    _refuse_changed_logits(load_config(directory))
    files = read_weights(directory)
    causal_lm = load_causal_lm(directory, dtype, attention)
    check_complete(causal_lm, files, directory)
    policy = Policy(causal_lm, value_tokens, temperature, v_offset)
    return policy if device is None else policy.to(device)


def resident_replica(
    resident: Any,
    directory: str | Path,
    fingerprint: str,
    *,
    dtype: str,
    attention: str,
    temperature: float,
    device: torch.device | str,
    v_offset: int = 0,
) -> Policy:
    """The process's plain inference replica, holding the weights of `directory`: kept, refreshed or loaded.

    Args:
        resident: stages.context.Resident; its `replica` and `replica_policy` are updated.
        fingerprint: `policy_fingerprint(directory)`; weights are read only where it differs from what is held.
    """
    if resident.replica is None:
        loaded = load_policy(directory, dtype=dtype, attention=attention, device=device)
        resident.replica = loaded.eval().requires_grad_(False)
    elif resident.replica_policy != fingerprint:
        resident.replica_policy = None  # half-loaded weights must not pass for anything
        resident.replica.load_weights(directory)
    resident.replica_policy = fingerprint
    resident.replica.temperature, resident.replica.v_offset = temperature, v_offset
    return resident.replica


def _refuse_changed_logits(config: Any) -> None:
    for name, unused in _LOGIT_CHANGES.items():
        value = getattr(config.get_text_config(), name, None)
        if value is not None and value != unused:
            raise ModelFilesError(
                f"{config.model_type} model with {name} = {value}: it changes the logits after the output embedding, "
                "which the log-probs and values here would miss; use a model such as Qwen2.5 or Llama"
            )


def check_complete(causal_lm: nn.Module, files: Sequence[WeightFile], directory: Path) -> None:
    """Every parameter is in the files, in the right shape; a tied head may be missing.

    Raises:
        ModelFilesError: names the first tensor that is missing or has another shape.
    """
    tensors = {name: entry for file in files for name, entry in file.tensors.items()}
    tied = set(getattr(causal_lm, "all_tied_weights_keys", None) or ())
    for name, parameter in causal_lm.named_parameters(remove_duplicate=False):
        if name not in tensors:
            if name in tied:
                continue
            raise ModelFilesError(f"{directory}: tensor {name} is missing; copy the model again")
        expected = tuple(getattr(parameter, "ds_shape", parameter.shape))  # a partitioned one's own shape is empty
        if tensors[name].shape != expected:
            raise ModelFilesError(
                f"{directory}: tensor {name} has shape {tensors[name].shape}, the model {expected}; use its own files"
            )
