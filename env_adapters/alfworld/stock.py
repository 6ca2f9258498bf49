"""The stock TextWorld engine as alfworld sets it up: what the fast slot is compared with, in tests and benchmarks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from env_adapters.alfworld.engine import require_engine


class StockSlot:
    """The same questions as `engine.EngineSlot`, answered by textworld.envs.PddlEnv and alfworld's demangler."""

    def __init__(self) -> None:
        require_engine()
        import textworld
        from textworld.envs import PddlEnv

        self._env = PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True))
        self._state: Any = None

    def load(self, data: Mapping[str, Any]) -> None:
        """Load a game.tw-pddl given as a mapping."""
        from alfworld.agents.utils.misc import Demangler

        with _argv_kept():
            self._env.load(data)
        names = Demangler(game_infos=self._env._entity_infos)
        for info in self._env._entity_infos.values():
            info.name = names.demangle_alfred_name(info.id)

    def reset(self) -> str:
        with _argv_kept():
            self._state = self._env.reset()
        return self._state.feedback

    def step(self, command: str) -> str:
        self._state, _, _ = self._env.step(command)
        return self._state.feedback

    @property
    def admissible(self) -> tuple[str, ...]:
        return tuple(self._state["admissible_commands"])

    @property
    def won(self) -> bool:
        return bool(self._state["won"])


class _argv_kept:
    """fast-downward overwrites sys.argv."""

    def __enter__(self) -> None:
        self._argv = sys.argv

    def __exit__(self, *_: object) -> None:
        sys.argv = self._argv
