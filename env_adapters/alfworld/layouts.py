"""Which rooms there are and what may be asked in them: layouts, goals, and which of both the unseen split keeps.

Everything derives from `random.Random(text)` with a text that names scene and seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from env_adapters.alfworld import scenes
from env_adapters.alfworld.scenes import APPLIANCE, LAMPS, TASK_TYPES, Room

UNSEEN_PAIR_SHARE = 0.25  # of each object's goal receptacles, kept for the unseen split
NUM_LAYOUTS = {"tiny": (96, 32), "small": (96, 32), "full": (80, 24)}  # in the common pool, in the unseen pool


@dataclass(frozen=True)
class Layout:
    """The receptacles of one room. `number` keys its coordinates; `classes` is what an agent can tell apart."""

    room: int  # index into the scene's rooms
    classes: tuple[str, ...]  # sorted, with repeats


@dataclass(frozen=True)
class Goal:
    """Example: Goal("pick_heat_then_place_in_recep", "Mug", "Cabinet"); for the light task the receptacle is a lamp."""

    task_type: str
    object: str
    receptacle: str


def _draw_layout(scene: str, room_number: int, room: Room, rng: random.Random) -> Layout:
    """One layout that can host at least one task; tiny and small ones are drawn until their total fits."""
    while True:
        if scene in ("tiny", "small"):
            classes = rng.sample(["Fridge", "Microwave", "SinkBasin"], 2 if scene == "tiny" else 3)
            classes += rng.sample(room.lamp_places, 1)
            total = rng.randint(*room.num_receptacles)
            stock = [c for c, (_, most) in room.receptacles.items() for _ in range(most) if c not in APPLIANCE_CLASSES]
            for taken in classes:
                if taken in stock:
                    stock.remove(taken)
            classes += rng.sample(stock, total - len(classes))
            # Searching must be worth something: a hidden place that is no appliance, and an open one beside.
            if not any(c in ("Cabinet", "Drawer") for c in classes):
                continue
        else:
            classes = [c for c, (low, high) in room.receptacles.items() for _ in range(rng.randint(low, high))]
        return Layout(room_number, tuple(sorted(classes)))


APPLIANCE_CLASSES = frozenset(appliance for appliance, _ in APPLIANCE.values())


@cache
def layouts(scene: str, seed: int) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    """(common pool, unseen pool): all different."""
    rooms = scenes.SCENES[scene]
    num_common, num_unseen = NUM_LAYOUTS[scene]
    rng = random.Random(f"layouts {scene} {seed}")
    found: dict[Layout, None] = {}
    while len(found) < num_common + num_unseen:
        room_number = len(found) % len(rooms)
        found.setdefault(_draw_layout(scene, room_number, rooms[room_number], rng))
    everything = list(found)
    return tuple(everything[:num_common]), tuple(everything[num_common:])


@cache
def goals(scene: str, room_number: int, task_type: str) -> tuple[Goal, ...]:
    """Every goal that the room's classes allow, whatever the layout."""
    room, fits, can = scenes.SCENES[scene][room_number], scenes.holds(), scenes.affordances()
    if task_type not in room.task_types:
        return ()
    if task_type == "look_at_obj_in_light":
        return tuple(Goal(task_type, o, lamp) for o in room.objects for lamp in room.lamps)
    needed, found = APPLIANCE.get(task_type), []
    for receptacle in room.receptacles:
        if needed and receptacle == needed[0]:
            continue  # heat it and leave it there: the real data has none
        for object_ in room.objects:
            if object_ not in fits.get(receptacle, ()) or (needed and object_ not in can[needed[1]]):
                continue
            found.append(Goal(task_type, object_, receptacle))
    return tuple(found)


@cache
def unseen_pairs(scene: str, seed: int) -> frozenset[tuple[str, str]]:
    """(object, receptacle) pairs kept for the unseen split: about a quarter of each object's.

    Never all of an object's nor all of a receptacle's, so that every word is met in training.
    """
    by_object: dict[str, set[str]] = {}
    for room_number in range(len(scenes.SCENES[scene])):
        for task_type in TASK_TYPES:
            for goal in goals(scene, room_number, task_type):
                by_object.setdefault(goal.object, set()).add(goal.receptacle)
    kept = set()
    for object_ in sorted(by_object):
        rng = random.Random(f"unseen pairs {scene} {seed} {object_}")
        lamps = [r for r in sorted(by_object[object_]) if r in LAMPS]
        others = [r for r in sorted(by_object[object_]) if r not in LAMPS]
        if len(others) > 1:
            kept.update((object_, r) for r in rng.sample(others, max(1, round(UNSEEN_PAIR_SHARE * len(others)))))
        if len(lamps) > 1 and rng.random() < 0.4:
            kept.add((object_, rng.choice(lamps)))
    for receptacle in sorted({r for found in by_object.values() for r in found}):
        wanting = [(o, receptacle) for o in sorted(by_object) if receptacle in by_object[o]]
        if kept.issuperset(wanting):
            kept.discard(wanting[0])
    return frozenset(kept)


def possible(goal: Goal, layout: Layout, scene: str) -> bool:
    """Whether the layout has what the goal needs: the receptacle, the appliance, and another place to search."""
    room = scenes.SCENES[scene][layout.room]
    if goal.task_type not in room.task_types or goal.object not in room.objects:
        return False
    present = set(layout.classes)
    if goal.task_type == "look_at_obj_in_light":
        return bool(present & set(room.lamp_places)) and bool(sources(goal, layout))
    needed = APPLIANCE.get(goal.task_type)
    return goal.receptacle in present and (not needed or needed[0] in present) and len(sources(goal, layout)) > 1


def sources(goal: Goal, layout: Layout) -> list[int]:
    """Indices of the receptacles where the wanted object may lie at the start (never of the goal's class)."""
    fits = scenes.holds()
    return [i for i, c in enumerate(layout.classes) if c != goal.receptacle and goal.object in fits.get(c, ())]


@cache
def cells(
    scene: str, seed: int, unseen: bool, task_type: str
) -> tuple[tuple[str, tuple[tuple[Goal, Layout], ...]], ...]:
    """(object, its (goal, layout) combinations) for one task type, so that every object gets its turn."""
    pool = layouts(scene, seed)[1 if unseen else 0]
    kept = unseen_pairs(scene, seed)
    by_object: dict[str, list[tuple[Goal, Layout]]] = {}
    for layout in pool:
        for goal in goals(scene, layout.room, task_type):
            if ((goal.object, goal.receptacle) in kept) == unseen and possible(goal, layout, scene):
                by_object.setdefault(goal.object, []).append((goal, layout))
    return tuple((object_, tuple(found)) for object_, found in sorted(by_object.items()))
