"""One pass over all episodes of a run: counts for each iteration, pairs for the calibration, a sample to read."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.inspect.reading import Run
from pipeline.report.sampling import Sample
from runtime.records import Targets, Trajectory

GROUPS = 4  # parts of the run, by iteration, that the calibration shows side by side
GROUP_EPISODES = 2000  # of one part, at most


@dataclass
class Sums:
    """What the episodes of one iteration come to; errors are counted and in nothing else."""

    episodes: int = 0
    errors: int = 0
    successes: int = 0
    rewards: float = 0.0
    rewards_squared: float = 0.0
    turns: int = 0
    turns_squared: int = 0
    invalid: int = 0
    invalid_squared: int = 0
    invalid_turns: int = 0  # sum of invalid * turns

    def add(self, one: Trajectory) -> None:
        if one.status == "error":
            self.errors += 1
            return
        reward, turns = one.return_undiscounted, len(one.turns)
        invalid = sum(not turn.valid for turn in one.turns)
        self.episodes += 1
        self.successes += one.success
        self.rewards += reward
        self.rewards_squared += reward * reward
        self.turns += turns
        self.turns_squared += turns * turns
        self.invalid += invalid
        self.invalid_squared += invalid * invalid
        self.invalid_turns += invalid * turns


@dataclass(frozen=True)
class Pairs:
    """One episode's readouts and what came: the discounted return from each turn on, reward units."""

    values: array
    q_values: array  # empty where the values are a critic's
    returns: array


@dataclass
class Reservoir:
    """A uniform sample of at most `size` of the episodes it is shown (Vitter's algorithm R)."""

    size: int
    seen: int = 0
    kept: list[Pairs] = field(default_factory=list)
    _draw: random.Random = field(default_factory=lambda: random.Random(0))  # the same page from the same run

    def add(self, pairs: Pairs) -> None:
        self.seen += 1
        if len(self.kept) < self.size:
            self.kept.append(pairs)
        elif (place := self._draw.randrange(self.seen)) < self.size:
            self.kept[place] = pairs


@dataclass(frozen=True)
class Part:
    """Consecutive iterations whose calibration is shown in one plot."""

    first: int
    last: int
    reservoir: Reservoir


@dataclass(frozen=True)
class Gathered:
    sums: dict[int, Sums]  # by iteration, of the rollouts
    parts: list[Part]
    sample: Sample
    num_episodes: int  # all that were seen, evaluations included


def gather(run: Run, sample: Sample, advance: Callable[[], None] = lambda: None) -> Gathered:
    """Read every episode of the run once, one at a time.

    Args:
        sample: is shown every episode.
        advance: called after each iteration and each evaluation.
    """
    iterations = run.iterations()
    parts = split(iterations)
    part_of = {i: part for part in parts for i in range(part.first, part.last + 1)}
    gamma = run.config.get("advantage", {}).get("gamma")
    scale = run.config.get("env", {}).get("success_reward_scale", 1.0)
    sums, num_episodes = {}, 0
    for iteration in iterations:
        sums[iteration] = Sums()
        for episode in run.trajectories(iteration):
            num_episodes += 1
            sums[iteration].add(episode.trajectory)
            sample.add(episode, "rollouts")
            if episode.targets is not None and episode.targets.values and gamma is not None:
                part_of[iteration].reservoir.add(pairs_of(episode.trajectory, episode.targets, gamma, scale))
        advance()
    for iteration in run.evaluations():
        for episode in run.evaluation_episodes(iteration):
            num_episodes += 1
            sample.add(episode, "evaluation")
        advance()
    return Gathered(sums, parts, sample, num_episodes)


def split(iterations: list[int]) -> list[Part]:
    """At most GROUPS parts of nearly equal length. Example: 1..10 -> 1-2, 3-5, 6-7, 8-10."""
    count = min(GROUPS, len(iterations))
    cuts = [len(iterations) * i // count for i in range(count + 1)] if count else []
    return [
        Part(iterations[a], iterations[b - 1], Reservoir(GROUP_EPISODES))
        for a, b in zip(cuts, cuts[1:], strict=False)
    ]  # fmt: skip


def pairs_of(trajectory: Trajectory, targets: Targets, gamma: float, scale: float) -> Pairs:
    """V and Q of each turn and the plain discounted return from there on, R_t = scale r_t + gamma R_(t+1)."""
    following, backwards = 0.0, []
    for turn in reversed(trajectory.turns):
        following = turn.reward * scale + gamma * following
        backwards.append(following)
    return Pairs(array("d", targets.values), array("d", targets.q_values), array("d", reversed(backwards)))
