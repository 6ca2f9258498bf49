"""The corridor with something new to see at every start: no state of it can be restored."""

from __future__ import annotations

from env_adapters.base import Observation, Task
from tests.corridor import Corridor, CorridorAdapter


class RestlessCorridor(Corridor):
    def __init__(self) -> None:
        super().__init__()
        self.starts = 0

    def reset(self, task: Task) -> Observation:
        self.starts += 1
        return super().reset(task)

    def _observe(self, rooms: int) -> Observation:
        seen = super()._observe(rooms)
        return Observation(seen.goal, f"{seen.text} turn {self.starts}", seen.admissible_actions)


class RestlessCorridorAdapter(CorridorAdapter):
    name = "restless-corridor"

    def make(self) -> RestlessCorridor:
        return RestlessCorridor()
