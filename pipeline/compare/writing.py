"""The files of a comparison."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline import VERSION
from pipeline.compare.curves import panels
from pipeline.compare.measuring import Measured, save
from pipeline.compare.summary import summarise
from pipeline.compare.tables import markdown, tables
from pipeline.report.page import PARTS, render
from runtime.files import atomic_write_text

NUMBERS = "numbers.json.gz"
SCRIPTS = (*PARTS, Path(__file__).parent / "compare.js")


def write(folder: Path, runs: Sequence[Measured], left_out: Sequence[str]) -> list[Path]:
    """Write the numbers, the tables, the page and the figures; returns their paths.

    Args:
        runs: at least one.
        left_out: runs that are not in it, and why, one line each.
    """
    from pipeline.report.figures import write_comparison  # matplotlib takes a second to import

    save(runs, left_out, folder / NUMBERS)
    summary = summarise(runs)
    summary["notes"] += [f"left out: {line}" for line in left_out]
    found, drawn = tables(summary), panels(runs)
    names = [one["name"] for one in summary["variants"]]
    title = f"{', '.join(names)} in {summary['environment']}"
    texts = {
        "table.json": json.dumps(summary, indent=1, default=str) + "\n",
        "table.md": markdown(found, title, summary["notes"]),
        "comparison.html": render(page_data(title, summary, found, drawn), title, SCRIPTS),
    }
    for name, text in texts.items():
        atomic_write_text(folder / name, text)
    figures = [
        write_comparison(folder / f"success-{slug(split)}.png", [panel for panel in drawn if panel.section == split])
        for split in summary["splits"]
    ]
    return [folder / NUMBERS, *(folder / name for name in texts), *figures]


def page_data(title: str, summary: Mapping[str, Any], found: Sequence[Any], drawn: Sequence[Any]) -> dict[str, Any]:
    """Everything that the page shows, as JSON values."""
    seeds = sorted({seed for one in summary["variants"] for seed in one["seeds"]})
    return {
        "title": title,
        "subtitle": f"seeds {', '.join(map(str, seeds))}; interquartile means over seeds, 95 % bootstrap intervals",
        "notes": summary["notes"],
        "tables": [asdict(table) for table in found],
        "panels": [asdict(panel) for panel in drawn],
        "settings": "\n".join(f"{key}: {value}" for key, value in summary["shared_settings"].items()),
        "version": VERSION,
    }


def slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "split"
