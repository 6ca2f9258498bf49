"""Plays episodes: many at once, generation and environments side by side, each episode at its own pace.

An episode is in one of two places: its prompt is in the generator, or its response is with its environment. The loop
hands things over as they come; a slot whose episode ends takes the next one at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from env_adapters.base import Observation, PastTurn, StepResult, Task
from runtime.environment_pool import EnvironmentPool, EnvironmentPoolError, Reply
from runtime.generator import Completion, Generator, Request
from runtime.prompts import Prompt, PromptRenderer, PromptTooLong, context_ids
from runtime.records import Trajectory, Turn
from runtime.seeding import Name, trajectory_seed, uniforms

__all__ = ["EnvironmentPool", "EnvironmentPoolError", "Play", "PlaySettings", "PlayTimes", "RolloutError", "play"]

NOT_RESTORED = (
    "the environment showed something else when the turns before were played again, so its states cannot be restored; "
    "use a deterministic environment, or an algorithm that does not start episodes in the middle"
)
ATTEMPTS = 2  # an episode whose environment is lost is played once more


class RolloutError(Exception):
    """Too many episodes failed. The message names how many, the limit, and the first failure."""


@dataclass(frozen=True)
class Play:
    """An episode to play: a task, the number of the sample, and turns that are played again before sampling starts."""

    task: Task
    sample: int = 0
    script: tuple[Turn, ...] = ()

    @property
    def key(self) -> str:
        """That of its trajectory."""
        return f"{self.task.task_id}#{self.sample}"


@dataclass(frozen=True)
class PlaySettings:
    """What all episodes of one sweep have in common."""

    run_seed: int
    seed_name: Name  # the iteration, or a name such as "evaluate/unseen": randomness derives from it
    iteration: int  # as recorded
    policy: str  # fingerprint of the weights, as recorded
    max_turns: int
    max_error_share: float = 0.1  # of the episodes of this sweep


@dataclass
class PlayTimes:
    """Where the loop's wall time went, and the environments' own time (which overlaps with it), seconds."""

    generation_s: float = 0.0  # in the decode loop
    environment_wait_s: float = 0.0  # with nothing to generate
    total_s: float = 0.0
    environment_s: float = 0.0  # summed over environments


@dataclass
class _Episode:
    play: Play
    failures: int = 0  # of its environment, so far
    goal: str = ""
    observation: Observation | None = None
    history: list[PastTurn] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    prompt: Prompt | None = None
    response: str = ""
    completion: Completion | None = None
    score: float = 0.0

    @property
    def task(self) -> Task:
        return self.play.task

    @property
    def scripted(self) -> Turn | None:
        """The next turn, where it is one to play again."""
        at = len(self.turns)
        return self.play.script[at] if at < len(self.play.script) else None


def play(
    episodes: Sequence[Play],
    pool: EnvironmentPool,
    generator: Generator,
    renderer: PromptRenderer,
    settings: PlaySettings,
    times: PlayTimes | None = None,
) -> Iterator[Trajectory]:
    """Play each episode once and yield its trajectory when it ends, in the order of ending.

    As many episodes live at once as the generator has slots. A response is decoded once, for the environment; its ids
    are kept as sampled. After `max_turns` turns (the last one is played too) an episode that has not ended by itself
    is "truncated". Where an environment fails, the episode starts anew once; a second failure makes it an "error".

    Args:
        pool: nobody else may use it meanwhile.
        generator: idle; its length limits are those of the sweep.
        times: gets the time split added.

    Raises:
        RolloutError: more errors than settings.max_error_share of the episodes; after those were yielded.
    """
    sweep = _Sweep(episodes, pool, generator, renderer, settings, times or PlayTimes())
    try:
        yield from sweep.run()
    finally:  # also after an interrupt or where the caller stops listening
        for slot in list(sweep.live):
            pool.release(slot)


class _Sweep:
    def __init__(
        self,
        episodes: Sequence[Play],
        pool: EnvironmentPool,
        generator: Generator,
        renderer: PromptRenderer,
        settings: PlaySettings,
        times: PlayTimes,
    ) -> None:
        self.pool, self.generator, self.renderer, self.settings, self.times = pool, generator, renderer, settings, times
        self.waiting = deque(_Episode(one) for one in episodes)
        self.total = len(self.waiting)
        self.live: dict[int, _Episode] = {}  # by slot
        self.finished: deque[Trajectory] = deque()
        self.errors: list[str] = []

    def run(self) -> Iterator[Trajectory]:
        start = time.perf_counter()
        for slot in range(min(self.generator.slots, self.total)):
            self._take_next(slot)
        while self.live:
            self._hand_over_replies()
            self._hand_over_completions()
            self.times.total_s += time.perf_counter() - start
            yield from self._drain()  # the caller's time is not ours
            start = time.perf_counter()

    def _drain(self) -> Iterator[Trajectory]:
        while self.finished:
            yield self.finished.popleft()
        if len(self.errors) > self.settings.max_error_share * self.total:
            raise RolloutError(
                f"{len(self.errors)} of {self.total} episodes failed, rollout.max_error_share allows "
                f"{self.settings.max_error_share:g}; mend the cause and start again. The first:\n{self.errors[0]}"
            )

    def _hand_over_replies(self) -> None:
        start = time.perf_counter()
        nothing_to_generate = self.generator.idle
        replies = self.pool.poll(1.0 if nothing_to_generate else 0.0)
        if nothing_to_generate:
            self.times.environment_wait_s += time.perf_counter() - start
        for reply in replies:
            self.times.environment_s += reply.seconds
            self._on_reply(reply)

    def _hand_over_completions(self) -> None:
        if self.generator.idle:
            return
        start = time.perf_counter()
        completions = self.generator.step()
        self.times.generation_s += time.perf_counter() - start
        for completion in completions:
            self._on_completion(completion)

    def _take_next(self, slot: int) -> None:
        if self.waiting:
            self.live[slot] = self.waiting.popleft()
            self.pool.reset(slot, self.live[slot].task)

    def _on_reply(self, reply: Reply) -> None:
        episode = self.live[reply.slot]
        if reply.error is not None:
            self._lost(reply.slot, episode, reply)
        elif isinstance(reply.result, Observation):
            episode.goal = reply.result.goal
            self._ask(reply.slot, episode, reply.result)
        else:
            self._add_turn(episode, reply.result, reply.seconds)
            last = episode.turns[-1]
            if last.terminated or last.truncated:
                self._finish(reply.slot, "terminated" if last.terminated else "truncated", reply.result.success)
            else:
                self._ask(reply.slot, episode, reply.result.observation)

    def _ask(self, slot: int, episode: _Episode, observation: Observation) -> None:
        """Render the prompt of the next turn and queue it for generation; or play a turn of the script again."""
        episode.observation = observation
        turn = len(episode.turns)
        if (again := episode.scripted) is not None:
            if observation.text != again.observation:
                self._finish(slot, "error", False, f"turn {turn}: {NOT_RESTORED}")
            else:
                self.pool.step(slot, again.response)
            return
        try:
            episode.prompt = self.renderer.next_prompt(observation, episode.history, episode.turns)
        except PromptTooLong as fault:
            self._finish(slot, "error", False, str(fault))
            return
        settings = self.settings
        numbers = uniforms(
            settings.run_seed,
            settings.seed_name,
            episode.task.task_id,
            episode.play.sample,
            turn,
            self.generator.max_response,
        )
        context = context_ids(episode.turns) if episode.prompt.continues else ()
        conversation = slot if self.renderer.transcript else None
        self.generator.submit(Request((slot, episode), context + episode.prompt.ids, numbers, conversation))

    def _on_completion(self, completion: Completion) -> None:
        slot, episode = completion.key
        if self.live.get(slot) is not episode:
            return  # its environment was lost meanwhile
        episode.completion = completion
        episode.response = self._decode(completion)
        self.pool.step(slot, episode.response)

    def _decode(self, completion: Completion) -> str:
        """The text for the environment: without the end-of-turn token, otherwise as sampled."""
        ids = completion.response_ids[:-1] if completion.stopped else completion.response_ids
        return self.renderer.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)

    def _add_turn(self, episode: _Episode, result: StepResult, seconds: float) -> None:
        before, completion = episode.observation, episode.completion
        actions = before.admissible_actions
        episode.history.append(PastTurn(before.text, result.action))
        episode.score = float(result.score)
        episode.turns.append(
            episode.scripted
            or Turn(
                observation=before.text,
                admissible_actions=None if actions is None else tuple(actions),
                prompt_ids=episode.prompt.ids,
                response=episode.response,
                response_ids=completion.response_ids,
                sampling_logprobs=completion.sampling_logprobs,
                action=result.action,
                valid=bool(result.valid),
                reward=float(result.reward),
                generation_s=completion.seconds,
                environment_s=seconds,
                terminated=bool(result.terminated),
                truncated=not result.terminated and len(episode.turns) + 1 >= self.settings.max_turns,
                continues=episode.prompt.continues,
            )
        )

    def _lost(self, slot: int, episode: _Episode, reply: Reply) -> None:
        """Start the episode anew, with the same randomness; or give it up."""
        failures = episode.failures + reply.to_blame
        if failures >= ATTEMPTS:
            self._finish(slot, "error", False, reply.error)
            return
        self.live[slot] = _Episode(episode.play, failures)
        self.pool.reset(slot, episode.task)

    def _finish(self, slot: int, status: str, success: bool, error: str | None = None) -> None:
        episode = self.live.pop(slot)
        self.pool.release(slot)
        self.generator.forget(slot)
        if error is not None:
            self.errors.append(f"task {episode.task.task_id}: {error}")
        self.finished.append(_trajectory(episode, self.settings, self.generator.temperature, status, success, error))
        self._take_next(slot)


def _trajectory(
    episode: _Episode, settings: PlaySettings, temperature: float, status: str, success: bool, error: str | None
) -> Trajectory:
    task = episode.task
    return Trajectory(
        task_id=task.task_id,
        sample=episode.play.sample,
        split=task.split,
        task_type=task.task_type,
        goal=episode.goal,
        iteration=settings.iteration,
        seed=trajectory_seed(settings.run_seed, settings.seed_name, task.task_id, episode.play.sample),
        policy=settings.policy,
        temperature=temperature,
        status=status,
        success=bool(success),
        score=episode.score,
        turns=tuple(episode.turns),
        error=error,
        task=dict(task.payload),
    )
