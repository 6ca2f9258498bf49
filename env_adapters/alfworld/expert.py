"""A scripted player who sees what the agent sees.

It knows the task and what this episode has shown so far, nothing hidden: it looks into the receptacles down
the list, remembers what it saw, takes the wanted object, transforms it, puts it. It also follows the actions of
another player, so it can take over in any state that it has watched from the start. (An order shuffled per task was
tried: what cannot be foretold from the prompt is noise in every demonstration, and imitation learned more slowly.)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

_TRANSFORM = {
    "pick_clean_then_place_in_recep": ("clean", "sinkbasin"),
    "pick_heat_then_place_in_recep": ("heat", "microwave"),
    "pick_cool_then_place_in_recep": ("cool", "fridge"),
}
_INTRO = re.compile(r"looking quickly around you, you see (.*?)\.(?:\s|$)", re.DOTALL)
_ARRIVE = re.compile(r"you arrive at (?:the )?([a-z]+ \d+)")
_SURFACE = re.compile(r"on the ([a-z]+ \d+), you see (.*?)\.(?:\s|$)")
_OPEN = re.compile(r"the ([a-z]+ \d+) is open\. in it, you see (.*?)\.(?:\s|$)")
_CLOSED = re.compile(r"(?:the ([a-z]+ \d+) is closed|you close the ([a-z]+ \d+))")
_TAKEN = re.compile(r"you pick up the ([a-z]+ \d+) from the ([a-z]+ \d+)")
_PUT = re.compile(r"you (?:move|put) the ([a-z]+ \d+) (?:to|in/on) the ([a-z]+ \d+)")
_CHANGED = re.compile(r"you (clean|heat|cool) the ([a-z]+ \d+) using")
_THING = re.compile(r"[a-z]+ \d+")


@dataclass(frozen=True)
class Wanted:
    """The goal in classes as the text names them: Wanted("pick_heat_then_place_in_recep", "mug", "shelf")."""

    task_type: str
    object: str
    receptacle: str  # the lamp's class for look_at_obj_in_light


def wanted_of(traj: Mapping[str, Any]) -> Wanted | None:
    """The goal as traj_data.json states it; None where it does not."""
    parameters = traj.get("pddl_params") or {}
    object_ = parameters.get("object_target")
    target = parameters.get("toggle_target" if traj["task_type"] == "look_at_obj_in_light" else "parent_target")
    if not object_ or not target:
        return None
    return Wanted(traj["task_type"], object_.lower(), target.lower())


@dataclass
class _Belief:
    receptacles: list[str] = field(default_factory=list)
    at: str | None = None
    contents: dict[str, set[str]] = field(default_factory=dict)  # receptacles whose inside was seen
    closed: set[str] = field(default_factory=set)  # seen closed, now
    holding: str | None = None
    changes: dict[str, set[str]] = field(default_factory=dict)  # object -> {"clean", "heat", "cool"}
    refused: set[tuple[str, str]] = field(default_factory=set)  # (object, receptacle) that would not take it


class Searcher:
    """One episode's expert. Feed it every text with `watch`, ask with `act`."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._belief = _Belief()
        self._order: list[str] = []

    # -- what was seen -------------------------------------------------------------------------------------------
    def watch(self, text: str) -> None:
        """Take note of an observation (the engine's own text, with or without its task line)."""
        belief, text = self._belief, text.lower()
        if match := _INTRO.search(text):
            if not belief.receptacles:
                belief.receptacles = _THING.findall(match.group(1))
                self._order = sorted(belief.receptacles)
        if match := _ARRIVE.search(text):
            belief.at = match.group(1)
        if match := _CLOSED.search(text):
            belief.closed.add(match.group(1) or match.group(2))
        for match in (*_SURFACE.finditer(text), *_OPEN.finditer(text)):
            belief.closed.discard(match.group(1))
            belief.contents[match.group(1)] = set(_THING.findall(match.group(2)))
        if match := _TAKEN.search(text):
            belief.holding = match.group(1)
            belief.contents.setdefault(match.group(2), set()).discard(match.group(1))
        if match := _PUT.search(text):
            belief.holding = None
            belief.contents.setdefault(match.group(2), set()).add(match.group(1))
        if match := _CHANGED.search(text):
            changes = belief.changes.setdefault(match.group(2), set())
            changes.discard({"heat": "cool", "cool": "heat"}.get(match.group(1), ""))
            changes.add(match.group(1))

    # -- what to do ----------------------------------------------------------------------------------------------
    def act(self, admissible: Collection[str]) -> str | None:
        """The next action, one of `admissible`; None where the expert is at its wits' end."""
        action = self._choose(admissible)
        if action is None and self._belief.contents:
            # Something moved behind its back: forget what lies where and look again.
            self._belief.contents.clear()
            self._belief.refused.clear()
            action = self._choose(admissible)
        return action

    def _choose(self, admissible: Collection[str]) -> str | None:
        belief, wanted = self._belief, self._wanted
        if belief.holding is not None and _class(belief.holding) != wanted.object:
            return self._drop(admissible)
        if wanted.task_type == "look_at_obj_in_light":
            return self._examine_in_light(admissible)
        if belief.holding is not None:
            return self._deliver(belief.holding, admissible)
        target = self._target()
        for receptacle in self._order:
            for object_ in sorted(belief.contents.get(receptacle, ())):
                if _class(object_) == wanted.object and not self._is_done(object_, receptacle, target):
                    return self._take(object_, receptacle, admissible)
        return self._explore(admissible)

    def _target(self) -> str | None:
        """The receptacle to fill: one that already holds a finished object, else the first in this task's order."""
        candidates = [r for r in self._order if _class(r) == self._wanted.receptacle]
        filled = [
            r for r in candidates if any(_class(o) == self._wanted.object for o in self._belief.contents.get(r, ()))
        ]
        return (filled or candidates or [None])[0]

    def _is_done(self, object_: str, receptacle: str, target: str | None) -> bool:
        if receptacle != target:
            return False
        verb = _TRANSFORM.get(self._wanted.task_type, (None,))[0]
        return verb is None or verb in self._belief.changes.get(object_, ())

    def _deliver(self, object_: str, admissible: Collection[str]) -> str | None:
        if self._wanted.task_type in _TRANSFORM:
            verb, appliance_class = _TRANSFORM[self._wanted.task_type]
            if verb not in self._belief.changes.get(object_, ()):
                for appliance in (r for r in self._order if _class(r) == appliance_class):
                    if action := self._reach(appliance, [f"{verb} {object_} with {appliance}"], admissible, False):
                        return action
                return None
        target = self._target()
        return self._put(object_, target, admissible) if target else None

    def _put(self, object_: str, receptacle: str, admissible: Collection[str]) -> str | None:
        commands = [f"move {object_} to {receptacle}", f"put {object_} in/on {receptacle}"]
        return self._reach(receptacle, commands, admissible)

    def _take(self, object_: str, receptacle: str, admissible: Collection[str]) -> str | None:
        return self._reach(receptacle, [f"take {object_} from {receptacle}"], admissible)

    def _drop(self, admissible: Collection[str]) -> str | None:
        """Put away something that is in the way: here if possible, else in the next place that will have it."""
        object_ = self._belief.holding
        for action in sorted(admissible):
            if action.startswith((f"move {object_} to ", f"put {object_} in/on ")):
                return action
        here = self._belief.at
        if here is not None and here not in self._belief.closed:
            self._belief.refused.add((object_, here))
        for receptacle in self._order:
            if (object_, receptacle) not in self._belief.refused:
                if action := self._reach(receptacle, [], admissible):
                    return action
        return None

    def _examine_in_light(self, admissible: Collection[str]) -> str | None:
        belief, wanted = self._belief, self._wanted
        seen = [(o, r) for r in self._order for o in sorted(belief.contents.get(r, ()))]
        if belief.holding is None:
            for object_, receptacle in seen:
                if _class(object_) == wanted.object:
                    return self._take(object_, receptacle, admissible)
        else:
            for object_, receptacle in seen:
                if _class(object_) == wanted.receptacle:
                    return self._reach(receptacle, [f"use {object_}"], admissible, open_it=False)
        return self._explore(admissible)

    def _explore(self, admissible: Collection[str]) -> str | None:
        belief = self._belief
        if belief.at is not None and belief.at not in belief.contents:
            if action := self._reach(belief.at, [], admissible):
                return action
        for receptacle in self._order:
            if receptacle not in belief.contents:
                if action := self._reach(receptacle, [], admissible):
                    return action
        return None

    def _reach(
        self, receptacle: str, commands: list[str], admissible: Collection[str], open_it: bool = True
    ) -> str | None:
        """One of `commands` where it can be played, else the next move towards where it can."""
        for command in commands:
            if command in admissible:
                return command
        here = self._belief.at == receptacle
        if here and open_it and f"open {receptacle}" in admissible:
            return f"open {receptacle}"
        for move in (f"go to {receptacle}", f"open {receptacle}", f"examine {receptacle}"):
            if move in admissible:
                return move
        return None


def _class(name: str) -> str:
    return name.split(" ", 1)[0]
