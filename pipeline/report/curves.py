"""The curves of a run as panels of plain numbers, which the page and the figures draw alike.

A line through single iterations is the mean over a window of them; the single ones are its dots. Where the episodes
are known, the band is the 95 % interval of that mean over all episodes of the window.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.inspect.reading import Run
from pipeline.report.evaluations import Sweep
from pipeline.report.gathering import Sums
from runtime.intervals import ratio_interval, wilson_interval

LONGEST_CURVE = 600  # points: longer ones are thinned, after the means were taken
ROLLOUTS = "rollouts"
COLORS = 8  # that page.css and the figures have


@dataclass(frozen=True)
class Series:
    """One line of a panel. `y` is None where there is no value; `dots`, `low`, `high` and `n` may be absent as a whole.

    Example: Series("seen", x=[0, 50], y=[0.32, 0.42], low=[0.27, 0.30], high=[0.38, 0.54], n=[300, 60])
    """

    name: str
    x: list[float]  # iterations, or what the panel's x_label says
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    n: list[int] | None = None  # episodes behind each point
    dots: list[float | None] | None = None  # single iterations, where y is a mean over some
    color: int | None = None  # below COLORS; None: the number of the series
    thin: bool = False  # one of several that a thick line is the mean of: drawn faintly, without a reading of its own
    dashed: bool = False  # where the colors come round again


@dataclass(frozen=True)
class Panel:
    """A chart: what is on its y axis, in which unit, and its lines over the iterations."""

    section: str
    title: str
    unit: str
    series: list[Series]
    floor: float | None = None  # the axis does not go below
    share: bool = False  # shown in per cent
    x_label: str = "iteration"


def panels(run: Run, sums: Mapping[int, Sums], sweeps: Sequence[Sweep]) -> list[Panel]:
    """All panels that the run has numbers for, in the order of the page."""
    width = window(len(sums))
    found = [*outcome_panels(sums, sweeps, width), *learning_panels(run, width), *cost_panels(run, width)]
    thinned = [replace(panel, series=[thin(one) for one in panel.series if one.x]) for panel in found]
    return [panel for panel in thinned if panel.series]


def window(count: int) -> int:
    """Iterations that a mean goes over: odd, about a twelfth of the run, 1 for short runs. Example: 110 -> 9."""
    return 2 * (count // 24) + 1


def outcome_panels(sums: Mapping[int, Sums], sweeps: Sequence[Sweep], width: int) -> list[Panel]:
    """What the episodes came to: held-out success with Wilson's intervals, and the rollouts."""
    return [
        Panel("outcome", "Success on held-out tasks", "share of episodes", evaluation_series(sweeps), share=True),
        Panel("outcome", "Success in rollouts", "share of episodes", [pooled(sums, success, width)], share=True),
        Panel("outcome", "Return", "reward units an episode", [pooled(sums, mean_return, width)]),
        Panel("outcome", "Turns", "turns an episode", [pooled(sums, mean_turns, width)]),
        Panel("outcome", "Invalid actions", "share of turns", [pooled(sums, invalid_share, width)], share=True),
    ]


def learning_panels(run: Run, width: int) -> list[Panel]:
    """What the optimizer and the value readouts did."""

    def panel(section: str, title: str, unit: str, names: Mapping[str, str], **options: Any) -> Panel:
        series = [smooth(label, run.curve(name), width) for label, name in names.items()]
        return Panel(section, title, unit, series, **options)

    v_and_q = {"V": "advantage/{}_v{}", "Q": "advantage/{}_q{}"}

    def of_readouts(what: str, suffix: str = "") -> dict[str, str]:
        return {label: name.format(what, suffix) for label, name in v_and_q.items()}

    return [
        panel("learning", "Policy loss", "Eq. 8", {"policy": "sapo/policy_loss"}),
        panel("learning", "Value losses", "Eq. 10, 11",
              {"V": "sapo/value_loss", "Q": "sapo/q_loss", "critic": "critic/loss"}),
        panel("learning", "approx_kl", "nats a token", {"kl": "sapo/approx_kl"}),
        panel("learning", "Clipped ratios", "share of tokens", {"clipped": "sapo/clip_fraction"}, share=True),
        panel("learning", "Entropy", "nats a token", {"entropy": "sapo/entropy"}),
        panel("learning", "Gradient norm", "before clipping",
              {"norm": "sapo/grad_norm", "critic": "critic/grad_norm"}),
        panel("critic", "Explained variance", "of the discounted returns",
              of_readouts("explained_variance", "_plain"), floor=-1.0),
        panel("critic", "The critic's explained variance", "of the λ-returns, while it is trained",
              {"critic": "critic/explained_variance"}, floor=-1.0),
        panel("critic", "Correlation", "with the discounted returns", of_readouts("correlation", "_plain")),
        panel("critic", "Saturated readouts", "share of turns at ±R_max", of_readouts("saturated"), share=True),
    ]  # fmt: skip


def cost_panels(run: Run, width: int) -> list[Panel]:
    """Seconds, memory and speed."""
    stages = {"collect": "collect_rollouts", "advantages": "compute_advantages", "optimize": "optimize"}
    seconds, memory = {label: {} for label in stages}, {"CPU": {}, "GPU": {}}
    for (stage, iteration), manifest in run.manifests.items():
        if iteration == 0:
            continue
        for label, name in stages.items():
            if stage == name and "total" in manifest.seconds:
                seconds[label][iteration] = manifest.seconds["total"]
        for label, kind in (("CPU", "cpu"), ("GPU", "cuda")):
            peak = manifest.peak_memory_mib.get(kind, 0.0) / 1024
            memory[label][iteration] = max(peak, memory[label].get(iteration, 0.0))
    if not any(memory["GPU"].values()):
        del memory["GPU"]
    speeds = {"rollouts": "rollout/tokens_per_s", "optimize": "optimize/tokens_per_s"}
    return [
        Panel("cost", "Time", "seconds an iteration",
              [smooth(label, sorted(points.items()), width) for label, points in seconds.items()], floor=0.0),
        Panel("cost", "Peak memory", "GiB, highest process so far",
              [smooth(label, sorted(points.items()), 1) for label, points in memory.items()], floor=0.0),
        Panel("cost", "Speed", "tokens a second, prompts included",
              [smooth(label, run.curve(name), width) for label, name in speeds.items()], floor=0.0),
    ]  # fmt: skip


def evaluation_series(sweeps: Sequence[Sweep]) -> list[Series]:
    """Success of every split (and temperature, where there are several) at each evaluation."""
    several = len({one.temperature for one in sweeps}) > 1
    by_name: dict[str, list[Sweep]] = {}
    for one in sweeps:
        by_name.setdefault(f"{one.split}, T {one.temperature:g}" if several else one.split, []).append(one)
    return [
        Series(
            name,
            x=[one.iteration for one in own],
            y=[one.whole.success for one in own],
            low=[one.whole.low for one in own],
            high=[one.whole.high for one in own],
            n=[one.whole.n for one in own],
        )
        for name, own in by_name.items()
    ]


Estimate = tuple[float, float, float]  # value, low, high


def success(one: Sums) -> Estimate:
    return one.successes / one.episodes, *wilson_interval(one.successes, one.episodes)


def mean_return(one: Sums) -> Estimate:
    n = one.episodes
    return one.rewards / n, *ratio_interval(n, one.rewards, n, one.rewards_squared, one.rewards, n)


def mean_turns(one: Sums) -> Estimate:
    n = one.episodes
    return one.turns / n, *ratio_interval(n, one.turns, n, one.turns_squared, one.turns, n)


def invalid_share(one: Sums) -> Estimate:
    low, high = ratio_interval(
        one.episodes, one.invalid, one.turns, one.invalid_squared, one.invalid_turns, one.turns_squared
    )
    return one.invalid / one.turns, max(0.0, low), min(1.0, high)


def pooled(sums: Mapping[int, Sums], estimate: Callable[[Sums], Estimate], width: int) -> Series:
    """A number of the rollouts: dots are iterations, the line and its band all episodes of a window."""
    played = [(iteration, one) for iteration, one in sorted(sums.items()) if one.episodes]
    middle = [total([one for _, one in played[a:b]]) for a, b in windows(len(played), width)]
    estimates = [estimate(one) for one in middle]
    return Series(
        name=ROLLOUTS,
        x=[iteration for iteration, _ in played],
        y=[value for value, _, _ in estimates],
        low=[low for _, low, _ in estimates],
        high=[high for _, _, high in estimates],
        n=[one.episodes for one in middle],
        dots=[estimate(one)[0] for _, one in played] if width > 1 else None,
    )


def total(parts: Sequence[Sums]) -> Sums:
    """The sums over several iterations."""
    return Sums(**{name: sum(getattr(part, name) for part in parts) for name in Sums.__dataclass_fields__})


def smooth(name: str, points: Sequence[tuple[int, float]], width: int) -> Series:
    """A metric of the optimizer: dots are iterations, the line the mean of a window."""
    values = [value if math.isfinite(value) else None for _, value in points]
    means = []
    for a, b in windows(len(values), width):
        known = [value for value in values[a:b] if value is not None]
        means.append(statistics.fmean(known) if known else None)
    return Series(name, [iteration for iteration, _ in points], means, dots=values if width > 1 else None)


def windows(count: int, width: int) -> list[tuple[int, int]]:
    """[a, b) around each of `count` places, `width` of them where the ends allow it."""
    return [(max(0, i - width // 2), min(count, i + width // 2 + 1)) for i in range(count)]


def thin(series: Series) -> Series:
    """At most LONGEST_CURVE points, evenly, the last one always."""
    step = math.ceil(len(series.x) / LONGEST_CURVE)
    kept = sorted({*range(0, len(series.x), step), len(series.x) - 1}) if step > 1 else range(len(series.x))
    parts = {part: getattr(series, part) for part in ("x", "y", "low", "high", "n", "dots")}
    return replace(series, **{part: None if all_ is None else [all_[i] for i in kept] for part, all_ in parts.items()})
