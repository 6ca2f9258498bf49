"""Invents household games in the real ALFWorld format, solvable by construction.

A game is a *layout* (which receptacles there are), a *goal* (task type, object class, receptacle class) and a
*placement* (which object lies where). Splits differ in what they may share:

    warm_start, train, dev, seen   layouts and goal pairs from the common pool; no two games alike
    unseen                         layouts and (object, receptacle) goal pairs that the others never use

Everything derives from `random.Random(text)` with a text that names seed, split and number, so the same options
give the same bytes on any machine and in any order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from env_adapters.alfworld.building import Logic, build_game
from env_adapters.alfworld.layouts import Goal, Layout, cells, layouts
from env_adapters.alfworld.scenes import SCENES, TASK_TYPES
from env_adapters.base import EnvironmentFault

# Part of the cache key: raise a scene's number whenever the same options would give other games.
GENERATOR_VERSION = {"tiny": 1, "small": 1, "full": 2}

SPLITS = ("warm_start", "train", "dev", "seen", "unseen")


@dataclass(frozen=True)
class Game:
    """One game as it lies on disk: `data` is game.tw-pddl, `traj` is traj_data.json."""

    task_id: str
    split: str
    goal: Goal
    layout: Layout
    data: dict
    traj: dict


def game_name(goal: Goal, number: int, layout_number: int) -> str:
    """Folder name in the manner of the real data, e.g. `pick_and_place_simple-Mug-None-Shelf-3/trial_000017`."""
    middle = goal.receptacle if goal.task_type == "look_at_obj_in_light" else None
    parts = [goal.task_type, goal.object, "None", middle or goal.receptacle, str(layout_number)]
    return "-".join(parts) + f"/trial_{number:06d}"


def generate(split: str, count: int, scene: str, seed: int, logic: Logic, put_words: str, taken: set) -> Iterator[Game]:
    """`count` games of a split, task types in turn, objects in turn within a type.

    `taken` holds the signatures of all games made so far (over all splits); new ones are added. Raises
    EnvironmentFault where a split cannot be filled.
    """
    unseen = split == "unseen"
    numbers = {layout: i for i, layout in enumerate([*layouts(scene, seed)[0], *layouts(scene, seed)[1]])}
    kinds = [kind for kind in TASK_TYPES if any(kind in room.task_types for room in SCENES[scene])]
    for number in range(count):
        task_type = kinds[number % len(kinds)]
        found = cells(scene, seed, unseen, task_type)
        if not found:
            raise EnvironmentFault(f"split {split!r}, seed {seed}: no layout can host {task_type}; try another seed")
        order = random.Random(f"objects {scene} {seed} {split} {task_type}").sample(range(len(found)), len(found))
        _, combinations = found[order[number // len(kinds) % len(found)]]
        rng = random.Random(f"game {scene} {seed} {split} {number}")
        for _ in range(200):
            goal, layout = rng.choice(combinations)
            data, traj, signature = build_game(goal, layout, scene, rng, logic, put_words)
            if signature not in taken:
                break
        else:
            raise EnvironmentFault(f"split {split!r}: game {number} repeats others; ask for fewer games")
        taken.add(signature)
        name = game_name(goal, number, numbers[layout])
        yield Game(f"{split}/{name}", split, goal, layout, data, traj)
