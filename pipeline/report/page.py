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
from pipeline.report.evaluations import Rate, Sweep, first_and_last
from pipeline.report.gathering import Gathered
from pipeline.report.sampling import Packed, short
from pipeline.run_directory import EXPORT, STAGES

HERE = Path(__file__).parent
STYLE = HERE / "page.css"
PARTS = (HERE / "charts.js", HERE / "sections.js")  # what every page draws with
SCRIPTS = (*PARTS, HERE / "page.js", HERE / "browser.js")
ERRORS_SHOWN = 20


def page_data(run: Run, gathered: Gathered, sweeps: Sequence[Sweep], panels: Sequence[Panel]) -> dict[str, Any]:
    """Everything that the page shows, as JSON values."""
    section = run.config.get
    done = max((i for stage, i in run.manifests if stage == "optimize"), default=0)
    compared = first_and_last(sweeps)
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
        "headline": [headline(first, last) for first, last in compared],
        "panels": [asdict(panel) for panel in panels],
        "types": [by_type(first, last) for first, last in compared],
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


def by_type(first: Sweep, last: Sweep | None) -> dict[str, Any]:
    """Success of each task type at the first and the last evaluation of a split."""
    after = {} if last is None else last.types
    rows = [
        {"type": kind, "first": plain(first.types.get(kind)), "last": plain(after.get(kind))}
        for kind in sorted({*first.types, *after})
    ]
    return {
        "split": first.split,
        "first": first.iteration,
        "last": None if last is None else last.iteration,
        "rows": rows,
    }


def headline(first: Sweep, last: Sweep | None) -> dict[str, Any]:
    """Success of a split at its first and its last evaluation."""

    def entry(one: Sweep | None) -> dict[str, Any] | None:
        return None if one is None else {"iteration": one.iteration, "success": plain(one.whole)}

    return {"split": first.split, "first": entry(first), "last": entry(last)}


def plain(rate: Rate | None) -> list[float] | None:
    """[success, low, high, n]"""
    return None if rate is None else [rate.success, rate.low, rate.high, rate.n]


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


def render(data: Mapping[str, Any], title: str, scripts: Sequence[Path] = SCRIPTS) -> str:
    """The page's text: `data` as JSON, which the scripts show."""
    style = STYLE.read_text(encoding="utf-8")
    script = "\n".join(path.read_text(encoding="utf-8") for path in scripts)
    parts = {
        "style_hash": source_hash(style),
        "script_hash": source_hash(script),
        "title": html.escape(title),
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
