"""The configuration that DeepSpeed is given. Pure: a dry run prints it, the estimates read it, without deepspeed."""

from __future__ import annotations

from typing import Any


def deepspeed_config(
    *,
    zero_stage: int,
    dtype: str,
    max_grad_norm: float,
    offload_optimizer: bool = False,
    offload_parameters: bool = False,
    device: str = "cpu",
    universal: bool = False,
) -> dict[str, Any]:
    """The configuration for one kind of engine.

    Micro-batches are planned by token budget and counted by us, so DeepSpeed's own batch sizes are 1.

    Args:
        zero_stage: 0-3.
        dtype: "float32" or "bfloat16"; masters, moments and accumulated gradients are fp32 either way
            (stage 0 in bf16 accumulates in bf16: DeepSpeed has no other form).
        max_grad_norm: global L2 norm at which gradients are clipped.
        offload_optimizer: masters and moments in CPU memory.
        offload_parameters: partitioned weights in CPU memory; stage 3 only.
        device: "cpu" or "cuda"; communication overlaps computation only on the latter.
        universal: the checkpoint to load was converted for another number of ranks.
    """
    zero: dict[str, Any] = {
        "stage": zero_stage,
        "overlap_comm": device != "cpu" and zero_stage > 0,
        "contiguous_gradients": True,
        # DeepSpeed's own linear layer lets gathered weights go between forward and backward. It is written in Python
        # and takes the place of torch's in the whole process, generation too: a tenth of a tiny model's iteration.
        "memory_efficient_linear": device != "cpu",
        "stage3_gather_16bit_weights_on_model_save": True,
        "reduce_bucket_size": 50_000_000,  # elements; DeepSpeed's default holds 2 GB of fp32
    }
    if device != "cpu":
        zero |= {
            "reduce_bucket_size": 200_000_000,
            "stage3_prefetch_bucket_size": 50_000_000,
            "stage3_param_persistence_threshold": 100_000,
        }
    if offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": device != "cpu"}
    if offload_parameters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": device != "cpu"}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": max_grad_norm,
        "steps_per_print": 1_000_000_000,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
    }
    if dtype == "bfloat16":
        config["bf16"] = {"enabled": True, "check_grad_overflow": True}
        if zero_stage > 0:
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    if universal:
        config["checkpoint"] = {"load_universal": True}
    return config
