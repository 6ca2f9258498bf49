"""What a run needs of its environment is checked before the first stage."""

import pytest

from pipeline.config import Config, EnvConfig, RolloutConfig, WarmStartConfig
from pipeline.run_directory import RunError
from pipeline.session import check_tasks
from tests.corridor import CorridorAdapter


class Sparse(CorridorAdapter):
    """Some splits are empty."""

    empty = ()

    def tasks(self, split):
        return [] if split in self.empty else super().tasks(split)


def config(tasks: int = 12, warm_start: bool = True) -> Config:
    return Config(
        env=EnvConfig(name="corridor"),
        rollout=RolloutConfig(trajectories=tasks),
        warm_start=WarmStartConfig(enabled=warm_start),
    )


@pytest.mark.parametrize(
    ("empty", "tasks", "warm_start", "message"),
    [
        ((), 12, True, None),
        (("far",), 12, True, None),
        (("warm_start",), 12, False, None),
        (
            (),
            13,
            True,
            "corridor: its split train has 12 tasks, rollout.trajectories = 13; set rollout.trajectories=12 or less",
        ),
        (
            ("train",),
            1,
            True,
            "its split train has 0 tasks, rollout.trajectories = 1; see what it says above and its options",
        ),
        (("warm_start",), 12, True, "warm_start has no tasks to demonstrate; .* or set warm_start.enabled=false"),
        (("near", "far"), 12, True, r"no held-out tasks to evaluate on \(near, far\); check"),
    ],
)
def test_the_splits_have_what_the_run_needs(empty, tasks, warm_start, message):
    adapter = Sparse(Sparse.Options())
    adapter.empty = empty
    if message is None:
        check_tasks(adapter, config(tasks, warm_start))
        return
    with pytest.raises(RunError, match=message):
        check_tasks(adapter, config(tasks, warm_start))
