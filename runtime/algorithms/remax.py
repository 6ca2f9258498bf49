"""ReMax (arXiv 2310.10505): one sampled trajectory a task against the greedy one's return, in units of r_max.

Half of an iteration's trajectories are greedy: they are played and not trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from env_adapters.base import Task
from runtime.algorithms.base import BASELINES, Algorithm, Episode, Estimates, SweepPlan
from runtime.algorithms.normalisation import plain_targets
from runtime.estimators import turn_scores
from runtime.records import Trajectory
from runtime.rollouts import Play

GREEDY_SAMPLE = 1


class ReMax(Algorithm):
    samples = 2  # the sampled and the greedy one

    def next_sweep(
        self, tasks: Sequence[Task], played: Sequence[Sequence[Trajectory]], more: Callable[[int], list[Task]]
    ) -> SweepPlan | None:
        if not played:
            return SweepPlan(tuple(Play(task) for task in tasks))
        if len(played) == 1:
            return SweepPlan(tuple(Play(task, GREEDY_SAMPLE) for task in tasks), prefix=BASELINES, greedy=True)
        return None

    def estimate(self, episodes: Sequence[Episode], baselines: Sequence[Episode]) -> Estimates:
        c_inv, unit = self.settings.c_inv, self.settings.r_max
        greedy = {one.trajectory.task_id: turn_scores(one.total, one.invalid, c_inv).mean() for one in baselines}
        advantages = {
            one.trajectory.key: (turn_scores(one.total, one.invalid, c_inv) - greedy[one.trajectory.task_id]) / unit
            for one in episodes
            if one.trajectory.task_id in greedy  # its greedy trajectory may have been lost to an error
        }
        return plain_targets(episodes, advantages, {})
