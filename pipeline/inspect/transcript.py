"""One episode as a transcript: what was seen, said and paid, with V, Q, advantage and return at each turn.

An address is ITERATION:TASK (12:task-00031), or eN:TASK for an episode of evaluation N; a part of the task's id will
do where it fits one task only.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import zip_longest

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.inspect.choosing import find_episode
from pipeline.inspect.reading import Episode, Run
from pipeline.inspect.scores import TokenTexts, TurnScores, turn_scores
from pipeline.inspect.terminal import number, printable, sparkline
from runtime.records import Trajectory, Turn

TEXT_LIMIT = 2000  # characters of a text without --full
SHADES = {  # what colours a token -> (its meaning, the size of a strong colour)
    "ratio": ("log-prob minus that of the reference policy: red more likely than there, blue less", 1.0),
    "gap": ("log-prob of the scoring pass minus that of the sampler: 0 but for rounding", 0.05),
    "logprob": ("log-prob under the policy that sampled: blue unlikely", 4.0),
    "entropy": ("entropy before the token, nats: red undecided", 1.5),
}
LEVELS = (0.25, 0.5, 1.0)  # shares of the strong colour from which on a token is shaded light, middle, strong
MORE, LESS = ("#fddbc7", "#f4a582", "#d6604d"), ("#d1e5f0", "#92c5de", "#4393c3")  # ColorBrewer's RdBu


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", help="12:task-00031: the task's episode of iteration 12; e10:…: of evaluation 10")
    parser.add_argument("--diff", metavar="N", help="beside it: the same task in iteration N (or eN), or an address")
    parser.add_argument("--shade", choices=SHADES, help="what colours the tokens; default: ratio, else logprob")
    parser.add_argument("--tokens", action="store_true", help="a table of each response's tokens and their numbers")
    parser.add_argument("--prompts", action="store_true", help="the prompts as the policy read them")
    parser.add_argument("--full", action="store_true", help=f"texts longer than {TEXT_LIMIT:,} characters in full")


def run(opened: Run, arguments: argparse.Namespace, console: Console) -> int:
    """Print one episode, or two side by side."""
    view = View(opened, arguments, find_episode(opened, arguments.address))
    if arguments.diff is None:
        console.print(view.head())
        for turn in range(len(view.turns)):
            console.print(view.turn(turn))
        console.print(view.end())
        return 0
    task = view.episode.trajectory.task_id
    other_address = arguments.diff if ":" in arguments.diff else f"{arguments.diff}:{task}"
    other = View(opened, arguments, find_episode(opened, other_address))
    console.print(side_by_side(view, other))
    return 0


class View:
    """An episode and what is shown of it."""

    def __init__(self, opened: Run, arguments: argparse.Namespace, episode: Episode) -> None:
        self.episode, self.turns, self.targets = episode, episode.trajectory.turns, episode.targets
        self.scores = turn_scores(opened, episode.trajectory) if episode.targets is not None else None
        self.texts = TokenTexts(opened.paths.model)
        self.limit = 0 if arguments.full else TEXT_LIMIT
        self.with_tokens, self.with_prompts = arguments.tokens, arguments.prompts
        self.shade = arguments.shade or self._default_shade()

    def _default_shade(self) -> str:
        return "ratio" if self.scores and self.scores[0].ref_logprobs is not None else "logprob"

    def head(self) -> RenderableType:
        """What was to be done, how it ended, and V over the turns."""
        one = self.episode.trajectory
        origin = f"{one.task_type}, {one.split}; iteration {one.iteration}, policy {one.policy[:12]}"
        how = f"{outcome(one)}, score {one.score:g}, {len(one.turns)} turns, return {one.return_undiscounted:g}"
        lines = [
            Text(printable(one.task_id, self.limit), style="bold"),
            Text(printable(f"goal: {one.goal}", self.limit)),
            Text(printable(f"{origin}, temperature {one.temperature:g}", self.limit)),
            Text(how, style="green" if one.success else "yellow"),
        ]
        if one.error:
            lines.append(Text(printable(f"error: {one.error}", self.limit, lines=True), style="red"))
        if self.targets is not None:
            for label, series in (("V", self.targets.values), ("Q", self.targets.q_values)):
                if not series:
                    continue
                low, high = min(series), max(series)
                lines.append(Text(f"{label} {sparkline(series, low, high)}  {low:.2f} to {high:.2f}"))
        lines.append(Text(f"tokens shaded by {self.shade}: {SHADES[self.shade][0]}", style="dim"))
        return Group(*lines)

    def turn(self, index: int) -> RenderableType:
        """One turn."""
        turn = self.turns[index]
        parts: list[RenderableType] = [Text(), Text(self.numbers(index), style="bold")]
        parts.append(Text(printable(turn.observation, self.limit, lines=True)))
        if self.with_prompts:
            parts.append(Text(printable(self.texts.all(turn.prompt_ids), self.limit, lines=True), style="dim"))
        parts.append(self.response(index))
        if not turn.valid:
            parts.append(Text("  invalid: no action was played", style="red"))
        elif turn.action not in turn.response:
            parts.append(Text(printable(f"  played: {turn.action}", self.limit)))
        if self.with_tokens:
            parts.append(self.token_table(index))
        return Group(*parts)

    def numbers(self, index: int) -> str:
        """The line above a turn. Example: `turn 3  V 4.12  Q 3.90  advantage +0.52  return 4.60  entropy 0.31`"""
        targets, turn = self.targets, self.turns[index]
        parts = [f"turn {index}"]
        if targets is not None and index < len(targets.advantages):
            shown = {"V": (targets.values, ".2f"), "Q": (targets.q_values, ".2f"),
                     "advantage": (targets.advantages, "+.2f"), "return": (targets.returns, ".2f")}  # fmt: skip
            parts += [f"{name} {series[index]:{form}}" for name, (series, form) in shown.items() if series]
        entropies = self.scores[index].entropies if self.scores else None
        if entropies:
            parts.append(f"entropy {sum(entropies) / len(entropies):.2f}")
        if turn.reward:
            parts.append(f"reward {turn.reward:g}")
        return "  ".join(parts)

    def response(self, index: int) -> Text:
        """The sampled tokens, shaded. Their numbers decide the colour, the record's text what is shown without any."""
        turn = self.turns[index]
        numbers = token_numbers(turn, self.scores[index] if self.scores else None, self.shade)
        if numbers is None:
            return Text("> ").append(printable(turn.response, self.limit, lines=True))
        text, strong = Text("> "), SHADES[self.shade][1]
        for piece, value in zip(self.texts.each(turn.response_ids), numbers, strict=True):
            text.append(printable(piece, lines=True), style=token_style(value / strong))
            if self.limit and len(text) > self.limit:
                return text.append(f"… ({len(turn.response_ids):,} tokens)")
        return text

    def token_table(self, index: int) -> Table:
        """A row for each token of a response."""
        turn, scores = self.turns[index], self.scores[index] if self.scores else None
        table = Table(box=box.SIMPLE_HEAD)
        for name in ("token", "id", "sampled", *SHADES):
            table.add_column(name, justify="left" if name == "token" else "right")
        series = [token_numbers(turn, scores, name) for name in SHADES]
        for at, piece in enumerate(self.texts.each(turn.response_ids)):
            numbers = [number(None if one is None else one[at], 4) for one in series]
            sampled = number(turn.sampling_logprobs[at], 4)
            table.add_row(printable(repr(piece), 60), str(turn.response_ids[at]), sampled, *numbers)
        return table

    def end(self) -> Text:
        """How it ended."""
        return Text(f"\n{outcome(self.episode.trajectory)}")


def outcome(one: Trajectory) -> str:
    """Example: `truncated, no success`."""
    return f"{one.status}, {'success' if one.success else 'no success'}"


def token_numbers(turn: Turn, scores: TurnScores | None, kind: str) -> tuple[float, ...] | None:
    """One number a token of the response; None where what it takes was not kept."""
    if kind == "logprob":
        return turn.sampling_logprobs
    if scores is None:
        return None
    if kind == "entropy":
        return scores.entropies
    other = turn.sampling_logprobs if kind == "gap" else scores.ref_logprobs
    return None if other is None else tuple(a - b for a, b in zip(scores.old_logprobs, other, strict=True))


def token_style(share: float) -> str:
    """The colours of a token whose number is `share` times the strong one; no style near 0."""
    level = sum(abs(share) >= bound for bound in LEVELS)
    return f"black on {(MORE if share > 0 else LESS)[level - 1]}" if level else ""


def side_by_side(left: View, right: View) -> RenderableType:
    """Two episodes turn by turn; a turn that differs from the other's is marked."""
    at = first_difference(left.turns, right.turns)
    note = "the two episodes are the same" if at is None else f"they part at turn {at}"
    table = Table(box=box.SIMPLE_HEAD, expand=True, title=note, title_justify="left", show_lines=True)
    table.add_column(left.head(), ratio=1, overflow="fold")
    table.add_column(right.head(), ratio=1, overflow="fold")
    for index in range(max(len(left.turns), len(right.turns))):
        style = "" if at is None or index < at else "on grey11" if index == at else ""
        cells = [view.turn(index) if index < len(view.turns) else Text("\n(over)") for view in (left, right)]
        table.add_row(*cells, style=style)
    return table


def first_difference(left: Sequence[Turn], right: Sequence[Turn]) -> int | None:
    """The first turn whose observation or action differs; None where all are the same."""
    for index, (a, b) in enumerate(zip_longest(left, right)):
        if a is None or b is None or (a.observation, a.action) != (b.observation, b.action):
            return index
    return None
