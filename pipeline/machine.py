"""What settings that are left open come to on this machine."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from pipeline.config import Config
from pipeline.memory import model_shape, stage_memory

AUTO = "auto"
ROOM = 0.9  # of a rank's memory: the rest is for what the estimate does not know


def settle(config: Config) -> Config:
    """The configuration with `run.ranks` = 0 and `optimize.gradient_checkpointing` = auto decided.

    Ranks: two where there are two GPUs, or no GPU and two cores, else one. Activations are computed again where they
    would not fit, by the estimate of a dry run, and where the model's shape is not known.
    """
    if config.run.ranks and config.optimize.gradient_checkpointing != AUTO:
        return config
    gpus = torch.cuda.device_count()
    ranks = config.run.ranks or min(2, gpus or cores())
    recompute = config.optimize.gradient_checkpointing
    if recompute == AUTO:
        memory = torch.cuda.get_device_properties(0).total_memory if gpus else host_memory() // ranks
        recompute = "never" if activations_fit(config, ranks, memory, "cuda" if gpus else "cpu") else "always"
    return replace(
        config,
        run=replace(config.run, ranks=ranks),
        optimize=replace(config.optimize, gradient_checkpointing=recompute),
    )


def activations_fit(config: Config, ranks: int, memory: int, device: str) -> bool:
    """Whether a rank with `memory` bytes can keep all activations of a micro-batch; False for an unknown shape."""
    shape = model_shape(config)
    if shape is None:
        return False
    keeping = replace(config, optimize=replace(config.optimize, gradient_checkpointing="never"))
    parts = stage_memory(keeping, shape, ranks, device)["optimize"]
    needed = sum(size for part, size in parts.items() if device == "cpu" or not part.startswith("host"))
    return needed <= ROOM * memory


def cores() -> int:
    """The cores that this process may use: all, or those of a container's cpuset, `taskset` or a comparison's share."""
    return len(os.sched_getaffinity(0))


def host_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
