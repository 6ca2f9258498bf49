"""An environment of pure Python for comparisons of speed: texts that depend on task and turn alone, without an end.

Every observation has the same number of words, so the episodes of two systems read the same tokens. Imports nothing
heavy: another system's interpreter can use it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from env_adapters.base import Observation, PastTurn, StepResult, Task

PLACES = ("kitchen", "garden", "cellar", "attic", "garage", "hall", "porch", "study")
THINGS = ("apple", "lamp", "book", "knife", "plate", "candle", "basket", "hammer", "mirror", "towel")


class Talk:
    """Describes one place after another; pays 1 for a response whose text has an even number of letters."""

    def reset(self, task: Task) -> Observation:
        self.task, self.turn = task, 0
        return self._observe()

    def step(self, response: str) -> StepResult:
        self.turn += 1
        said = THINGS[len(response) % len(THINGS)]  # what a random model says would be long to write down again
        return StepResult(self._observe(), float(len(response) % 2 == 0), False, said, True)

    def expert_action(self) -> str | None:
        return "look"

    def close(self) -> None:
        pass

    def _observe(self) -> Observation:
        rng = random.Random(f"{self.task.task_id} {self.turn}")
        first, second, third = rng.sample(THINGS, 3)
        text = f"you walk into the {rng.choice(PLACES)} and see a {first} , a {second} and a {third} on the table"
        return Observation("bring the apple from the cellar to the kitchen and light the lamp", text)


class TalkAdapter:
    @dataclass(frozen=True)
    class Options:
        tasks: int = 64  # of every split

    name = "talk"
    train_split, warm_start_split, evaluation_splits = "train", "warm_start", ("dev",)

    def __init__(self, options: Options) -> None:
        self.options = options

    def prepare(self, progress: Any = None) -> None:
        pass

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(f"{split}/talk-{number:04d}", split, "talk") for number in range(self.options.tasks)]

    def make(self) -> Talk:
        return Talk()

    def prompt(self, observation: Observation, history: Sequence[PastTurn], turns_taken: int) -> str:
        past = " ".join(f"{turn.observation} , you said {turn.action} ;" for turn in history)
        return f"your task is to {observation.goal} ; {past} {observation.text} ; what do you do now ?"

    def follow_up(self, observation: Observation) -> str:
        return f"{observation.text} ; what do you do now ?"

    def response(self, action: str) -> str:
        return action

    def vocabulary(self) -> Sequence[str]:
        talk = Talk()
        talk.reset(Task("train/talk-0000", "train", "talk"))
        return [self.prompt(talk._observe(), [PastTurn("look", "look")], 0), " ".join(PLACES + THINGS)]

    def description(self) -> Mapping[str, Any]:
        return {"engine": "talk 1", "tasks": self.options.tasks}
