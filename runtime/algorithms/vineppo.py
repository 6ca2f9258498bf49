"""VinePPO (arXiv 2410.01679): a turn's value is the mean return of continuations sampled from its state.

An environment is brought to a turn's state by playing the turns before it again, so it has to be deterministic (both
embedded ones are); one that shows something else on the way is refused. An iteration plays
rollout.trajectories episodes to train on, and `continuations` more for each of their turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from env_adapters.base import Task
from runtime.algorithms.base import BASELINES, Algorithm, Episode, Estimates, SweepPlan
from runtime.algorithms.normalisation import normalised_targets
from runtime.estimators import discounted_returns
from runtime.records import RecordError, Trajectory
from runtime.rollouts import Play
from runtime.targets import plus, turn_advantages


class VinePPO(Algorithm):
    @dataclass(frozen=True)
    class Options:
        continuations: int = 1  # from each turn's state (published 9)

        def __post_init__(self) -> None:
            if self.continuations < 1:
                raise ValueError(f"continuations = {self.continuations}: must be >= 1")

    def next_sweep(
        self, tasks: Sequence[Task], played: Sequence[Sequence[Trajectory]], more: Callable[[int], list[Task]]
    ) -> SweepPlan | None:
        if not played:
            return SweepPlan(tuple(Play(task) for task in tasks))
        if len(played) > 1:
            return None
        by_id = {task.task_id: task for task in tasks}
        plays = [
            Play(by_id[one.task_id], self.sample(turn, n), one.turns[:turn])
            for one in self.select(played[0])
            for turn in range(len(one.turns))
            for n in range(self.options.continuations)
        ]
        return SweepPlan(tuple(plays), prefix=BASELINES)

    def sample(self, turn: int, n: int) -> int:
        """The number of the n-th continuation from a turn; 0 is the trajectory itself."""
        return 1 + turn * self.options.continuations + n

    def estimate(self, episodes: Sequence[Episode], baselines: Sequence[Episode]) -> Estimates:
        """A_t = r_t + gamma V(s_t+1) - V(s_t), normalised as in Eq. 7."""
        s = self.settings
        returns = {
            one.trajectory.key: discounted_returns(one.rewards, s.gamma) for one in baselines
        }  # of the whole episode; its part from a turn on is what the continuation was paid
        raw, series = [], []
        for one in episodes:
            values = [self._value(one, turn, returns) for turn in range(len(one.rewards))]
            advantages = turn_advantages(one.rewards, values, s.gamma, 0.0)
            raw.append(advantages)
            series.append({"values": tuple(values), "returns": plus(values, advantages)})
        return normalised_targets(episodes, raw, series, s)

    def _value(self, one: Episode, turn: int, returns: dict) -> float:
        task = one.trajectory.task_id
        keys = [f"{task}#{self.sample(turn, n)}" for n in range(self.options.continuations)]
        found = [float(returns[key][turn]) for key in keys if key in returns]
        if not found:
            raise RecordError(
                f"trajectory {one.trajectory.key}: every continuation from turn {turn} ended in an error; see the "
                "`error` fields of the baseline shards, or raise vineppo.continuations"
            )
        return statistics.fmean(found)
