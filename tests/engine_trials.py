"""What the launchers run for tests/stages/test_optimize.py: `engine_trials.py MODE ROOT` writes ROOT/MODE.json.

Several trials share a process because its start costs more than all of them together.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from pipeline.run_directory import RunPaths
from runtime import engine as engine_module
from runtime.distributed import CollectiveError, leave
from runtime.engine import EngineError, init_distributed
from runtime.microbatches import token_batch
from stages import optimize, warm_start
from stages.context import Resident
from tests.corridor import CorridorAdapter
from tests.training_run import context, corridor_settings, settings


def copy_run(root: Path, source: str, name: str, distributed) -> RunPaths:
    if distributed.is_main:
        shutil.copytree(root / source, root / name)
    distributed.barrier(f"the copy {name}")
    return RunPaths(root / name)


def train(paths, distributed, iterations, config=None, keep_resident=True):
    """Run the stage for each iteration; returns the metrics."""
    resident, metrics = Resident(), []
    for iteration in iterations:
        if not keep_resident and resident.engine is not None:
            resident.engine.close()
            resident = Resident()
        result = optimize.run(context(paths, config or settings(), iteration, distributed, resident))
        metrics.append({**result.metrics, **{f"count/{name}": count for name, count in result.counts.items()}})
    resident.engine.close()
    return metrics


def single(root: Path) -> dict:
    """One rank: ZeRO stages, resident against fresh processes, checkpoints of two ranks, faults."""
    distributed = init_distributed(60.0)
    results: dict = {"rank": [distributed.rank, distributed.world_size]}
    programs = []
    sys.addaudithook(
        lambda event, arguments: programs.append(str(arguments[0])) if event == "subprocess.Popen" else None
    )
    results["resident"] = train(copy_run(root, "tied", "resident", distributed), distributed, [1, 2, 3, 4])
    results["programs"] = programs.copy()
    results["fresh"] = train(
        copy_run(root, "tied", "fresh", distributed), distributed, [1, 2, 3, 4], keep_resident=False
    )
    results["untied"] = train(copy_run(root, "untied", "untied-3", distributed), distributed, [1])
    for stage in (0, 1, 2):
        results[f"stage {stage}"] = train(
            copy_run(root, "tied", f"stage-{stage}", distributed), distributed, [1, 2], settings(stage), False
        )
    results["bfloat16"] = train(
        copy_run(root, "tied", "bfloat16", distributed), distributed, [1], settings(dtype="bfloat16")
    )
    checkpointed = settings(gradient_checkpointing="always", offload_optimizer=True, offload_parameters=True)
    results["offload"] = train(copy_run(root, "tied", "offload", distributed), distributed, [1], checkpointed)
    nothing = {"kl_coef": 0.0, "entropy_coef": 0.0, "value_coef": 0.0, "q_coef": 0.0}
    warm_up = settings(value_warmup_iterations=1, value_warmup_kl_coef=0.0, **nothing)
    results["warm up"] = train(copy_run(root, "tied", "warm-up", distributed), distributed, [1], warm_up)
    for name, coefficient in (("free", 0.0), ("held", 100.0)):
        values_first = settings(
            value_warmup_iterations=1, value_warmup_kl_coef=coefficient, kl_coef=0.0, weight_decay=0.0, epochs=6,
            learning_rate=3e-3,
        )  # fmt: skip
        results[name] = train(copy_run(root, "tied", f"warm-up-{name}", distributed), distributed, [1], values_first)
    results["converted"] = train(copy_run(root, "pair", "from-pair", distributed), distributed, [2])
    results["converted 4"] = train(copy_run(root, "pair", "from-pair-4", distributed), distributed, [4])
    results["warm start"] = start_warm(root, "warm-single", distributed)
    results["faults"] = faults(root, distributed)
    results["skipped"] = skipped_step(root, distributed)
    results["left"] = {str(stage): left_when_closed(root, stage, distributed) for stage in (0, 1, 2, 3)}
    return results


def start_warm(root: Path, name: str, distributed) -> dict:
    """The warm start in the corridor, at a kill and a second attempt too: the demonstrations are there then."""
    one = context(copy_run(root, "corridor", name, distributed), corridor_settings(), 0, distributed, Resident())
    one.adapter = CorridorAdapter(CorridorAdapter.Options(tasks=one.config.warm_start.demonstrations))
    result = warm_start.run(one)
    return {**result.metrics, **result.counts, "replica": one.resident.replica_policy}


def faults(root: Path, distributed) -> dict[str, str]:
    """The message for a checkpoint that is truncated, lacks a file, or was written otherwise."""
    messages = {}
    for fault in ("truncated", "missing", "garbled", "stage"):
        paths = copy_run(root, "resident", f"fault-{fault}", distributed)
        file = next(paths.engine(1).rglob("*optim_states.pt"))
        content = file.read_bytes()
        if fault == "truncated":
            file.write_bytes(content[:-100])
        elif fault == "missing":
            file.unlink()
        elif fault == "garbled":
            file.write_bytes(b"\0" * len(content))
        config = settings(zero_stage=2) if fault == "stage" else settings()
        try:
            optimize.run(context(paths, config, 2, distributed, Resident()))
        except EngineError as error:
            messages[fault] = str(error)
    return messages


def skipped_step(root: Path, distributed) -> dict:
    """A loss that is not a number leaves the weights alone and the next step works, at every stage."""
    results = {}
    for stage in (0, 1, 2, 3):
        one = context(RunPaths(root / "tied"), settings(stage), 1, distributed, Resident())
        engine = optimize.ready_engine(one)
        batch = token_batch(optimize.read_rows(one)[:2])

        def step(factor, engine=engine, batch=batch):
            engine.backward(engine.forward(batch).logprobs.sum() * factor, last=True)
            return engine.step(1e-3)

        before = engine._gathered_weights()
        before = {name: tensor.clone() for name, tensor in before.items()}
        norm = step(float("nan"))
        after = engine._gathered_weights()
        unchanged = all(torch.equal(before[name], after[name]) for name in before)
        counted = engine.skipped_steps
        next_norm = step(1.0)
        moved = any(not torch.equal(before[name], x) for name, x in engine._gathered_weights().items())
        results[str(stage)] = [str(norm), unchanged, counted, engine.num_updates, next_norm, moved]
        engine.close()
    return results


def left_when_closed(root: Path, stage: int, distributed) -> float:
    """Elements that a closed engine still holds, in units of the weights; an open one holds three (stage 0) or five."""
    before = held_elements()
    one = context(RunPaths(root / "tied"), settings(stage), 1, distributed, Resident())
    engine = optimize.ready_engine(one)
    batch = token_batch(optimize.read_rows(one)[:2])
    engine.backward(engine.forward(batch).logprobs.sum(), last=True)
    engine.step(1e-3)
    num_weights = sum(tensor.numel() for tensor in engine._gathered_weights().values())
    assert held_elements() - before > 2.5 * num_weights  # or the count is blind
    engine.close()
    del engine, one
    return (held_elements() - before) / num_weights


def held_elements() -> int:
    """Elements of all the memory that some tensor of this process holds."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of modules that resent being looked at
        storages = {one.untyped_storage() for one in gc.get_objects() if isinstance(one, torch.Tensor)}
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()) // 4


def pair(root: Path) -> dict:
    """Two ranks: the same training, the collectives, and what a missing rank looks like."""
    distributed = init_distributed(60.0)
    rank = distributed.rank
    results: dict = {"collectives": collectives(distributed)}
    one = context(RunPaths(root / "tied"), settings(), 1, distributed, Resident())
    engine = optimize.ready_engine(one)
    largest = max(engine._engine.module.parameters(), key=lambda p: p.ds_numel)
    results["held elements"], results["all elements"] = largest.ds_tensor.numel(), largest.ds_numel
    engine.close()
    results["pair"] = train(copy_run(root, "tied", "pair", distributed), distributed, [1, 2, 3, 4])
    with everything_partitioned():
        again = settings(gradient_checkpointing="always")
        results["partitioned"] = train(
            copy_run(root, "tied", "partitioned", distributed), distributed, [1, 2, 3, 4], again
        )
    results["stage 1"] = train(copy_run(root, "tied", "pair-1", distributed), distributed, [1, 2], settings(1))
    results["warm start"] = start_warm(root, "warm-pair", distributed)
    if rank == 1:
        time.sleep(4.0)
    try:
        replace(distributed, timeout_s=1.0).barrier("the scores of all ranks")
    except CollectiveError as error:
        results["missing rank"] = str(error)
    return results


@contextmanager
def everything_partitioned():
    """Within it stage 3 gathers each weight where it is used and lets go of it at once, as of a model that is large."""
    plain = engine_module.deepspeed_config

    def apart(**asked):
        config = plain(**asked)
        config["zero_optimization"] |= {
            "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 1, "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": 0,
        }  # fmt: skip
        return config

    engine_module.deepspeed_config = apart
    try:
        yield
    finally:
        engine_module.deepspeed_config = plain


def collectives(distributed) -> dict:
    rank = distributed.rank
    return {
        "sum": distributed.sum([rank + 1.0, 1e16 if rank == 0 else -1e16]),
        "max": distributed.max(10 - rank),
        "gather": distributed.gather({"rank": rank}),
        "broadcast": distributed.broadcast(f"from {rank}"),
    }


def three(root: Path) -> dict:
    """Three ranks go on from a checkpoint of two."""
    distributed = init_distributed(60.0)
    return {"converted 4": train(copy_run(root, "pair", "from-pair-3-ranks", distributed), distributed, [4])}


def openmpi(root: Path) -> dict:
    """mpirun without launcher variables: ranks through mpi4py; then one rank's checkpoint on two."""
    distributed = init_distributed(60.0)
    results: dict = {"collectives": collectives(distributed), "local_rank": distributed.local_rank}
    results["converted"] = train(copy_run(root, "fresh", "from-single", distributed), distributed, [2])
    return results


if __name__ == "__main__":
    mode, folder = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    found = {"single": single, "pair": pair, "three": three, "openmpi": openmpi}[mode](Path(folder))
    if os.environ["RANK"] == "0":
        Path(folder, f"{mode}.json").write_text(json.dumps(found))
    leave()
