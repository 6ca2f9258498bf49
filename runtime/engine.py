"""The policy, or a critic, under DeepSpeed ZeRO: forward, backward, step, checkpoint, export.

The one importer of deepspeed.

The fp32 master weights and Adam moments live in the engine checkpoint and are the truth of a run; the
exported safetensors are a rounding of them where the model computes in bf16.

deepspeed is imported inside the functions that need it, so that whoever imports a name from here does not wait for it.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import pickle
import resource
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from runtime.deepspeed_settings import deepspeed_config
from runtime.distributed import Distributed, from_environment, launch_variables, no_meeting
from runtime.engine_files import (
    REMEDY,
    STATE_TAG,
    UNIVERSAL_TAG,
    EngineError,
    check_state_record,
    convert_to_universal,
    copy_companions,
    read_state_record,
    write_state_record,
)
from runtime.files import atomic_folder
from runtime.parameter_groups import decay_groups

__all__ = ["EngineError", "TrainingEngine", "init_distributed", "learning_rate_at"]


def learning_rate_at(update: int, base: float, warmup_steps: int) -> float:
    """Linear warm-up from base / warmup_steps to `base`, then constant. `update` counts from 0."""
    return base * min(1.0, (update + 1) / warmup_steps) if warmup_steps > 0 else base


def init_distributed(timeout_s: float) -> Distributed:
    """Join the process group of the launcher (deepspeed, mpirun, or none: one rank).

    Args:
        timeout_s: a collective that waits longer fails.

    Raises:
        CollectiveError: the port is taken, or some rank did not come.
    """
    os.environ.update(launch_variables(os.environ))
    import deepspeed

    deepspeed.utils.logger.setLevel(logging.ERROR)
    # DeepSpeed 0.19 calls names that torch 2.13 renamed, once a collective.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    # init_distributed would JIT-build a shared-memory operator for minutes; training never uses it.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # Without it DeepSpeed 0.19 starts `numactl` on a CPU once a micro-batch, to count devices for nothing.
    os.environ.setdefault("LOCAL_SIZE", "1")
    local_rank = int(os.environ["LOCAL_RANK"])
    accelerator = deepspeed.accelerator.get_accelerator()
    accelerator.set_device(local_rank)
    try:
        deepspeed.init_distributed(timeout=timedelta(seconds=timeout_s), verbose=False)
    except RuntimeError as fault:  # torch's network errors are of this kind
        raise no_meeting(fault, timeout_s) from fault
    return from_environment(torch.device(accelerator.device_name(local_rank)), timeout_s)


class TrainingEngine:
    """A model with its optimizer under ZeRO. All ranks call every method together, in the same order."""

    def __init__(
        self,
        load: Callable[[], torch.nn.Module],
        distributed: Distributed,
        *,
        dtype: str,
        zero_stage: int,
        max_grad_norm: float,
        weight_decay: float,
        adam_betas: tuple[float, float],
        adam_epsilon: float,
        gradient_checkpointing: bool = False,
        offload_optimizer: bool = False,
        offload_parameters: bool = False,
        state_folder: Path | None = None,
    ):
        """Build the engine from exported weights and, where `state_folder` is given, its checkpoint.

        Args:
            load: makes the module with its weights, in `dtype`; under stage 3 it is born partitioned, so that no rank
                ever holds all of it. Its `pretrained` is the transformers model that `export` writes.
            state_folder: folder that `save` wrote; None starts a fresh optimizer from the weights.

        Raises:
            EngineError: the checkpoint is missing, truncated, or of another kind.
        """
        import deepspeed

        from runtime.pretrained import block_classes

        record = None if state_folder is None else read_state_record(state_folder)
        if record is not None:
            check_state_record(record, state_folder, zero_stage=zero_stage, dtype=dtype)
        other_ranks = record is not None and record["world_size"] != distributed.world_size
        config = deepspeed_config(
            zero_stage=zero_stage,
            dtype=dtype,
            max_grad_norm=max_grad_norm,
            offload_optimizer=offload_optimizer,
            offload_parameters=offload_parameters,
            device=distributed.device.type,
            universal=other_ranks,
        )
        self.distributed = distributed
        self.num_updates = 0
        self.skipped_steps = 0
        self.skipped_in_row = 0  # since the last update
        self._zero_stage = zero_stage
        self._dtype = dtype
        self._movable = distributed.device.type == "cuda" and zero_stage == 3 and not offload_parameters
        module = _build(load, config, zero_stage)
        self._prefix = next(name for name, one in module.named_children() if one is module.pretrained) + "."
        if gradient_checkpointing:
            module.pretrained.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if zero_stage == 3:  # a block is gathered as one: hooks in each submodule cost a tiny model a sixth of its step
            deepspeed.utils.set_z3_leaf_modules(module, block_classes(module.pretrained), raise_if_not_found=False)
        optimizer = torch.optim.AdamW(
            decay_groups(module.named_parameters(), weight_decay),
            lr=0.0,
            betas=adam_betas,
            eps=adam_epsilon,
            fused=distributed.device.type == "cpu",  # there it saves temporaries of the weights' size
        )
        self._engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
        self._engine.train()
        if other_ranks:
            self._load_converted(Path(state_folder), record)
        elif record is not None:
            self._load(Path(state_folder), STATE_TAG, record)

    def forward(self, *inputs: Any) -> Any:
        """The module's outputs for one micro-batch on this rank. Ranks must call it equally often."""
        return self._engine(*inputs)

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Accumulate the gradient of one micro-batch.

        Args:
            loss: scalar, this micro-batch's sum divided by the GLOBAL count (all ranks, all micro-batches of
                the optimizer step). The gradient of the step is the plain sum over micro-batches and ranks.
            last: True for the step's last micro-batch.
        """
        self._engine.set_gradient_accumulation_boundary(last)
        if not math.isfinite(loss.item()):  # finite gradients or not: no rank may step on it
            loss = loss * math.nan
        # DeepSpeed averages gradients over ranks; the factor turns that into the sum the loss calls for.
        self._engine.backward(loss * self.distributed.world_size, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> float:
        """Clip, update the weights, clear the gradients.

        Returns:
            The global gradient norm before clipping. Where it is not finite nothing is updated,
            `skipped_steps` counts it and the value returned is nan.
        """
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        plain = self._zero_stage == 0 and self._dtype == "float32"  # here DeepSpeed neither checks nor reports
        norm = self._local_gradient_norm() if plain else None
        if norm is None or math.isfinite(norm):
            self._engine.step()
            norm = float(self._engine.get_global_grad_norm()) if norm is None else norm
            if self._engine.was_step_applied() and math.isfinite(norm):
                self.num_updates += 1
                self.skipped_in_row = 0
                return norm
        self._engine.module.zero_grad(set_to_none=True)
        self.skipped_steps += 1
        self.skipped_in_row += 1
        return math.nan

    def _local_gradient_norm(self) -> float:
        """L2 norm of the gradients, where every rank holds all of them, already reduced (stage 0)."""
        norms = [p.grad.norm() for p in self._engine.module.parameters() if p.grad is not None]
        return float(torch.stack(norms).norm())

    def save(self, folder: Path, client_state: dict[str, Any] | None = None) -> None:
        """Write masters, moments and counters of all ranks to `folder`, which appears complete or not at all.

        Args:
            client_state: small, goes into engine.json as it is.
        """
        if not self.distributed.is_main:
            self._save_into(None)
            return
        with atomic_folder(folder) as temporary:
            (temporary / STATE_TAG).mkdir()  # DeepSpeed passes over the error of a disk that makes no folder
            self._save_into(temporary)
            write_state_record(
                temporary,
                world_size=self.distributed.world_size,
                zero_stage=self._zero_stage,
                dtype=self._dtype,
                num_updates=self.num_updates,
                skipped_steps=self.skipped_steps,
                skipped_in_row=self.skipped_in_row,
                client_state=client_state or {},
            )

    def _save_into(self, temporary: Path | None) -> None:
        temporary = self.distributed.broadcast(temporary, "the folder of the engine checkpoint")
        self._engine.save_checkpoint(str(temporary), tag=STATE_TAG, save_latest=False)
        self.distributed.barrier("the engine checkpoint of every rank")

    def _load(self, folder: Path, tag: str, record: dict[str, Any]) -> None:
        try:
            with only_weights():
                loaded, _ = self._engine.load_checkpoint(str(folder), tag=tag)
        except Exception as fault:  # torch and DeepSpeed raise many kinds for an unreadable file
            raise EngineError(f"{folder}: cannot be loaded ({type(fault).__name__}: {fault}); {REMEDY}") from fault
        if loaded is None:
            raise EngineError(f"{folder}: DeepSpeed found nothing to load; {REMEDY}")
        self.num_updates = record["num_updates"]
        self.skipped_steps = record["skipped_steps"]
        self.skipped_in_row = record.get("skipped_in_row", 0)  # older checkpoints lack it

    def _load_converted(self, folder: Path, record: dict[str, Any]) -> None:
        """Load the checkpoint of another number of ranks by way of DeepSpeed's universal format."""
        converted = folder.with_name(f".{folder.name}.tmp-{UNIVERSAL_TAG}")
        fault = convert_to_universal(folder, converted, self._zero_stage) if self.distributed.is_main else None
        fault = self.distributed.broadcast(fault, "the converted engine checkpoint")
        if fault is not None:
            raise EngineError(
                f"{folder}: written by {record['world_size']} ranks, {self.distributed.world_size} are running, and "
                f"the conversion failed ({fault}); start with {record['world_size']} ranks"
            )
        optimizer = self._engine.basic_optimizer
        own = [{key: group[key] for key in group if key != "params"} for group in optimizer.param_groups]
        self._load(converted, UNIVERSAL_TAG, record)
        # DeepSpeed 0.19 gives every group the first one's weight decay, and all states one shared step tensor.
        for group, settings in zip(optimizer.param_groups, own, strict=True):
            group.update(settings)
        for state in optimizer.state.values():
            state["step"] = torch.as_tensor(state["step"]).clone()
        self.distributed.barrier("the loaded engine checkpoint")
        if self.distributed.is_main:
            shutil.rmtree(converted, ignore_errors=True)

    def export(self, folder: Path, companions: Path, max_shard_size: str = "4GB") -> None:
        """Write the weights as a plain transformers folder: safetensors, config, tokenizer, value_tokens.json.

        Weights equal the engine's to the bit, in the compute type. `folder` appears complete or not at all.

        Args:
            companions: a policy folder whose tokenizer and value_tokens.json are copied.
        """
        weights = self._gathered_weights()
        if self.distributed.is_main:
            with atomic_folder(folder) as temporary:
                pretrained = self._engine.module.pretrained
                pretrained.save_pretrained(temporary, state_dict=weights, max_shard_size=max_shard_size)
                copy_companions(companions, temporary)
        self.distributed.barrier("the exported policy")

    def _gathered_weights(self) -> dict[str, torch.Tensor] | None:
        """Full weights on the CPU of rank 0, named as the transformers model names them; None on other ranks."""
        if self._zero_stage == 3:
            state = self._engine._consolidated_16bit_state_dict()  # compute type, whatever the name says
        elif self.distributed.is_main:
            state = {name: tensor.detach().cpu() for name, tensor in self._engine.module.state_dict().items()}
        else:
            state = None
        own = self._prefix
        return None if state is None else {k.removeprefix(own): v for k, v in state.items() if k.startswith(own)}

    def offload_states(self) -> None:
        """Move weights, masters, moments and buffers to CPU memory so that generation has the GPU; no-op on CPU."""
        if self._movable:
            self._engine.offload_states()
            gc.collect()
            torch.cuda.empty_cache()

    def reload_states(self) -> None:
        """Undo `offload_states`."""
        if self._movable:
            self._engine.reload_states()

    def peak_memory_bytes(self) -> int:
        """Most memory this rank has held: of the GPU where there is one, else of the process."""
        if self.distributed.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.distributed.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def close(self) -> None:
        """Release hooks and memory; the engine cannot be used afterwards."""
        engine = self._engine
        del self._engine
        held = list(engine.module.parameters())
        held += [parameter.ds_tensor for parameter in held if hasattr(parameter, "ds_tensor")]
        engine.destroy()
        # DeepSpeed 0.19 stays alive in reference cycles through autograd's nodes, which Python cannot collect: what
        # holds memory is taken out of it one by one, or a second engine would come on top of the first.
        engine.basic_optimizer.state.clear()
        engine.basic_optimizer.param_groups.clear()
        vars(engine.optimizer).clear()
        for tensor in held:
            tensor.data, tensor.grad = torch.empty(0), None
        gc.collect()


def _build(load: Callable[[], torch.nn.Module], config: dict, zero_stage: int) -> Any:
    """The module; under stage 3 born partitioned."""
    from runtime.pretrained import partitioned_construction

    with partitioned_construction(config) if zero_stage == 3 else nullcontext():
        return load()


@contextmanager
def only_weights() -> Iterator[None]:
    """Within it torch.load makes tensors, plain values and the three classes that DeepSpeed 0.19 stores beside them.

    DeepSpeed itself asks for full unpickling, which would run code that someone put into a checkpoint.
    """
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    def stage(kind: Any, name: str) -> Any:
        """Stands where `getattr` is asked for: early Python 3.11 writes a member of an enum as getattr(enum, name)."""
        if kind is not ZeroStageEnum:
            raise pickle.UnpicklingError(f"getattr of {kind!r} in an engine checkpoint")
        return ZeroStageEnum[name]

    known = [LossScaler, ZeroStageEnum, fragment_address, (stage, "builtins.getattr")]
    with torch.serialization.safe_globals(known):
        os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
        try:
            yield
        finally:
            del os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"]
