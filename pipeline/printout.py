"""What a run prints: a line an iteration, the table of times, the end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.manifests import Manifest
from pipeline.plan import Facts, Name, Step
from pipeline.run_directory import RunPaths, resume_command
from runtime.files import atomic_write_text
from runtime.progress import clock

# Parts of `StageResult.seconds` that are neither generation, environment, scoring, optimising nor evaluating,
# though a stage does them. The time of a stage that it gives no part for counts as staging too.
STAGING_PARTS = ("load_s", "save_s", "export_s", "critic_save_s", "refresh_s")
NOT_PARTS = ("total", "manifest")
TIMES_KEPT = 50  # processes of a run that times.json remembers one by one
ITERATION_STAGES = ("collect_rollouts", "compute_advantages", "optimize")


def environment_line(name: str, facts: Mapping[str, Any]) -> str:
    """What is played, out of `Adapter.description()`: single values and counts; hashes are for results.json.

    Example: `environment alfworld: source generated, scene tiny, grammars (move 3900), counts (train 2000, dev 300)`
    """
    shown = []
    for key, value in facts.items():
        if isinstance(value, Mapping) and value and all(isinstance(one, int | float) for one in value.values()):
            shown.append(f"{key} ({', '.join(f'{part} {number}' for part, number in value.items())})")
        elif isinstance(value, str | int | float) and value != name and not key.endswith("sha256"):
            shown.append(f"{key} {value}")
    return f"environment {name}: {', '.join(shown)}"


def iteration_line(iteration: int, facts: Facts, manifests: Mapping[Name, Manifest], mean_s: float) -> str:
    """Example: `iteration 12/70  success 0.41  turns 11.3  invalid 0.08  V ev 0.22  kl 0.004  entropy 1.02  |
    collect 3.1s  advantages 0.4s  optimize 2.0s  |  05:20 left`

    Args:
        mean_s: seconds an iteration took in this process so far, evaluations included.
    """
    metrics: dict[str, float] = {}
    for stage in ITERATION_STAGES:
        if (stage, iteration) in manifests:
            metrics.update(manifests[stage, iteration].metrics)
    shown = [
        ("success", "rollout/success", ".3f"),
        ("turns", "rollout/turns", ".1f"),
        ("invalid", "rollout/invalid_share", ".3f"),
        ("V ev", "sapo/explained_variance_v", ".2f"),
        ("critic ev", "critic/explained_variance", ".2f"),
        ("kl", "sapo/approx_kl", ".4f"),
        ("entropy", "sapo/entropy", ".3f"),
    ]
    numbers = "  ".join(f"{label} {metrics[name]:{form}}" for label, name, form in shown if name in metrics)
    stages = [
        (label, manifests[stage, iteration].seconds.get("total", 0.0))
        for label, stage in (("collect", "collect_rollouts"), ("advantages", "compute_advantages"),
                             ("optimize", "optimize"), ("evaluate", "evaluate"))
        if (stage, iteration) in manifests
    ]  # fmt: skip
    seconds = "  ".join(f"{label} {value:.1f}s" for label, value in stages)
    left = clock(mean_s * (facts.iterations - iteration))
    return f"iteration {iteration}/{facts.iterations}  {numbers}  |  {seconds}  |  {left} left"


def plan_table(steps: list[Step]) -> str:
    """The plan, runs of equal iterations folded into one line."""
    counts = {action: sum(step.action == action for step in steps) for action in ("skip", "run", "stale")}
    lines = [f"plan: {counts['run']} steps to do, {counts['skip']} done or not needed"]
    at = 0
    while at < len(steps):
        step = steps[at]
        until = at
        while until + 1 < len(steps) and step.iteration and _in_iteration(steps[until + 1], step.action):
            until += 1
        if until > at:
            names = " ".join(dict.fromkeys(one.stage for one in steps[at : until + 1]))
            first, last = step.iteration, steps[until].iteration
            lines.append(f"  {step.action:<6} iterations {first}-{last}: {names}")
        else:
            where = f" {step.iteration}" if step.iteration else ""
            lines.append(f"  {step.action:<6} {step.stage}{where}: {step.why}")
        at = until + 1
    return "\n".join(lines)


def _in_iteration(step: Step, action: str) -> bool:
    return step.iteration > 0 and step.action == action


def stage_work_s(manifest: Manifest) -> float:
    """Seconds of a stage that it spent on its own work."""
    return sum(value for part, value in manifest.seconds.items() if part not in (*STAGING_PARTS, *NOT_PARTS))


def add_times(path: Path, started: float, wall_s: float, startup_s: float, done: list[Manifest]) -> dict[str, Any]:
    """Add one process's times to times.json and return the whole record.

    `wall_s` runs from the start of the process's work to now and has `startup_s` in it (imports apart,
    joining the ranks and making the environment's data ready are set-up, not staging).
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        processes = list(record["processes"])
        stages = {stage: dict(parts) for stage, parts in record["stages_s"].items()}
        record = {key: float(record[key]) for key in ("wall_s", "startup_s", "work_s")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        record, processes, stages = {"wall_s": 0.0, "startup_s": 0.0, "work_s": 0.0}, [], {}
    for manifest in done:
        entry = stages.setdefault(manifest.stage, {"total": 0.0, "times": 0})
        entry["times"] += 1
        for part, seconds in manifest.seconds.items():
            entry[part] = round(entry.get(part, 0.0) + seconds, 4)
    work_stages = (*ITERATION_STAGES, "evaluate", "warm_start")
    work_s = sum(stage_work_s(manifest) for manifest in done if manifest.stage in work_stages)
    record["wall_s"] += wall_s
    record["startup_s"] += startup_s
    record["work_s"] += work_s
    running = record["wall_s"] - record["startup_s"]
    record["staging_share"] = round(max(0.0, running - record["work_s"]) / running, 5) if running > 0 else 0.0
    processes.append({"started": time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(started)), "wall_s": wall_s,
                      "startup_s": startup_s, "work_s": work_s, "steps": len(done)})  # fmt: skip
    record["stages_s"], record["processes"] = stages, processes[-TIMES_KEPT:]
    atomic_write_text(path, json.dumps(record, indent=1) + "\n")
    return record


def times_table(record: Mapping[str, Any]) -> str:
    """Where the time of a run went, all its processes together."""
    wall = record["wall_s"]
    lines = [f"time: {clock(wall)} in {len(record['processes'])} process(es)"]
    for stage, parts in record["stages_s"].items():
        named = [f"{part} {seconds:.1f}" for part, seconds in parts.items() if part not in ("total", "times")]
        share = 100 * parts["total"] / wall if wall else 0.0
        lines.append(f"  {stage:<20}{parts['total']:>9.1f} s {share:>5.1f}%  ({', '.join(named)})")
    lines.append(
        f"  {'start-up':<20}{record['startup_s']:>9.1f} s {100 * record['startup_s'] / wall if wall else 0:>5.1f}%"
    )
    staging = max(0.0, wall - record["startup_s"] - record["work_s"])
    lines.append(
        f"  {'staging overhead':<20}{staging:>9.1f} s {100 * record['staging_share']:>5.1f}%  of the time after "
        "start-up: all that is not generation, environment, scoring, optimising or evaluating"
    )
    return "\n".join(lines)


def final_summary(paths: RunPaths, facts: Facts, manifests: Mapping[Name, Manifest]) -> str:
    """Success before and after on held-out games, where the files are, what to type next."""
    before, after = manifests.get(("evaluate", 0)), manifests.get(("evaluate", facts.iterations))
    lines = ["", f"run complete: {facts.iterations} iterations in {paths.root}"]
    if before is not None and after is not None:
        for name in sorted(before.metrics.keys() & after.metrics.keys()):
            if name.startswith("evaluate/") and name.endswith("success"):
                first, last = before.metrics[name], after.metrics[name]
                lines.append(f"  {name.removeprefix('evaluate/'):<28} {first:.3f} -> {last:.3f}  ({last - first:+.3f})")
    lines += [
        f"  policy      {paths.export}   (AutoModelForCausalLM.from_pretrained)",
        f"  evaluations {paths.evaluation(facts.iterations) / 'results.json'}",
        f"  metrics     {paths.metrics}",
        f"  times       {paths.times}",
        "next:",
        f"  python -m pipeline.report {paths.root}   # a page of curves and episodes",
        *([f"  tensorboard --logdir {paths.tensorboard}"] if paths.tensorboard.is_dir() else []),
        f"  {resume_command(paths)} --iterations {2 * facts.iterations or 1}   # train on",
        f"  bash run.sh --model {paths.export}   # a new run from this policy",
    ]
    return "\n".join(lines)
