"""The same numbers as figures for papers: PNG, 300 dots an inch, the width of a text column or of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is asked for

from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import MaxNLocator, PercentFormatter  # noqa: E402

from pipeline.report.curves import Panel  # noqa: E402

COLORS = ("#1f5fa8", "#c0500c", "#2a7d4f", "#7a4fa3", "#9a7400", "#b3347f", "#0f7c86", "#6b5a4a")
WIDTH, ROW = 6.75, 1.75  # inches: both columns of a page; one row of panels
COLUMNS = 3
COMPARISON_DPI = 160  # many bands over each other: at 300 a file has most of a megabyte
FEW = 12  # points that are drawn with their intervals as bars
ROUND = [1, 2, 2.5, 5, 10]  # steps of the ticks
STYLE = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7, "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.6, "lines.linewidth": 1.2, "savefig.dpi": 300,
}  # fmt: skip


def write_figures(folder: Path, data: Mapping[str, Any], panels: Sequence[Panel]) -> list[Path]:
    """One PNG for each section of the page, and one for the calibration; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(STYLE):
        for section in dict.fromkeys(panel.section for panel in panels):
            own = [panel for panel in panels if panel.section == section]
            written.append(save(curves_figure(own), folder / f"{section}.png"))
        if data["calibration"]["parts"]:
            written.append(save(calibration_figure(data["calibration"]), folder / "calibration.png"))
    return written


def save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, metadata={"Software": None})  # the same bytes from the same run
    return path


def write_comparison(path: Path, panels: Sequence[Panel]) -> Path:
    """Panels of the same lines, two a row, with one legend for all of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({**STYLE, "savefig.dpi": COMPARISON_DPI}):
        figure = curves_figure(panels, columns=2, row=1.3 * ROW, legends=False)
        lines, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=min(5, len(names)))
        return save(figure, path)


def curves_figure(panels: Sequence[Panel], columns: int = COLUMNS, row: float = ROW, legends: bool = True) -> Figure:
    """Small multiples, `columns` a row; `row` is the height of one in inches."""
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(WIDTH, row * rows), layout="constrained")
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, place)
        draw_panel(axes, panel)
        if legends and len(panel.series) > 1:
            axes.legend()
    return figure


def draw_panel(axes: Axes, panel: Panel) -> None:
    means = any(one.thin for one in panel.series)
    for number, one in enumerate(panel.series):
        color = COLORS[(number if one.color is None else one.color) % len(COLORS)]
        few = len(one.x) <= FEW and not means
        if one.thin:
            axes.plot(one.x, numbers(one.y), color=color, linewidth=0.5, alpha=0.45)
            continue
        if one.low is not None and one.high is not None and few:
            axes.vlines(one.x, *map(numbers, (one.low, one.high)), color=color, linewidth=0.8, alpha=0.7)
        elif one.low is not None and one.high is not None:
            axes.fill_between(one.x, *map(numbers, (one.low, one.high)), color=color, alpha=0.18, linewidth=0)
        if one.dots is not None:
            axes.plot(one.x, numbers(one.dots), ".", color=color, markersize=1.2, alpha=0.4, rasterized=True)
        axes.plot(one.x, numbers(one.y), color=color, label=one.name, marker="o" if few else None, ms=2.5,
                  linestyle="--" if one.dashed else "-")  # fmt: skip
    axes.set_title(panel.title)
    axes.set_ylabel(panel.unit)
    axes.set_xlabel(panel.x_label)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=panel.x_label == "iteration", steps=ROUND))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=ROUND))
    if panel.share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    low, _ = axes.get_ylim()
    if panel.floor is not None and (panel.floor == 0 or low < panel.floor):
        axes.set_ylim(bottom=panel.floor)


def calibration_figure(calibration: Mapping[str, Any]) -> Figure:
    """V above Q, one column for each part of the run."""
    parts = calibration["parts"]
    names = [name for name in ("V", "Q") if any(part[name] for part in parts)]
    figure = Figure(figsize=(WIDTH, len(names) * ROW), layout="constrained")
    grid = figure.subplots(len(names), len(parts), sharex=True, sharey=True, squeeze=False)
    for row, name in enumerate(names):
        for axes, part in zip(grid[row], parts, strict=True):
            bins = part[name]
            x, y = [one["predicted"] for one in bins], [one["returned"] for one in bins]
            ends = [[one["returned"] - one["low"] for one in bins], [one["high"] - one["returned"] for one in bins]]
            axes.errorbar(x, y, yerr=ends, fmt="o", markersize=2.5, linewidth=0.8, color=COLORS[row])
            axes.axline((0, 0), slope=1, color="0.6", linewidth=0.8, linestyle="--")
            axes.set_title(f"iterations {part['first']}-{part['last']}")
            axes.set_xlabel(f"{name}, reward units")
        grid[row][0].set_ylabel("discounted return")
    return figure


def numbers(values: Sequence[float | None]) -> list[float]:
    """Matplotlib breaks a line at a NaN."""
    return [float("nan") if value is None else value for value in values]
