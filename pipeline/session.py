"""One process's part in a run: the driver and a stage script both open it, and do a step the same way."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from env_adapters.registry import make_adapter
from pipeline.config import Config
from pipeline.config_loading import load_config
from pipeline.cpu_time import cpu_seconds
from pipeline.export import export_policy
from pipeline.faults import names_its_remedy, one_line
from pipeline.manifests import (
    CRITIC,
    POLICY,
    Manifest,
    apply_retention,
    check_outputs,
    describe_outputs,
    peak_memory_mib,
    read_manifests,
    versions,
    write_manifest,
)
from pipeline.memory import disk_gib
from pipeline.plan import OTHER_SETTINGS, Facts, Name, Step, input_digests, input_makers, plan
from pipeline.printout import environment_line
from pipeline.recovery import way_on
from pipeline.run_directory import EXPORT, STAGES, RunError, RunLock, RunPaths, check_disk, redo
from pipeline.signals import StopRequest, end_with_parents
from runtime.distributed import Distributed
from runtime.engine import init_distributed
from runtime.files import remove_leftovers
from runtime.forwarding import SERVICES, Forwarder
from runtime.metrics import MetricsLog
from runtime.progress import Progress, ProgressReport
from stages.algorithm import algorithm_of
from stages.context import Context, Resident, StageResult

Result = TypeVar("Result")


@dataclass
class Session:
    """Rank 0 owns the lock, the manifests and the metrics; the other ranks are told what to do."""

    paths: RunPaths
    config: Config
    distributed: Distributed
    stop: StopRequest
    adapter: Any = None
    progress: Progress = field(default_factory=lambda: Progress(False))
    resident: Resident = field(default_factory=Resident)
    lock: RunLock | None = None
    log: MetricsLog | None = None
    forwarders: list[Forwarder] = field(default_factory=list)  # rank 0
    manifests: dict[Name, Manifest] = field(default_factory=dict)  # rank 0
    # rank 0: steps whose files (those under a prefix; "": all) were made or read in this process
    trusted: set[tuple[Name, str | tuple[str, ...]]] = field(default_factory=set)
    at: Name = ("start", 0)  # what is being done, for error messages
    startup_s: float = 0.0

    @property
    def is_main(self) -> bool:
        return self.distributed.is_main

    @property
    def facts(self) -> Facts:
        return Facts.of(self.config)

    def on_main(self, work: Callable[[], Result], what: str) -> Result:
        """Do something on rank 0 and give its result to all ranks; where it refuses, all ranks refuse alike."""
        result, fault = None, None
        if self.is_main:
            try:
                result = work()
            except Exception as caught:
                if not names_its_remedy(caught) or self.distributed.world_size == 1:
                    raise
                fault = caught
        result, message = self.distributed.broadcast((result, None if fault is None else one_line(fault)), what)
        if fault is not None:
            raise fault
        if message is not None:
            raise RunError(message)
        return result

    def steps(self) -> list[Step]:
        """The plan as of now, the same on every rank.

        Raises:
            RunError: something is stale; names it and the remedy.
        """
        return self.on_main(self.steps_on_main, "the plan")

    def steps_on_main(self) -> list[Step]:
        """The plan, for rank 0 alone."""
        return refuse_stale(plan(self.facts, self.manifests), self.paths)

    def close(self) -> None:
        if self.resident.environments is not None:
            self.resident.environments.close()
        if self.log is not None:
            self.log.close()
        for forwarder in self.forwarders:
            forwarder.close()
        if self.lock is not None:
            self.lock.release()


def refuse_stale(steps: list[Step], paths: RunPaths) -> list[Step]:
    """The steps themselves, unless one is stale."""
    for step in steps:
        if step.action == "stale":
            raise RunError(f"{stale_message(step, paths)}")
    return steps


def stale_message(step: Step, paths: RunPaths) -> str:
    folder = paths.stage(step.stage, step.iteration)
    if step.stage == EXPORT:
        remedy = "set run.iterations to the newest policy's number, then start again"
    elif step.why == OTHER_SETTINGS:
        remedy = f"put {paths.config} back as it was, use the version that made it, or choose another --run-dir"
    elif step.stage in ("reserve_vocab", "warm_start"):
        remedy = redo(step.stage, folder)
    else:
        remedy = f"put back what changed, or delete {folder} and start again to make it anew"
    return f"{folder}: {step.stage} is stale: {step.why}; {remedy}"


def open_session(root: Path) -> Session:
    """Join the ranks, take the lock, check the configuration, make the adapter's data ready.

    Raises:
        ConfigError, RunError, EnvironmentFault: see there.
    """
    started = time.monotonic()
    paths = RunPaths(root)
    config = load_config(paths.config)
    end_with_parents()
    distributed = init_distributed(config.run.stage_timeout_s)
    session = Session(paths, config, distributed, StopRequest(distributed.rank))
    session.on_main(lambda: _take_over(session), "the lock of the run directory")
    session.progress = Progress(session.is_main and config.logging.progress)
    session.adapter = make_adapter(config.env.name, config.env.options)
    session.on_main(lambda: _prepare(session), "the environment's data")
    if not session.is_main:
        session.adapter.prepare()
    session.startup_s = time.monotonic() - started
    return session


def import_stages(session: Session) -> None:
    """Import what the stages need (transformers takes seconds): start-up, not a stage's time."""
    started = time.monotonic()
    for stage in STAGES:
        importlib.import_module(f"stages.{stage}")
    session.startup_s += time.monotonic() - started


def _take_over(session: Session) -> None:
    paths, config, ranks = session.paths, session.config, session.distributed.world_size
    session.lock = RunLock(paths.lock)
    session.lock.acquire()
    remove_leftovers(paths.root)
    if ranks != config.run.ranks:
        print(f"note: started with {ranks} ranks, config.yaml says {config.run.ranks}; numbers agree up to rounding")
    session.manifests = read_manifests(paths)
    session.log = MetricsLog(paths.metrics, paths.tensorboard if config.logging.tensorboard else None)
    session.forwarders = [Forwarder(name, paths.root) for name in SERVICES if getattr(config.logging, name)]
    for (stage, iteration), manifest in session.manifests.items():
        if not session.log.has(stage, iteration):  # the run was killed between the manifest and its line
            session.log.write(stage, iteration, manifest.seconds.get("total", 0.0), manifest.metrics)


def _prepare(session: Session) -> None:
    report = ProgressReport(session.progress)
    session.adapter.prepare(report)
    report.close()
    description = session.adapter.description()
    print(environment_line(session.config.env.name, description), flush=True)
    refuse_other_data(session.paths.root, session.manifests, description)
    check_tasks(session.adapter, session.config)


def refuse_other_data(root: Path, manifests: Mapping[Name, Manifest], description: Mapping[str, Any]) -> None:
    """A run goes on over the games or the catalogue that it began with.

    Raises:
        RunError: the adapter describes other data than a manifest holds; names what differs.
    """
    now = json.loads(json.dumps(description))
    for (stage, iteration), manifest in manifests.items():
        then = manifest.environment
        changed = sorted(key for key in then.keys() & now.keys() if then[key] != now[key])
        if changed:
            parts = "; ".join(f"{key} {then[key]} -> {now[key]}"[:300] for key in changed)
            raise RunError(
                f"{root}: the environment's data has changed since {stage} {iteration} ({parts}); put the old data "
                "back, or start a new run with another --run-dir"
            )


def check_tasks(adapter: Any, config: Config) -> None:
    """The environment has what the run needs; said at the start, not when a stage comes to it.

    Raises:
        RunError: a split has too few tasks.
    """
    name, samples = config.env.name, algorithm_of(config).samples
    wanted = config.rollout.trajectories // samples
    found = len(adapter.tasks(adapter.train_split))
    if found < wanted:
        remedy = "see what it says above and its options"
        if found:
            remedy = f"set rollout.trajectories={found * samples} or less"
        asked = f"rollout.trajectories = {config.rollout.trajectories}"
        more = f" asks for {wanted}" if samples > 1 else ""
        raise RunError(f"{name}: its split {adapter.train_split} has {found} tasks, {asked}{more}; {remedy}")
    if config.warm_start.enabled and not adapter.tasks(adapter.warm_start_split):
        raise RunError(
            f"{name}: its split {adapter.warm_start_split} has no tasks to demonstrate; "
            "check the environment's options, or set warm_start.enabled=false"
        )
    if not any(adapter.tasks(split) for split in adapter.evaluation_splits):
        splits = ", ".join(adapter.evaluation_splits)
        raise RunError(f"{name}: no held-out tasks to evaluate on ({splits}); check the environment's options")


def do_step(session: Session, step: Name, recompute: bool = False) -> Manifest | None:
    """Check the inputs, do one step on all ranks, write its manifest. Returns the manifest on rank 0.

    Raises:
        RunError: an input is missing or damaged, or the disk is too full.
        whatever the stage raises.
    """
    stage, iteration = session.at = step
    session.on_main(lambda: _check_before(session, step, recompute), f"the checks before {stage}")
    started, cpu_before = time.monotonic(), cpu_seconds()
    if stage == EXPORT:
        last = session.facts.iterations
        session.on_main(lambda: export_policy(session.paths.policy(last), session.paths.export), "the export")
        result = StageResult()
    else:
        module = importlib.import_module(f"stages.{stage}")
        context = Context(
            config=session.config,
            paths=session.paths,
            iteration=iteration,
            distributed=session.distributed,
            adapter=session.adapter,
            resident=session.resident,
            progress=session.progress,
        )
        result = module.run(context, recompute=True) if recompute else module.run(context)
    session.distributed.barrier(f"the end of {stage} {iteration}")
    work_s = time.monotonic() - started
    return _record(session, step, result, work_s, cpu_seconds() - cpu_before)


def _check_before(session: Session, step: Name, recompute: bool) -> None:
    stage, iteration = step
    paths, config = session.paths, session.config
    for name, maker in input_makers(step, session.facts).items():
        if recompute and name != "rollouts":  # no model is loaded
            continue
        manifest = session.manifests.get(maker)
        if manifest is None:
            raise RunError(f"{paths.root}: {stage} {iteration} needs {maker[0]} {maker[1]} first; do that stage before")
        if name == "policy" and POLICY in manifest.removed:
            raise RunError(
                f"{paths.root}: policy {maker[1]} was removed by retention (checkpoint.keep_last, keep_every), "
                f"so {stage} {iteration} cannot be done any more; take a later iteration"
            )
        weights_only = maker[0] in ("warm_start", "optimize") and stage != "optimize"
        prefix = (POLICY, CRITIC) if weights_only else ""
        read = {(maker, ""), (maker, prefix)} & session.trusted
        try:
            check_outputs(manifest, paths.stage(*maker), prefix, hashes=not read)
        except RunError as fault:
            if maker[0] != "optimize":
                raise
            on = way_on(paths, session.manifests, maker[1], config.warm_start.enabled)
            raise RunError(f"{str(fault).rpartition('; ')[0]}; {on}") from fault
        session.trusted.add((maker, prefix))
    source = paths.policy(max(iteration - 1, 0)) if stage != "reserve_vocab" else None
    check_disk(paths.root, disk_gib(config, stage, source), config.checkpoint.min_free_gib, f"{stage} {iteration}")
    paths.manifest(stage, iteration).unlink(missing_ok=True)
    session.manifests.pop(step, None)


def _record(session: Session, step: Name, result: StageResult, work_s: float, cpu_s: float) -> Manifest | None:
    stage, iteration = step
    cuda = torch.cuda.max_memory_allocated() if session.distributed.device.type == "cuda" else 0
    memory = session.distributed.gather(peak_memory_mib(cuda), "peak memory")
    cpu_s = session.distributed.sum([cpu_s], "the CPU seconds of all ranks")[0]
    if not session.is_main:
        return None
    started = time.monotonic()
    folder = session.paths.stage(stage, iteration)
    manifest = Manifest(
        stage=stage,
        iteration=iteration,
        config=session.facts.config,
        inputs=input_digests(step, session.facts, session.manifests),
        outputs=describe_outputs(folder),
        counts=dict(result.counts),
        metrics=dict(result.metrics),
        seconds={"total": work_s, **result.seconds},
        cpu_s=round(cpu_s, 2),
        peak_memory_mib={kind: max(rank[kind] for rank in memory) for kind in ("cpu", "cuda")},
        ranks=session.distributed.world_size,
        versions=versions(),
        environment=session.adapter.description(),
    )
    manifest = replace(manifest, seconds={**manifest.seconds, "manifest": time.monotonic() - started})
    write_manifest(manifest, session.paths.manifest(stage, iteration))
    session.manifests[step] = manifest
    session.trusted.add((step, ""))
    if session.log is not None:
        session.log.write(stage, iteration, work_s, result.metrics)
    if stage in ("optimize", "warm_start"):
        keep = session.config.checkpoint
        session.manifests |= apply_retention(session.paths, session.manifests, keep.keep_last, keep.keep_every)
    sys.stdout.flush()
    return manifest
