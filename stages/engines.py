"""The training engine as the settings ask for it: warm_start and optimize train with the same one."""

from __future__ import annotations

from pathlib import Path

from runtime.engine import TrainingEngine
from stages.context import Context


def make_engine(
    context: Context, weights: Path, *, temperature: float, state_folder: Path | None = None
) -> TrainingEngine:
    """An engine on the weights of a policy folder. All ranks call it together.

    Args:
        weights: policy folder.
        temperature: sampling temperature of the log-probs (Eq. 3).
        state_folder: engine checkpoint to go on from; None: a fresh optimizer.
    """
    config, model = context.config.optimize, context.config.model
    return TrainingEngine(
        weights,
        context.distributed,
        dtype=model.dtype,
        attention=model.attention,
        temperature=temperature,
        zero_stage=config.zero_stage,
        max_grad_norm=config.max_grad_norm,
        weight_decay=config.weight_decay,
        adam_betas=(config.adam_beta1, config.adam_beta2),
        adam_epsilon=config.adam_epsilon,
        gradient_checkpointing=config.gradient_checkpointing,
        offload_optimizer=config.offload_optimizer,
        offload_parameters=config.offload_parameters,
        state_folder=state_folder,
    )
