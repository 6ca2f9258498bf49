"""DAPO (arXiv 2503.14476): GRPO with an asymmetric clip range, the mean over tokens, a penalty for responses near the
length limit, and further tasks in place of groups whose trajectories all have the same return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from env_adapters.base import Task
from runtime.algorithms.base import Episode, Settings, SweepPlan
from runtime.algorithms.grpo import GRPO
from runtime.estimators import overlong_penalty, same
from runtime.records import Trajectory
from runtime.rollouts import Play


class DAPO(GRPO):
    @dataclass(frozen=True)
    class Options:
        group_size: int = 8  # N, trajectories a task
        use_std: bool = True  # divide by the group's standard deviation
        mean: Literal["trajectory", "token"] = "token"  # each token weighs the same in the loss; or each trajectory
        clip_high: float = 0.28  # eps above 1 of the ratio, in place of optimize.clip_high (published 0.28)
        max_extra_rounds: int = 2  # rounds of further tasks in place of groups without variance; 0: no filtering
        # last tokens of env.response_tokens over which a penalty grows (published 4096 of 20480)
        overlong_buffer: int = 0
        overlong_coef: float = 1.0  # the whole penalty of a response, reward units

        def __post_init__(self) -> None:
            GRPO.Options.__post_init__(self)
            for name in ("max_extra_rounds", "overlong_buffer", "overlong_coef"):
                if getattr(self, name) < 0:
                    raise ValueError(f"{name} = {getattr(self, name)}: must be >= 0")
            if self.clip_high <= 0:
                raise ValueError(f"clip_high = {self.clip_high}: must be > 0")

    def __init__(self, options: Any, settings: Settings) -> None:
        super().__init__(options, settings)
        self.clip_high = options.clip_high

    def next_sweep(
        self, tasks: Sequence[Task], played: Sequence[Sequence[Trajectory]], more: Callable[[int], list[Task]]
    ) -> SweepPlan | None:
        """The iteration's groups, then as many further tasks as groups had no variance, a bounded number of times.

        The first sweep's shards may hold the groups of later ones: all go to the same files.
        """
        rounds = self.options.max_extra_rounds
        bound = frozenset(play.key for play in self._groups(more(rounds * len(tasks))))
        if not played:
            return SweepPlan(self._groups(tasks), may_hold=bound)
        num_useful = len({one.task_id for one in self.select(played[-1])}) if rounds else len(tasks)
        if num_useful >= len(tasks) or len(played) > rounds:
            return None
        known = {one.task_id for one in played[-1]} - {task.task_id for task in tasks}
        further = more(len(known) + len(tasks) - num_useful)
        if len(further) == len(known):
            return None  # the split has no more
        return SweepPlan(self._groups([*tasks, *further]), may_hold=bound)

    def _groups(self, tasks: Sequence[Task]) -> tuple[Play, ...]:
        return tuple(Play(task, n) for task in tasks for n in range(self.samples))

    def select(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """With filtering, the groups with different returns."""
        good = super().select(trajectories)
        if not self.options.max_extra_rounds:
            return good
        returns: dict[str, set[float]] = {}
        for one in good:
            returns.setdefault(one.task_id, set()).add(one.return_undiscounted)
        return [one for one in good if not same(returns[one.task_id])]

    def total(self, one: Episode) -> float:
        options, longest = self.options, self.settings.response_tokens
        penalties = (overlong_penalty(length, longest, options.overlong_buffer) for length in one.lengths)
        return one.total + options.overlong_coef * sum(penalties)
