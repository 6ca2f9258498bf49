"""A run at a glance, out of its small files: success, curves, evaluations, time, disk, what went wrong."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.config import ConfigError
from pipeline.inspect.reading import Run
from pipeline.inspect.terminal import chart, number, printable, size, sparkline
from pipeline.plan import Facts, next_step, plan
from pipeline.run_directory import EXPORT, STAGES, RunError, owner_pid
from runtime.files import CHUNK_BYTES
from runtime.progress import clock
from runtime.shards import SHARD_PATTERN

CHART_ROWS, CHART_COLUMNS = 6, 72
CURVES = (  # what is drawn small: label, metric, digits
    ("return", "rollout/return", 2),
    ("turns", "rollout/turns", 1),
    ("invalid", "rollout/invalid_share", 3),
    ("entropy", "sapo/entropy", 3),
    ("approx_kl", "sapo/approx_kl", 5),
    ("V explained", "sapo/explained_variance_v", 2),
    ("Q explained", "sapo/explained_variance_q", 2),
    ("critic explained", "critic/explained_variance", 2),
)
EVALUATIONS_SHOWN = 5  # the first and the newest
ERRORS_SHOWN = 3
DAMAGE_SHOWN = 5
TEXT_LIMIT = 600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None so far."""


def run(opened: Run, arguments: argparse.Namespace, console: Console) -> int:
    """Print what the small files say."""
    for part in (_head, _success, _curves, _evaluations, _times, _disk, _troubles):
        shown = part(opened)
        if shown is not None:
            console.print(shown)
    return 0


def _head(run: Run) -> RenderableType:
    model, env = run.setting("model", "name"), run.setting("env", "name")
    newest = max((i for stage, i in run.manifests if stage == "optimize"), default=0)
    lines = [
        Text(f"{run.paths.root}", style="bold"),
        Text(printable(f"model {model}, environment {env}, seed {run.setting('run', 'seed')}", TEXT_LIMIT)),
        Text(f"policy {newest} of {run.setting('run', 'iterations')}; {_state(run)}"),
    ]
    return Group(*lines)


def _state(run: Run) -> str:
    """Whether it runs, and what is next or in progress."""
    pid = owner_pid(run.paths.lock)
    who = f"running here as process {pid}" if pid is not None else "not running on this machine"
    try:
        step = next_step(plan(Facts.of(run.settings()), run.manifests))
    except (RunError, ConfigError):
        return who
    if step is None:
        return f"{who}; nothing left to do"
    at = f"{step.stage} {step.iteration}" if step.iteration else step.stage
    if step.stage in ("collect_rollouts", "evaluate"):
        folder = run.paths.stage(step.stage, step.iteration)
        episodes = sum(_count_lines(path) for path in folder.glob("*" + SHARD_PATTERN))
        asked = run.setting("rollout", "trajectories") if step.stage == "collect_rollouts" else None
        wanted = f" of {asked}" if asked is not None and episodes <= asked else ""  # some algorithms play more
        return f"{who}; {'at' if pid is not None else 'next'} {at}, {episodes}{wanted} episodes played"
    return f"{who}; {'at' if pid is not None else 'next'} {at}"


def _count_lines(path: Path) -> int:
    with open(path, "rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(CHUNK_BYTES), b""))


def _success(run: Run) -> RenderableType | None:
    points = run.curve("rollout/success")
    if not points:
        return None
    wide = max(1, CHART_COLUMNS // 2 // len(points))  # columns of one iteration while there are few
    rows = chart([value for _, value in points for _ in range(wide)], 0.0, 1.0, CHART_COLUMNS, CHART_ROWS)
    labels = ["100 % ", *["      "] * (CHART_ROWS - 2), "  0 % "]
    first, last = points[0][0], points[-1][0]
    text = Text("\nsuccess of the rollouts (sampled training tasks)\n")
    for label, row in zip(labels, rows, strict=True):
        text.append(label).append(row + "\n", style="green")
    text.append(f"      iterations {first}-{last}, the last {100 * points[-1][1]:.1f} %")
    return text


def _curves(run: Run) -> RenderableType | None:
    table = Table(box=None, show_header=True, padding=(0, 2, 0, 0))
    for name, justify in (("", "left"), ("first", "right"), ("last", "right"), ("low-high", "left"), ("", "left")):
        table.add_column(name, justify=justify)
    for label, metric, digits in CURVES:
        values = [value for _, value in run.curve(metric)]
        if values:
            low, high = min(values), max(values)
            line = sparkline(values[:: max(1, len(values) // 48)], low, high)
            span = f"{low:.{digits}f} to {high:.{digits}f}"
            table.add_row(label, number(values[0], digits), number(values[-1], digits), span, line)
    return Group(Text(), table, Text()) if table.row_count else None


def _evaluations(run: Run) -> RenderableType | None:
    table = Table(title="evaluations of held-out tasks", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("policy", justify="right")
    table.add_column("split")
    for name in ("T", "n", "success %", "95 %", "turns", "invalid %", "errors"):
        table.add_column(name, justify="right")
    evaluations = run.evaluations()
    numbers = list(evaluations)
    shown = numbers if len(numbers) <= EVALUATIONS_SHOWN else [*numbers[:1], *numbers[1 - EVALUATIONS_SHOWN :]]
    for iteration, results in evaluations.items():
        if iteration not in shown:
            continue
        for sweep in results["sweeps"]:
            try:
                row = _sweep_row(sweep)
            except (KeyError, TypeError, ValueError):
                run.damage.append(f"{run.paths.evaluation(iteration) / 'results.json'}: not results of an evaluation")
                break
            table.add_row(str(iteration), *row)
    if len(shown) < len(numbers):
        table.caption = f"{len(shown)} of {len(numbers)} evaluations; the others: results.json in evaluations/"
    return table if table.row_count else None


def _sweep_row(sweep: dict[str, Any]) -> list[str]:
    one = sweep["all"]

    def percent(name: str) -> str:
        return "-" if one[name] is None else f"{100 * one[name]:.1f}"

    return [printable(sweep["split"], 40), f"{sweep['temperature']:g}", str(one["n"]), percent("success"),
            f"{percent('success_low')}-{percent('success_high')}", number(one["turns"], 1), percent("invalid_share"),
            str(one["errors"])]  # fmt: skip


def _times(run: Run) -> RenderableType | None:
    totals: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    for (stage, _), manifest in run.manifests.items():
        totals.setdefault(stage, []).append(float(manifest.seconds.get("total", 0.0)))
        memory[stage] = max(memory.get(stage, 0.0), *(float(x) for x in manifest.peak_memory_mib.values()), 0.0)
    if not totals:
        return None
    whole = sum(map(sum, totals.values()))
    table = Table(title=f"time: {clock(whole)} in complete stages", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("stage")
    for name in ("times", "seconds", "share %", "mean s", "last s", "peak memory"):
        table.add_column(name, justify="right")
    for stage in (stage for stage in (*STAGES, EXPORT) if stage in totals):
        seconds = totals[stage]
        share = 100 * sum(seconds) / whole if whole else 0.0
        table.add_row(stage, str(len(seconds)), f"{sum(seconds):.1f}", f"{share:.1f}",
                      f"{sum(seconds) / len(seconds):.2f}", f"{seconds[-1]:.2f}",
                      size(memory[stage] * 2**20))  # fmt: skip
    return table


def _disk(run: Run) -> RenderableType:
    folders = sorted(path for path in run.paths.root.iterdir() if path.is_dir())
    seen: set[tuple[int, int]] = set()
    used = [(path.name, sum(_file_sizes(path, seen))) for path in folders]
    parts = ", ".join(f"{name} {size(total)}" for name, total in sorted(used, key=lambda item: -item[1]) if total)
    return Text(printable(f"disk: {size(sum(total for _, total in used))} ({parts})", TEXT_LIMIT))


def _file_sizes(folder: Path, seen: set[tuple[int, int]]) -> Iterator[int]:
    """Sizes of the files below a folder; a file with several names counts once."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _file_sizes(Path(entry.path), seen)
                    continue
                stat = entry.stat(follow_symlinks=False)
                if stat.st_nlink == 1 or (stat.st_dev, stat.st_ino) not in seen:
                    seen.add((stat.st_dev, stat.st_ino))
                    yield stat.st_size
    except FileNotFoundError:
        return  # the run that is looked at is tidying up


def _troubles(run: Run) -> RenderableType | None:
    text = Text()
    if run.errors:
        text.append(f"\nerrors: {len(run.errors)}; the last:\n", style="bold")
        for entry in run.errors[-ERRORS_SHOWN:]:
            where = f"{entry.get('time')} {entry.get('stage')} {entry.get('iteration')}, rank {entry.get('rank')}"
            text.append(printable(f"  {where}: {entry.get('error')}: {entry.get('message')}", TEXT_LIMIT) + "\n")
    if run.damage:
        text.append(f"\ndamage: {len(run.damage)} (all of it: verify)\n", style="bold red")
        for line in run.damage[:DAMAGE_SHOWN]:
            text.append(printable(f"  {line}", TEXT_LIMIT) + "\n")
    return text if text else None
