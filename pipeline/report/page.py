"""The page: its JSON, and one HTML file with style and scripts in it.

All text of models, environments and configurations travels as JSON with `<` escaped and enters the page as text
nodes; a content security policy lets no script run but the page's own, and lets nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from pipeline import VERSION
from pipeline.inspect.reading import Run
from pipeline.report.calibration import calibrate
from pipeline.report.curves import Panel, window
from pipeline.report.gathering import Gathered
from pipeline.report.sampling import Packed, short
from pipeline.run_directory import EXPORT, STAGES

HERE = Path(__file__).parent
SCRIPTS = ("charts.js", "page.js", "browser.js")
ERRORS_SHOWN = 20


def page_data(run: Run, gathered: Gathered, panels: Sequence[Panel]) -> dict[str, Any]:
    """Everything that the page shows, as JSON values."""
    section = run.config.get
    done = max((i for stage, i in run.manifests if stage == "optimize"), default=0)
    first, last = ends(run.evaluations())
    return {
        "run": {
            "name": run.paths.root.resolve().name,
            "model": section("model", {}).get("name", "?"),
            "environment": section("env", {}).get("name", "?"),
            "seed": section("run", {}).get("seed", "?"),
            "iterations": section("run", {}).get("iterations", 0),
            "done": done,
            "version": VERSION,
        },
        "window": window(len(gathered.sums)),
        "headline": headline(first, last),
        "panels": [asdict(panel) for panel in panels],
        "types": by_type(first, last),
        "calibration": {
            "gamma": section("advantage", {}).get("gamma"),
            "parts": [
                {
                    "first": part.first,
                    "last": part.last,
                    "episodes": len(part.reservoir.kept),
                    "seen": part.reservoir.seen,
                    "V": [asdict(one) for one in calibrate(part.reservoir.kept, "values")],
                    "Q": [asdict(one) for one in calibrate(part.reservoir.kept, "q_values")],
                }
                for part in gathered.parts
                if part.reservoir.kept
            ],
        },
        "times": stage_times(run),
        "episodes": {"total": gathered.num_episodes, **episode_tables(gathered.sample.episodes)},
        "errors": [error_entry(one) for one in reversed(run.errors[-ERRORS_SHOWN:])],
        "damage": [short(line) for line in run.damage[:ERRORS_SHOWN]],
        "config": yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True),
    }


def ends(evaluations: Mapping[int, Mapping[str, Any]]) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """The first and the last evaluation; None where there is none, or no second one."""
    order = sorted(evaluations)
    return (
        evaluations[order[0]] if order else None,
        evaluations[order[-1]] if len(order) > 1 else None,
    )


def success_of(row: Mapping[str, Any] | None) -> list[float] | None:
    """[success, low, high, n] of a line of results.json; None where no episode could be judged."""
    if row is None or row["success"] is None:
        return None
    return [row["success"], row["success_low"], row["success_high"], row["n"]]


def sweeps(results: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """An evaluation's sweeps by split; of several temperatures the first, which is evaluate.temperature."""
    found: dict[str, Mapping[str, Any]] = {}
    for sweep in results["sweeps"] if results is not None else ():
        found.setdefault(sweep["split"], sweep)
    return found


def headline(first: Mapping[str, Any] | None, last: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Success of each split at the first and the last evaluation."""

    def entry(results: Mapping[str, Any] | None, split: str) -> dict[str, Any] | None:
        sweep = sweeps(results).get(split)
        success = success_of(sweep["all"]) if sweep else None
        return None if success is None else {"iteration": results["iteration"], "success": success}

    rows = [{"split": split, "first": entry(first, split), "last": entry(last, split)} for split in sweeps(first)]
    return [row for row in rows if row["first"] is not None]


def by_type(first: Mapping[str, Any] | None, last: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Success of each task type at the first and the last evaluation, for every split."""
    found = []
    for split, sweep in sweeps(first).items():
        after = sweeps(last).get(split, {"types": {}})["types"]
        rows = [
            {"type": kind, "first": success_of(row), "last": success_of(after.get(kind))}
            for kind, row in sweep["types"].items()
        ]
        found.append(
            {
                "split": split,
                "first": first["iteration"],
                "last": None if last is None else last["iteration"],
                "rows": rows,
            }
        )
    return found


def stage_times(run: Run) -> list[dict[str, Any]]:
    """Seconds that the manifests say of each stage, in the order of the plan."""
    seconds: dict[str, list[float]] = {stage: [] for stage in (*STAGES, EXPORT)}
    for (stage, _), manifest in run.manifests.items():
        seconds[stage].append(manifest.seconds.get("total", 0.0))
    whole = sum(map(sum, seconds.values())) or 1.0
    return [
        {"stage": stage, "times": len(own), "seconds": sum(own), "share": sum(own) / whole}
        for stage, own in seconds.items()
        if own
    ]


def error_entry(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of errors.jsonl, every part of it text."""
    entry = {
        name: short(str(line.get(name, "?"))) for name in ("time", "stage", "iteration", "rank", "error", "message")
    }
    lines = line.get("lines")
    return {**entry, "lines": [short(str(one)) for one in lines] if isinstance(lines, list) else []}


def episode_tables(episodes: Sequence[Packed]) -> dict[str, Any]:
    """The sample as tables: each distinct text and list of actions once, referred to by number."""
    texts: dict[str, int] = {}
    lists: dict[tuple[int, ...], int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    fields = sorted({name for one in episodes for name in one.facts})
    rows = []
    for one in episodes:
        own = [number(text) for text in one.texts]
        keys = [None if actions is None else tuple(map(number, actions)) for actions in one.lists]
        listed = [None if key is None else lists.setdefault(key, len(lists)) for key in keys]
        rows.append([*(one.facts.get(name) for name in fields), own, listed])
    return {
        "shown": len(rows),
        "tasks": len({one.task_id for one in episodes}),
        "fields": [*fields, "texts", "lists"],
        "rows": rows,
        "texts": list(texts),
        "lists": list(lists),
    }


def render(data: Mapping[str, Any]) -> str:
    """The page's text."""
    style = (HERE / "page.css").read_text(encoding="utf-8")
    script = "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    parts = {
        "style_hash": source_hash(style),
        "script_hash": source_hash(script),
        "title": html.escape(data["run"]["name"]),
        "style": style,
        "data": script_json(data),
        "script": script,
    }
    page = (HERE / "page.html").read_text(encoding="utf-8")
    pieces = []
    for piece in page.split("{"):  # one pass: what is put in is not searched again
        name, brace, rest = piece.partition("}")
        pieces.append(parts[name] + rest if brace and name in parts else piece)
    return "".join(pieces)


def script_json(data: Mapping[str, Any]) -> str:
    """JSON in ASCII that no HTML parser can take for a tag: it holds no `<`."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def source_hash(text: str) -> str:
    """What a content security policy calls a script or a style that may run."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
