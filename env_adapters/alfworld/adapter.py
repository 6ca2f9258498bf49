"""The ALFWorld adapter: options, task lists, prompts, and the environment that plays one episode after another."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from env_adapters.alfworld import prompts, words
from env_adapters.alfworld.engine import NOTHING_HAPPENS, TESTED_TEXTWORLD, EngineSlot, require_engine
from env_adapters.alfworld.expert import Searcher, wanted_of
from env_adapters.alfworld.games import (
    REAL_FOLDERS,
    REAL_VERSION_FOLDER,
    TRANSLATION_VERSION,
    GeneratedGames,
    RealGames,
    installed_logic,
    read_manifest,
)
from env_adapters.alfworld.generate import GENERATOR_VERSION
from env_adapters.alfworld.prepare import prepare_games
from env_adapters.base import EnvironmentFault, Observation, PastTurn, StepResult, Task
from env_adapters.responses import format_response, parse_response

WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
TASK_WORDS = "Your task is to: "
MOST = 1_000_000  # of anything that is counted
HELP = "help"  # admissible in newer games; says nothing about the room, so it is not shown


@dataclass(frozen=True)
class AlfworldOptions:
    """Options of the environment; on the command line `--set env.scene=full`."""

    source: Literal["auto", "real", "generated"] = "auto"  # auto: real games where they are found
    data_dir: str = ""  # holds json_2.1.1/; "" means $ALFWORLD_DATA, else ~/.cache/alfworld
    cache_dir: str = ""  # generated games and translations; "" means ~/.cache/sapo/alfworld
    # of generated games: 4-5 receptacles; 8-9 and only tasks of several steps; realistic rooms
    scene: Literal["tiny", "small", "full"] = "tiny"
    grammar: Literal["move", "put"] = "move"  # of generated games: text of 2.1.2 and later, or of 2.1.1
    train_games: int = 2000  # of generated games; real ones are all used
    warm_start_games: int = 1000  # for demonstrations, apart from train; of real games at most a third
    dev_games: int = 300  # for choosing settings; of real games at most a tenth of train
    held_out_games: int = 300  # each of seen and unseen
    seed: int = 0  # of generated games
    prompt: Literal["auto", "published", "compact"] = "auto"  # auto: compact for tiny generated games
    expert: Literal["auto", "searcher", "walkthrough"] = "auto"  # auto: searcher for generated games
    # What counts as a valid action. format: well-formed tags, as published; admissible: also in the list that the
    # prompt shows (what is not there gets "Nothing happens" from the engine either way).
    validity: Literal["format", "admissible"] = "format"
    success_reward: float = 10.0  # paid once, at the turn that reaches the goal
    prepare_processes: int = 0  # 0: one a core

    def __post_init__(self) -> None:
        for name in ("train_games", "warm_start_games", "dev_games", "held_out_games", "seed", "prepare_processes"):
            if not 0 <= getattr(self, name) <= MOST:
                raise ValueError(f"option {name}={getattr(self, name)} is negative or above {MOST}; give 0 to {MOST}")
        if not 0 < self.success_reward < float("inf"):
            raise ValueError(f"option success_reward={self.success_reward} must be positive and finite")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"option {name}={getattr(self, name)!r} is not one of {', '.join(choices)}")


_CHOICES = {
    "source": ("auto", "real", "generated"),
    "scene": ("tiny", "small", "full"),
    "grammar": ("move", "put"),
    "prompt": ("auto", "published", "compact"),
    "expert": ("auto", "searcher", "walkthrough"),
    "validity": ("format", "admissible"),
}


class AlfworldAdapter:
    """Household tasks in text. See env_adapters/base.py for what each method promises."""

    name: ClassVar[str] = "alfworld"
    Options: ClassVar[type] = AlfworldOptions
    train_split: ClassVar[str] = "train"
    warm_start_split: ClassVar[str] = "warm_start"
    evaluation_splits: ClassVar[tuple[str, ...]] = ("dev", "seen", "unseen")

    def __init__(self, options: AlfworldOptions | None = None) -> None:
        self.options = options or AlfworldOptions()
        default_data = os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld"
        self._data_dir = Path(self.options.data_dir or default_data).expanduser()
        self._cache_dir = Path(self.options.cache_dir or "~/.cache/sapo/alfworld").expanduser()
        self.source = self._choose_source()
        self._games: RealGames | GeneratedGames | None = None
        compact_by_default = self.source == "generated" and self.options.scene != "full"
        self.prompt_form = {"auto": "compact" if compact_by_default else "published"}.get(
            self.options.prompt, self.options.prompt
        )
        self.expert_form = {"auto": "searcher" if self.source == "generated" else "walkthrough"}.get(
            self.options.expert, self.options.expert
        )

    def _choose_source(self) -> str:
        found = any((self._data_dir / REAL_VERSION_FOLDER / folder).is_dir() for folder in REAL_FOLDERS.values())
        if self.options.source == "generated":
            return "generated"
        if self.options.source == "real" or self.options.data_dir:
            if not found:
                raise EnvironmentFault(
                    f"real ALFWorld games: {self._data_dir / REAL_VERSION_FOLDER} has none of "
                    f"{', '.join(REAL_FOLDERS.values())}; run alfworld-download, or set env.data_dir, "
                    "or take env.source=generated"
                )
            return "real"
        return "real" if found else "generated"

    # -- data ----------------------------------------------------------------------------------------------------
    def _facts(self) -> dict[str, Any]:
        """What the bytes of generated games depend on."""
        options = self.options
        return {
            "generator": GENERATOR_VERSION[options.scene],
            "format": TRANSLATION_VERSION,
            "textworld": TESTED_TEXTWORLD,
            "scene": options.scene,
            "grammar": options.grammar,
            "seed": options.seed,
        }

    def _counts(self) -> dict[str, int]:
        options = self.options
        return {
            "warm_start": options.warm_start_games,
            "train": options.train_games,
            "dev": options.dev_games,
            "seen": options.held_out_games,
            "unseen": options.held_out_games,
        }

    def folder(self) -> Path:
        """Where these options' generated games lie."""
        key = json.dumps([self._facts(), self._counts()], sort_keys=True)
        return self._cache_dir / f"{self.options.scene}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"

    def prepare(self, progress: Any = None) -> None:
        """Generate and verify games, or scan the real ones. Seconds for small sets, minutes for large ones."""
        require_engine()
        if self.source == "generated":
            processes = self.options.prepare_processes or len(os.sched_getaffinity(0))
            logic = installed_logic(self.options.grammar)
            prepare_games(
                self.folder(), self._counts(), self.options.scene, self.options.seed, logic, self.options.grammar,
                self._facts(), processes, progress,
            )  # fmt: skip
        self._load()

    def _load(self) -> RealGames | GeneratedGames:
        if self._games is not None:
            return self._games
        if self.source == "real":
            self._games = RealGames(
                self._data_dir, self._cache_dir, self.options.warm_start_games, self.options.dev_games
            )
            return self._games
        manifest = read_manifest(self.folder())
        if manifest is None:
            raise EnvironmentFault(f"generated ALFWorld games: {self.folder()} is not ready; call prepare() first")
        self._games = GeneratedGames(self.folder(), manifest, installed_logic(self.options.grammar))
        return self._games

    def tasks(self, split: str) -> Sequence[Task]:
        known = (self.train_split, self.warm_start_split, *self.evaluation_splits)
        if split not in known:
            raise EnvironmentFault(f"split {split!r}: alfworld has {', '.join(known)}")
        return self._load().tasks(split)

    def make(self) -> AlfworldEnvironment:
        must_be_listed = self.options.validity == "admissible"
        return AlfworldEnvironment(self._load(), self.options.success_reward, self.expert_form, must_be_listed)

    # -- text ----------------------------------------------------------------------------------------------------
    def prompt(self, observation: Observation, history: Sequence[PastTurn], turns_taken: int) -> str:
        form = prompts.compact if self.prompt_form == "compact" else prompts.published
        return form(observation, history, turns_taken)

    def follow_up(self, observation: Observation) -> str:
        """The user message of a later turn of a transcript."""
        if self.prompt_form == "compact":
            return f" ; {prompts.compact_follow_up(observation)}"
        return f"Your current observation is: {observation.text}"

    def response(self, action: str) -> str:
        return format_response(action)

    def vocabulary(self) -> Sequence[str]:
        scene = self.options.scene if self.source == "generated" else "full"
        return words.vocabulary(scene, self.prompt_form)

    @property
    def interchangeable_words(self) -> Sequence[Sequence[str]]:
        """Groups of nouns that can be renamed into each other without changing what a good action is."""
        scene = self.options.scene if self.source == "generated" else "full"
        return words.interchangeable(scene)

    def description(self) -> Mapping[str, Any]:
        games = self._load()
        facts: dict[str, Any] = {
            "environment": self.name,
            "source": self.source,
            "engine": f"textworld {TESTED_TEXTWORLD}",
            "prompt": self.prompt_form,
            "expert": self.expert_form,
            "counts": {split: len(games.tasks(split)) for split in self._counts()},
        }
        if isinstance(games, RealGames):
            grammars = dict(games.grammars)
            return {**facts, "grammars": grammars, "skipped": dict(games.skipped), "sha256": dict(games.sha256)}
        return {
            **facts,
            "scene": self.options.scene,
            "seed": self.options.seed,
            "grammars": {self.options.grammar: sum(facts["counts"].values())},
            "sha256": dict(games.manifest["sha256"]),
        }


class AlfworldEnvironment:
    """One engine slot. Wins are latched: the episode has ended, and a further step is refused."""

    def __init__(
        self, games: RealGames | GeneratedGames, success_reward: float, expert_form: str, must_be_listed: bool = False
    ) -> None:
        self._games = games
        self._success_reward = success_reward
        self._must_be_listed = must_be_listed
        self._expert_form = expert_form
        self._slot = EngineSlot()
        self._task: Task | None = None
        self._ended = True

    def reset(self, task: Task) -> Observation:
        key = self._games.key(task)
        known = self._slot.known(key)
        if known is None:
            stored = self._games.read(task)
            notes = wanted_of(stored.traj), tuple(stored.data.get("walkthrough") or ())
            self._slot.load(key, stored.data, stored.translation, notes)
            known = self._slot.known(key)
        intro = self._slot.reset(key)
        text, _, goal = intro.replace(WELCOME, "").partition(TASK_WORDS)
        self._task, self._goal, self._ended = task, goal.strip(), False
        wanted, self._walkthrough = known.notes
        self._followed = 0  # how many walkthrough actions were played, or -1 once another one was
        use_searcher = self._expert_form == "searcher" and wanted is not None
        self._searcher = Searcher(wanted) if use_searcher else None
        if self._searcher:
            self._searcher.watch(intro)
        return self._observe(text.strip())

    def _observe(self, text: str) -> Observation:
        return Observation(self._goal, text, tuple(a for a in self._slot.admissible if a != HELP))

    def step(self, response: str) -> StepResult:
        if self._task is None:
            raise EnvironmentFault("alfworld: step before the first reset; call reset(task)")
        if self._ended:
            raise EnvironmentFault(f"game {self._task.task_id!r}: the episode has ended; call reset(task)")
        parsed = parse_response(response)
        if not parsed.valid:
            return StepResult(self._observe(NOTHING_HAPPENS), 0.0, False, "", False)
        valid = not self._must_be_listed or parsed.action in self._slot.admissible
        feedback = self._slot.step(parsed.action)
        if self._searcher:
            self._searcher.watch(feedback)
        self._follow(parsed.action)
        self._ended = self._slot.won
        reward = self._success_reward if self._ended else 0.0
        score = 1.0 if self._ended else 0.0
        return StepResult(self._observe(feedback), reward, self._ended, parsed.action, valid, self._ended, score)

    def _follow(self, action: str) -> None:
        plan = self._walkthrough
        on_track = 0 <= self._followed < len(plan) and plan[self._followed] == action
        self._followed = self._followed + 1 if on_track else -1

    def expert_action(self) -> str | None:
        if self._task is None or self._ended:
            return None
        if self._searcher:
            return self._searcher.act(self._slot.admissible)
        if self._expert_form == "walkthrough" and 0 <= self._followed < len(self._walkthrough):
            return self._walkthrough[self._followed]
        return None

    def close(self) -> None:
        self._slot.close()
        self._task, self._ended = None, True
