"""Which episodes the page holds, and in what form: whole tasks, chosen by a hash, as many as fit.

A task's episodes stay together, so that one task can be followed through the run; which tasks are taken depends on
their names alone, so the sample is uniform over tasks and the same for every page of a run.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pipeline.inspect.reading import Episode
from runtime.records import Turn

LONGEST_TEXT = 20_000  # characters of one text that the page shows
LONGEST_LIST = 500  # admissible actions of one turn
TASK_EPISODES = 64  # of one task, at most: a run of few tasks shows all of them
REFERENCE_BYTES = 6  # of a text's number in the page, comma included
ESCAPE_BYTES = 5  # that a `<` takes more in the page than in a text


@dataclass(frozen=True)
class Packed:
    """An episode as the page needs it.

    `texts` are goal, then observation, response, action of each turn; the page holds each distinct text and list once
    and refers to it by number. `facts` are JSON values.
    """

    task_id: str
    order: bytes  # of this episode within its task: a hash
    facts: dict[str, Any]
    texts: tuple[str, ...]
    lists: tuple[tuple[str, ...] | None, ...]  # admissible actions of each turn


def pack(episode: Episode, source: str) -> Packed:
    """Leave out what the page does not show (token ids, log-probs of tokens) and shorten what is endless."""
    one, targets = episode.trajectory, episode.targets
    turns = one.turns
    facts = {
        "source": source,
        "iteration": one.iteration,
        "task": short(one.task_id),
        "sample": one.sample,
        "split": short(one.split),
        "type": short(one.task_type),
        "temperature": one.temperature,
        "status": one.status,
        "success": one.success,
        "score": compact(one.score),
        "error": None if one.error is None else short(one.error),
        "policy": short(one.policy),
        "valid": [int(turn.valid) for turn in turns],
        "rewards": [compact(turn.reward) for turn in turns],
        "nats": [compact(nats_a_token(turn)) for turn in turns],
        "tokens": [len(turn.response_ids) for turn in turns],
    }
    if targets is not None:
        for name in ("values", "q_values", "advantages", "returns"):
            if getattr(targets, name):  # what the algorithm does not have is not there
                facts[name] = [compact(x) for x in getattr(targets, name)]
    texts = [one.goal]
    for turn in turns:
        texts += [turn.observation, turn.response, turn.action]
    lists = tuple(
        None if turn.admissible_actions is None else tuple(map(short, turn.admissible_actions[:LONGEST_LIST]))
        for turn in turns
    )
    name = f"{source}\n{one.iteration}\n{one.split}\n{one.temperature}\n{one.key}"
    return Packed(one.task_id, _hash(name), facts, tuple(map(short, texts)), lists)


def nats_a_token(turn: Turn) -> float:
    """Mean of -log p over the sampled tokens, nats: an estimate of the entropy from what was sampled."""
    return -sum(turn.sampling_logprobs) / max(1, len(turn.sampling_logprobs))


def short(text: str) -> str:
    """The text, or its beginning and how much is missing."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]} […] ({len(text) - LONGEST_TEXT} more characters in the shard)"


def compact(number: float) -> float:
    """Four significant digits: what a chart can show."""
    return float(f"{number:.4g}")


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


@dataclass
class Sample:
    """Shown all episodes, it keeps those of the tasks with the smallest hashes, as many as the page can hold."""

    budget: int  # bytes of the page
    size: int = 0  # bytes so far, about
    tasks: dict[str, list[tuple[bytes, Packed]]] = field(default_factory=dict)
    given_up: int = 0  # episodes left out
    _order: list[tuple[int, str]] = field(default_factory=list)  # heap of (-hash, task)
    _limit: int = 1 << 64  # hashes from here on are out
    _uses: Counter = field(default_factory=Counter)  # of each text

    def add(self, episode: Episode, source: str) -> None:
        """Consider an episode of the rollouts (`source` "rollouts") or of an "evaluation"."""
        place = int.from_bytes(_hash(episode.trajectory.task_id))
        if place >= self._limit:
            self.given_up += 1
            return
        one = pack(episode, source)
        if one.task_id not in self.tasks:
            self.tasks[one.task_id] = []
            heapq.heappush(self._order, (-place, one.task_id))
        own = self.tasks[one.task_id]
        own.append((one.order, one))
        self._count(one, 1)
        if len(own) > TASK_EPISODES:
            self._leave_out(own, max(range(len(own)), key=lambda index: own[index][0]))
        while self.size > self.budget:
            self._shrink()

    def _shrink(self) -> None:
        """Leave out the task with the largest hash; of the last one that is left, its largest episode by hash."""
        if len(self.tasks) == 1:
            (own,) = self.tasks.values()
            self._leave_out(own, max(range(len(own)), key=lambda index: own[index][0]))
            return
        place, task_id = heapq.heappop(self._order)
        self._limit = -place
        own = self.tasks.pop(task_id)
        while own:
            self._leave_out(own, len(own) - 1)

    def _leave_out(self, own: list[tuple[bytes, Packed]], index: int) -> None:
        self._count(own.pop(index)[1], -1)
        self.given_up += 1

    def _count(self, one: Packed, change: int) -> None:
        """Add to `size` what the episode takes in the page, or take it away again."""
        facts = json.dumps(list(one.facts.values()), separators=(",", ":"))
        self.size += change * (len(facts) + REFERENCE_BYTES * (len(one.texts) + len(one.lists)))
        for text in one.texts:
            self._use(text, change)
        for actions in one.lists:
            if actions is not None and self._use(actions, change):
                for action in actions:
                    self._use(action, change)

    def _use(self, part: str | tuple[str, ...], change: int) -> bool:
        """Count a user of a text or list more or less; whether it has come to the page or left it by that."""
        before = self._uses[part]
        self._uses[part] = before + change
        if self._uses[part] == 0:
            del self._uses[part]
        moved = before == 0 or before + change == 0
        if moved and isinstance(part, str):
            self.size += change * (len(json.dumps(part)) + 1 + ESCAPE_BYTES * part.count("<"))
        elif moved:
            self.size += change * REFERENCE_BYTES * len(part)
        return moved

    @property
    def episodes(self) -> list[Packed]:
        """What was kept, by iteration, rollouts before evaluations, by task."""
        kept = [one for own in self.tasks.values() for _, one in own]
        return sorted(kept, key=lambda one: (one.facts["iteration"], one.facts["source"] != "rollouts", one.task_id,
                                             one.facts["sample"], one.facts["temperature"]))  # fmt: skip
