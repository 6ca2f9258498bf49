"""The tables of a comparison, as text in cells: Markdown and the page show the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.compare.summary import BUDGETS

NOTHING = "–"
Format = Callable[[float], str]


@dataclass(frozen=True)
class Table:
    """`head` names the columns; the first column is text, the others are numbers."""

    title: str
    note: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def percent(x: float) -> str:
    return f"{100 * x:.1f}"


def points(x: float) -> str:
    return f"{100 * x:+.1f}"


def whole(x: float) -> str:
    return f"{x:,.0f}".replace(",", "\u202f")


def seconds(x: float) -> str:
    return whole(x) if x >= 100 else f"{x:.1f}"


def fixed(digits: int) -> Format:
    return lambda x: f"{x:.{digits}f}"


def cell(one: Mapping[str, Any] | None, form: Format) -> str:
    """Example: `62.0 [50.3, 78.3]`; of one seed the number alone."""
    if one is None:
        return NOTHING
    if len(one["values"]) == 1 or one["low"] == one["high"]:
        return form(one["mean"])
    return f"{form(one['mean'])} [{form(one['low'])}, {form(one['high'])}]"


def tables(summary: Mapping[str, Any]) -> list[Table]:
    """All tables, in the order in which they are read."""
    return [
        success_table(summary),
        *(type_table(summary, split) for split in summary["splits"]),
        cost_table(summary),
        *equal_tables(summary),
        pair_table(summary),
        *training_tables(summary),
        time_table(summary),
        variant_table(summary),
    ]


def success_table(summary: Mapping[str, Any]) -> Table:
    seeds = {one["name"]: str(len(one["seeds"])) for one in summary["variants"]}
    rows = (
        (f"{split}, {name}", seeds[name], cell(one["before"], percent), cell(one["after"], percent),
         cell(one["score"], percent), cell(one["turns"], fixed(1)))
        for split in summary["splits"] for name, one in summary["success"][split].items()
    )  # fmt: skip
    note = (
        "Success in per cent of a split's held-out episodes, before training and at the end; score (in per cent) and "
        "turns of an episode at the end. Interquartile mean over seeds [95 % bootstrap interval over seeds]."
    )
    return Table("Success", note, ("split, variant", "seeds", "before", "after", "score", "turns"), tuple(rows))


def type_table(summary: Mapping[str, Any], split: str) -> Table:
    own = summary["success"][split]
    kinds = sorted({kind for one in own.values() for kind in one["types"]})
    rows = ((kind, *(cell(one["types"].get(kind), percent) for one in own.values())) for kind in kinds)
    return Table(f"Success by task type, {split}", "At the end, in per cent.", ("task type", *own), tuple(rows))


def cost_table(summary: Mapping[str, Any]) -> Table:
    columns = {
        "trajectories": ("trajectories", whole), "generated_tokens": ("tokens generated", whole),
        "trained_tokens": ("tokens trained", whole), "wall_s": ("wall s", seconds), "cpu_s": ("CPU s", seconds),
        "optimize_memory_gib": ("peak GiB, optimize", fixed(2)), "peak_memory_gib": ("peak GiB, all", fixed(2)),
    }  # fmt: skip
    rows = (
        (name, *(cell(one[key], form) for key, (_, form) in columns.items())) for name, one in summary["costs"].items()
    )
    note = (
        "The iterations of a run, without warm start and evaluations. Memory: the highest process, until the end of "
        "optimize and of the run."
    )
    return Table("Costs", note, ("variant", *(label for label, _ in columns.values())), tuple(rows))


def equal_tables(summary: Mapping[str, Any]) -> list[Table]:
    """Success at the same spending; the budget is what the cheapest run spent."""
    found = []
    for what, label in BUDGETS.items():
        own = [row for row in summary["equal"] if row["what"] == what]
        if own:
            names = list(own[0]["success"])
            rows = ((row["split"], *(cell(row["success"][name], percent) for name in names)) for row in own)
            form = whole if what == "trajectories" else seconds
            title = f"Success at {form(own[0]['budget'])} {label}"
            note = "What the cheapest run spent in all; between two evaluations a run's success is interpolated."
            found.append(Table(title, note, ("split", *names), tuple(rows)))
    return found


def pair_table(summary: Mapping[str, Any]) -> Table:
    head = ("split, first – second", "seeds", "tasks", "difference", "first alone", "second alone", "McNemar p")
    rows = (
        (
            f"{one['split']}, {one['first']} – {one['second']}", str(len(one["seeds"])), str(one["tasks"]),
            f"{points(one['difference'])} [{points(one['low'])}, {points(one['high'])}]",
            whole(sum(one["first_only"])), whole(sum(one["second_only"])), p_value(one["p_pooled"]),
        )
        for one in summary["pairs"]
    )  # fmt: skip
    note = (
        "The last policies on the same tasks, seed by seed. Difference in points, with a paired bootstrap over seeds "
        "and tasks (within their type). Alone: episodes that one won and the other lost, all seeds together; McNemar's "
        "exact test on them speaks of these policies, the bootstrap of the algorithms."
    )
    return Table("Paired comparison", note, head, tuple(rows))


def training_tables(summary: Mapping[str, Any]) -> list[Table]:
    """How training went at its end; nothing where the numbers are of a version that kept none of it."""
    columns = {
        "rollout/success": ("success, %", percent), "rollout/invalid_share": ("invalid actions, %", percent),
        "advantage/std": ("deviation of advantages", fixed(2)),
        "advantage/explained_variance_v": ("V explains", fixed(2)),
        "advantage/explained_variance_q": ("Q explains", fixed(2)), "sapo/entropy": ("entropy, nats", fixed(3)),
    }  # fmt: skip
    own = summary["training"]
    used = {key: column for key, column in columns.items() if any(one[key] for one in own.values())}
    if not used:
        return []
    rows = ((name, *(cell(one[key], form) for key, (_, form) in used.items())) for name, one in own.items())
    note = (
        "Rollouts and updates, mean over the last quarter of the iterations. V, or the critic, explains so much of the "
        "variance of the λ-returns, Q of its own targets. Deviation: of the advantages, before Eq. 7 divides by it."
    )
    return [Table("Training", note, ("variant", *(label for label, _ in used.values())), tuple(rows))]


def p_value(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def time_table(summary: Mapping[str, Any]) -> Table:
    own = summary["seconds_an_iteration"]
    columns = list(next(iter(own.values())))
    used = [column for column in columns if any(one[column] for one in own.values())]
    rows = ((name, *(f"{one[column]:.2f}" for column in used)) for name, one in own.items())
    note = "Wall seconds an iteration, mean over iterations and seeds. Environment: waiting for it."
    return Table("Where the time goes", note, ("variant", *used), tuple(rows))


def variant_table(summary: Mapping[str, Any]) -> Table:
    rows = (
        (one["name"], ", ".join(map(str, one["seeds"])),
         ", ".join(f"{key}={value}" for key, value in one["settings"].items()) or NOTHING)
        for one in summary["variants"]
    )  # fmt: skip
    note = "Settings in which the variants differ; all others are the same, and in table.json."
    return Table("Variants", note, ("variant", "seeds", "settings"), tuple(rows))


def markdown(found: Sequence[Table], heading: str, notes: Sequence[str]) -> str:
    """The tables as a Markdown page."""
    parts = [f"# {heading}"]
    if notes:
        parts.append("\n".join(f"- {escape(note)}" for note in notes))
    for table in found:
        lines = ["| " + " | ".join(map(escape, row)) + " |" for row in (table.head, *table.rows)]
        lines.insert(1, "|" + "---|" * len(table.head))
        parts.append(f"## {escape(table.title)}\n\n{table.note}\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
