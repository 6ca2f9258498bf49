"""The training engines as the settings ask for them: one of the policy, and one of a critic where there is one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import nn

from runtime.critic import load_critic
from runtime.engine import TrainingEngine
from runtime.model import load_policy
from stages.context import Context


def policy_engine(
    context: Context, weights: Path, *, temperature: float, state_folder: Path | None = None
) -> TrainingEngine:
    """An engine on the weights of a policy folder. All ranks call it together.

    Args:
        weights: policy folder.
        temperature: sampling temperature of the log-probs (Eq. 3).
        state_folder: engine checkpoint to go on from; None: a fresh optimizer.
    """
    model, v_offset = context.config.model, context.config.value.v_offset
    load = partial(
        load_policy,
        weights,
        dtype=model.dtype,
        attention=model.attention,
        temperature=temperature,
        v_offset=v_offset,
    )
    return _engine(context, load, state_folder)


def critic_engine(context: Context, weights: Path, state_folder: Path | None = None) -> TrainingEngine:
    """Likewise on the weights of a critic's folder."""
    model = context.config.model
    return _engine(context, partial(load_critic, weights, dtype=model.dtype, attention=model.attention), state_folder)


def _engine(context: Context, load: Callable[[], nn.Module], state_folder: Path | None) -> TrainingEngine:
    config = context.config.optimize
    return TrainingEngine(
        load,
        context.distributed,
        dtype=context.config.model.dtype,
        zero_stage=config.zero_stage,
        max_grad_norm=config.max_grad_norm,
        weight_decay=config.weight_decay,
        adam_betas=(config.adam_beta1, config.adam_beta2),
        adam_epsilon=config.adam_epsilon,
        gradient_checkpointing=config.gradient_checkpointing == "always",
        offload_optimizer=config.offload_optimizer,
        offload_parameters=config.offload_parameters,
        state_folder=state_folder,
    )
