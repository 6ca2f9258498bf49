"""What an interactive text environment must offer: text in, text out, nothing of ours imported.

An **adapter** describes an environment family (its task lists, its prompt, its options); an
**environment** is one live engine slot that plays one episode after another. The adapter lives in
every process and is cheap to build; environments live in worker processes and may be heavy.

To add an environment, write one module with a class that fulfils `Adapter`, and name it: an entry
point in the group `sapo.env_adapters`, or a dotted path (`--env my_package.my_module:MyAdapter`).
`env_adapters.contract.check_adapter` is the test that it must pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable


class EnvironmentFault(Exception):
    """The environment could not do what was asked. The message names object, fact and remedy."""


@dataclass(frozen=True)
class Task:
    """One environment instance that can be played: the unit of sampling and of evaluation.

    Example:
        Task(task_id="train/heat-000017", split="train", task_type="heat",
             payload={"game": "train/heat-000017/game.tw-pddl"})
    """

    task_id: str  # unique over all splits; letters, digits and / - _ . only
    split: str  # "train", "warm_start", "dev", "seen", "unseen", ... as the adapter names them
    task_type: str  # results are broken down by it
    payload: Mapping[str, Any] = field(default_factory=dict)  # small, JSON types: workers get it, records keep it


@dataclass(frozen=True)
class Observation:
    """What the agent is shown before a turn.

    Example:
        Observation(goal="put a hot mug in cabinet.",
                    text="You arrive at loc 3. On the countertop 1, you see a mug 1.",
                    admissible_actions=("go to cabinet 1", "take mug 1 from countertop 1"))
    """

    goal: str  # the task's instruction, the same at every turn of an episode
    text: str
    admissible_actions: tuple[str, ...] | None = None  # None: the environment lists none


@dataclass(frozen=True)
class StepResult:
    """What came of one response.

    `terminated` is True where the episode ended in the environment's own logic (won, lost, bought).
    The turn limit is not the environment's business: the runtime truncates.
    `success` is None until the episode has ended in a way that can be judged; a success is latched
    by the environment (an ended episode is never stepped again).
    """

    observation: Observation
    reward: float
    terminated: bool
    action: str  # what was parsed out of the response ("" where nothing was)
    valid: bool  # False: the response had no well-formed action; the environment did a no-op
    success: bool = False
    score: float = 0.0  # raw score of the environment in [0, 1], for evaluation only
    info: Mapping[str, Any] = field(default_factory=dict)  # how the score came about; to look at, never recorded


@dataclass(frozen=True)
class PastTurn:
    """One earlier turn as the prompt shows it."""

    observation: str
    action: str


@runtime_checkable
class Environment(Protocol):
    """One live engine slot. Not thread-safe; kept for the life of a worker process."""

    def reset(self, task: Task) -> Observation:
        """Start an episode of `task`. May be called at any time, also in mid-episode."""

    def step(self, response: str) -> StepResult:
        """Parse the action out of a model's response and play it. Raises EnvironmentFault after the end."""

    def expert_action(self) -> str | None:
        """The action an expert would play now, or None where there is no expert for this state."""

    def close(self) -> None:
        """Release the engine."""


@runtime_checkable
class Adapter(Protocol):
    """An environment family. Built from its own frozen `Options` dataclass: `MyAdapter(MyAdapter.Options(...))`.

    An adapter may also have `interchangeable_words`: groups of single words (lower case) that can be renamed into
    each other, the same way all over an episode, without changing what a good action is. The warm start of a tiny
    model uses it (`warm_start.word_permutation`). And `follow_up(observation) -> str`: the user message of a later turn
    where the prompt is a transcript (`env.prompt_form=transcript`), which holds the task and the turns before; without
    it that is `prompt(observation, (), turns_taken)`.
    """

    name: ClassVar[str]
    Options: ClassVar[type]  # frozen dataclass; every field has a default; ranges checked in __post_init__
    train_split: ClassVar[str]  # tasks for rollouts
    warm_start_split: ClassVar[str]  # tasks for expert demonstrations
    evaluation_splits: ClassVar[tuple[str, ...]]  # held out, disjoint from the two above

    def prepare(self, progress: Any = None) -> None:
        """Make data ready on disk (generate, index, verify). Idempotent; safe after a kill.

        `progress(done, total, what)` is called now and then where it is given.
        """

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split in one fixed order. Raises EnvironmentFault for an unknown split."""

    def make(self) -> Environment:
        """A new engine slot, in the calling process."""

    def prompt(self, observation: Observation, history: Sequence[PastTurn], turns_taken: int) -> str:
        """The user message for the next turn. Pure. `history` is oldest first and may be shortened by the caller."""

    def response(self, action: str) -> str:
        """The well-formed response that plays `action` (for demonstrations): parses back to `action`."""

    def vocabulary(self) -> Sequence[str]:
        """Texts that together hold every word of the environment and its prompts (for a word-level tokenizer)."""

    def description(self) -> Mapping[str, Any]:
        """Facts that go into every manifest and result: engine version, data source, grammar in use, counts, hashes.

        JSON types, and the same at every start over the same data: no times, no places. A run refuses to go on where
        they have changed.
        """
