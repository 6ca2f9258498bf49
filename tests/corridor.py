"""A third party's environment in one file: rooms in a row, a door at the right end, a pit at the left.

Used by dotted path: --env tests.corridor:CorridorAdapter
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from env_adapters.base import EnvironmentFault, Observation, PastTurn, StepResult, Task

ACTIONS = ("left", "right", "wait")
SPLITS = ("train", "warm_start", "near", "far")


class Corridor:
    """One walker. Rooms 0..last; right of the last room is the door (won), left of room 0 the pit (lost)."""

    def __init__(self) -> None:
        self.room: int | None = None

    def reset(self, task: Task) -> Observation:
        self.room, self.last = task.payload["start"], task.payload["rooms"] - 1
        return self._observe(task.payload["rooms"])

    def step(self, response: str) -> StepResult:
        if self.room is None:
            raise EnvironmentFault("corridor: step after the end of an episode; call reset first")
        first = response.split()[:1]  # the first word counts, what follows it does not
        valid = bool(first) and first[0] in ACTIONS
        action = first[0] if valid else ""
        self.room += {"left": -1, "right": 1}.get(action, 0)
        won, lost = self.room > self.last, self.room < 0
        observation = self._observe(self.last + 1)
        if won or lost:
            self.room = None
        return StepResult(observation, float(won), won or lost, action, valid, success=won, score=float(won))

    def expert_action(self) -> str | None:
        return None if self.room is None else "right"

    def close(self) -> None:
        pass

    def _observe(self, rooms: int) -> Observation:
        return Observation("find the door", f"room {self.room} of {rooms}", ACTIONS)


class CorridorAdapter:
    @dataclass(frozen=True)
    class Options:
        rooms: int = 3  # longest corridor
        tasks: int = 12  # of every split

        def __post_init__(self) -> None:
            if self.rooms < 1 or self.tasks < 1:
                raise ValueError(f"rooms = {self.rooms}, tasks = {self.tasks}: both must be >= 1")

    name = "corridor"
    train_split, warm_start_split, evaluation_splits = "train", "warm_start", ("near", "far")

    def __init__(self, options: Options) -> None:
        self.options = options

    def prepare(self, progress: Any = None) -> None:
        pass

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise EnvironmentFault(f"corridor: no split {split!r}; there are {', '.join(SPLITS)}")
        return [self._task(split, number) for number in range(self.options.tasks)]

    def _task(self, split: str, number: int) -> Task:
        rooms = 1 + number % self.options.rooms
        start = 0 if split == "far" else rooms - 1
        return Task(f"{split}/corridor-{number:04d}", split, f"rooms-{rooms}", {"rooms": rooms, "start": start})

    def make(self) -> Corridor:
        return Corridor()

    def prompt(self, observation: Observation, history: Sequence[PastTurn], turns_taken: int) -> str:
        past = " ".join(f"{turn.observation} , {turn.action} ;" for turn in history)
        return f"{observation.goal} , turn {turns_taken} : {past} {observation.text} ?"

    def response(self, action: str) -> str:
        return action

    def vocabulary(self) -> Sequence[str]:
        numbers = " ".join(str(number) for number in range(-1, 100))
        return [f"find the door , turn : ; ? room of {numbers} {' '.join(ACTIONS)}"]

    def description(self) -> Mapping[str, Any]:
        return {"engine": "corridor 1", "rooms": self.options.rooms, "tasks": self.options.tasks}


class SpokenCorridorAdapter(CorridorAdapter):
    """With short messages for the later turns of a transcript."""

    name = "spoken-corridor"

    def follow_up(self, observation: Observation) -> str:
        return f"; {observation.text} ?"


class FaultyCorridor(Corridor):
    """Does what the task's payload says: {"fault": which, "at": turn, "marker": file}; which as in `_fault`.

    With a marker that is not None the fault happens once only. A "wait" waits until the marker is there.
    """

    def reset(self, task: Task) -> Observation:
        self.payload, self.turn = task.payload, 0
        return super().reset(task)

    def step(self, response: str) -> StepResult:
        self.turn += 1
        if self.turn == self.payload.get("at"):
            self._fault(self.payload["fault"], self.payload["marker"])
        return super().step(response)

    def _fault(self, fault: str, marker: str | None) -> None:
        if fault == "wait":
            Path(f"{marker}.reached").touch()
            while not Path(marker).exists():
                time.sleep(0.01)
            return
        if marker is not None:
            if Path(marker).exists():
                return
            Path(marker).touch()
        if fault == "exit":
            os._exit(3)
        if fault == "hang":
            time.sleep(3600)
        if fault == "refuse":
            raise EnvironmentFault("corridor: the door is stuck; oil it")
        raise RuntimeError("the floor gave way")


class FaultyCorridorAdapter(CorridorAdapter):
    name = "faulty-corridor"

    def make(self) -> FaultyCorridor:
        return FaultyCorridor()


class EchoingCorridor(Corridor):
    """What it shows ends with all that was said."""

    def step(self, response: str) -> StepResult:
        result = super().step(response)
        return replace(result, observation=replace(result.observation, text=f"{result.observation.text} {response}"))


class EchoingCorridorAdapter(CorridorAdapter):
    name = "echoing-corridor"

    def make(self) -> EchoingCorridor:
        return EchoingCorridor()


class BrokenAdapter(CorridorAdapter):
    """Builds in the parent, not in a worker."""

    name = "broken-corridor"

    def __init__(self, options: CorridorAdapter.Options) -> None:
        super().__init__(options)
        if os.environ.get("CORRIDOR_BROKEN"):
            raise RuntimeError("no floor plan")
