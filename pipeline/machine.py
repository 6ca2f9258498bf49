"""What settings that are left open come to on this machine."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import torch

from pipeline.config import Config
from pipeline.memory import model_shape, stage_memory

AUTO = "auto"
ROOM = 0.9  # of a rank's memory: the rest is for what the estimate does not know
CGROUPS = Path("/sys/fs/cgroup")  # a container sees its own limits here


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
    """The cores that this process may use: all, or those of a container's cpuset, `taskset` or a comparison's share; no
    more than a container's quota (`docker run --cpus 2`), rounded up."""
    quota, period = _cpu_quota()
    granted = math.ceil(quota / period) if quota > 0 else math.inf
    return int(min(len(os.sched_getaffinity(0)), granted))


def host_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or a container's limit."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [_numbers("memory.max"), _numbers("memory/memory.limit_in_bytes")]
    return min([physical, *(limit[0] for limit in limits if limit)])


def _cpu_quota() -> tuple[int, int]:
    """Microseconds that may be spent in each period of so many; not positive: no quota."""
    if len(new := _numbers("cpu.max")) == 2:
        return new[0], new[1]
    quota, period = _numbers("cpu/cpu.cfs_quota_us"), _numbers("cpu/cpu.cfs_period_us")
    return (quota[0], period[0]) if quota and period else (0, 1)


def _numbers(name: str) -> list[int]:
    """The numbers of a control group's file, version 2 (or 1: those in subfolders); none where there is no such file.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html; "max" is no limit.
    """
    try:
        words = (CGROUPS / name).read_text().split()
    except OSError:
        return []
    return [int(word) for word in words if word.lstrip("-").isdecimal()]
