"""Invents household games in the real ALFWorld format, solvable by construction.

A game is a *layout* (which receptacles there are), a *goal* (task type, object class, receptacle class) and a
*placement* (which object lies where). Splits differ in what they may share:

    warm_start, train, dev, seen   layouts and goal pairs from the common pool; no two games alike
    unseen                         layouts and (object, receptacle) goal pairs that the others never use

Everything derives from `random.Random(text)` with a text that names seed, split and number, so the same options
give the same bytes on any machine and in any order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from env_adapters.alfworld import scenes
from env_adapters.alfworld.scenes import APPLIANCE, LAMPS, OPENABLE, TASK_TYPES, TRANSFORM_VERB, Room
from env_adapters.base import EnvironmentFault

# Part of the cache key: raise a scene's number whenever the same options would give other games.
GENERATOR_VERSION = {"tiny": 1, "full": 2}

SPLITS = ("warm_start", "train", "dev", "seen", "unseen")
UNSEEN_PAIR_SHARE = 0.25  # of each object's goal receptacles, kept for the unseen split
NUM_LAYOUTS = {"tiny": (96, 32), "full": (80, 24)}  # in the common pool, in the unseen pool

# Types that the PDDL domain names as constants: a problem that leaves one out does not translate.
DOMAIN_OBJECT_TYPES = ("Knife", "ButterKnife")
DOMAIN_RECEPTACLE_TYPES = ("SinkBasin", "Microwave", "Fridge")


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


@dataclass(frozen=True)
class Game:
    """One game as it lies on disk: `data` is game.tw-pddl, `traj` is traj_data.json."""

    task_id: str
    split: str
    goal: Goal
    layout: Layout
    data: dict
    traj: dict


@dataclass(frozen=True)
class Logic:
    """The text of the PDDL domain and of the grammar that every game of one text generation shares."""

    domain: str
    grammar: str


def game_name(goal: Goal, number: int, layout_number: int) -> str:
    """Folder name in the manner of the real data, e.g. `pick_and_place_simple-Mug-None-Shelf-3/trial_000017`."""
    middle = goal.receptacle if goal.task_type == "look_at_obj_in_light" else None
    parts = [goal.task_type, goal.object, "None", middle or goal.receptacle, str(layout_number)]
    return "-".join(parts) + f"/trial_{number:06d}"


# ---------------------------------------------------------------------------------------------- layouts and goals
def _draw_layout(scene: str, room_number: int, room: Room, rng: random.Random) -> Layout:
    """One layout that can host at least one task; tiny ones are drawn until their total fits."""
    while True:
        if scene == "tiny":
            classes = rng.sample(["Fridge", "Microwave", "SinkBasin"], 2)
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
def _cells(
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


# ----------------------------------------------------------------------------------------------------- one game
def _mangle(text: str) -> str:
    return text.replace("-", "_minus_").replace("|", "_bar_").replace("+", "_plus_").replace(".", "_dot_")


def _coordinates(rng: random.Random) -> str:
    return "|".join(f"{rng.uniform(-9.99, 9.99):+06.2f}" for _ in range(3))


def _identifiers(classes: Sequence[str], rng: random.Random) -> list[str]:
    """THOR-like ids, all different. Sinks and bathtubs carry their basin at the end, as the real ones do."""
    found: list[str] = []
    while len(found) < len(classes):
        class_ = classes[len(found)]
        if class_.endswith("Basin"):
            name = f"{class_.removesuffix('Basin')}|{_coordinates(rng)}|{class_}"
        else:
            name = f"{class_}|{_coordinates(rng)}"
        if _mangle(name) not in found:
            found.append(_mangle(name))
    return found


def _visible_names(identifiers: Sequence[str]) -> dict[str, str]:
    """What the engine calls each id in its text: class and number, the highest number for the first sorted id."""
    classes = {i: i.lower().split("_bar_", 1)[0] + ("basin" if "basin" in i.lower() else "") for i in identifiers}
    left: dict[str, int] = {}
    for class_ in classes.values():
        left[class_] = left.get(class_, 0) + 1
    names = {}
    for identifier in sorted(identifiers, key=str.lower):
        class_ = classes[identifier]
        names[identifier] = f"{class_} {left[class_]}"
        left[class_] -= 1
    return names


_GOAL_PDDL = {
    "pick_and_place_simple": "",
    "pick_clean_then_place_in_recep": "(cleanable ?o) (isClean ?o)",
    "pick_heat_then_place_in_recep": "(heatable ?o) (isHot ?o)",
    "pick_cool_then_place_in_recep": "(coolable ?o) (isCool ?o)",
}
_SENTENCES = {
    "pick_and_place_simple": ("put a {obj} in {recep}", "put some {obj} on {recep}"),
    "pick_clean_then_place_in_recep": ("put a clean {obj} in {recep}", "clean some {obj} and put it in {recep}"),
    "pick_heat_then_place_in_recep": ("put a hot {obj} in {recep}", "heat some {obj} and put it in {recep}"),
    "pick_cool_then_place_in_recep": ("put a cool {obj} in {recep}", "cool some {obj} and put it in {recep}"),
    "pick_two_obj_and_place": ("put two {obj} in {recep}", "find two {obj} and put them in {recep}"),
    "look_at_obj_in_light": ("look at {obj} under the {recep}", "examine the {obj} with the {recep}"),
}


def _goal_pddl(goal: Goal) -> str:
    """The goal in PDDL: the same conditions as the real games of its type."""
    o, r = f"{goal.object}Type", f"{goal.receptacle}Type"
    if goal.task_type == "look_at_obj_in_light":
        return f"""(and
    (exists (?ot - object ?r - receptacle ?a - agent ?l - location)
        (and (objectType ?ot {r}) (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l)
             (atLocation ?a ?l) (inReceptacle ?ot ?r)))
    (exists (?o - object ?a - agent) (and (objectType ?o {o}) (holds ?a ?o))))"""
    if goal.task_type == "pick_two_obj_and_place":
        return f"""(and (exists (?r - receptacle) (exists (?o1 - object)
    (and (objectType ?o1 {o}) (receptacleType ?r {r}) (inReceptacle ?o1 ?r)
         (exists (?o2 - object)
             (and (not (= ?o1 ?o2)) (objectType ?o2 {o}) (receptacleType ?r {r}) (inReceptacle ?o2 ?r)))))))"""
    return f"""(and (exists (?r - receptacle) (exists (?o - object)
    (and {_GOAL_PDDL[goal.task_type]} (objectType ?o {o}) (receptacleType ?r {r}) (inReceptacle ?o ?r)))))"""


def build_game(
    goal: Goal, layout: Layout, scene: str, rng: random.Random, logic: Logic, put_words: str
) -> tuple[dict, dict, tuple]:
    """Place the objects and write the game.

    Returns (game.tw-pddl, traj_data.json, signature); two games with one signature look alike to an agent.
    `put_words` is the text generation: "move" or "put" (the walkthrough needs it).
    """
    room, fits, can = scenes.SCENES[scene][layout.room], scenes.holds(), scenes.affordances()
    receptacles = _identifiers(layout.classes, rng)
    openable = {r for r, c in zip(receptacles, layout.classes, strict=True) if c in OPENABLE}
    spots = _spots(receptacles, room.shared_point, rng)

    num_wanted = 2 if goal.task_type == "pick_two_obj_and_place" else 1
    wanted_places = [rng.choice(sources(goal, layout)) for _ in range(num_wanted)]
    placed: list[tuple[str, int]] = [(goal.object, place) for place in wanted_places]
    if goal.task_type == "look_at_obj_in_light":
        stands = [i for i, c in enumerate(layout.classes) if c in room.lamp_places]
        placed.append((goal.receptacle, rng.choice(stands)))
    placed += _lying_about(goal, layout, room, rng.randint(*room.num_objects) - len(placed), fits, rng)
    objects = _identifiers([c for c, _ in placed], rng)
    where = {o: receptacles[i] for o, (_, i) in zip(objects, placed, strict=True)}
    class_of = {o: c for o, (c, _) in zip(objects, placed, strict=True)}

    problem = _problem(goal, layout, receptacles, openable, spots, where, class_of, fits, can)
    names = _visible_names([*receptacles, *objects])
    walkthrough = _walkthrough(
        goal, objects[: num_wanted + 1], where, receptacles, layout, openable, spots, names, put_words
    )
    sentence = rng.choice(_SENTENCES[goal.task_type])
    sentence = sentence.format(obj=goal.object.lower(), recep=goal.receptacle.lower())
    data = {
        "pddl_domain": logic.domain,
        "grammar": logic.grammar.replace("UNKNOWN GOAL", sentence),
        "pddl_problem": problem,
        "solvable": True,
        "walkthrough": walkthrough,
    }
    light = goal.task_type == "look_at_obj_in_light"
    traj = {
        "task_type": goal.task_type,
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": goal.object,
            "parent_target": "" if light else goal.receptacle,
            "toggle_target": goal.receptacle if light else "",
        },
        "turk_annotations": {"anns": [{"task_desc": sentence, "high_descs": []}]},
    }
    signature = (goal, layout.classes, tuple(sorted((names[o], names[where[o]]) for o in objects)))
    return data, traj, signature


def _spots(receptacles: Sequence[str], shared: float, rng: random.Random) -> dict[str, str]:
    """Receptacle -> location id; now and then two share one."""
    spots, previous = {}, None
    for number, receptacle in enumerate(receptacles):
        if previous is None or rng.random() >= shared:
            previous = _mangle(f"loc|{number + 1}|{rng.randint(-12, 12)}|{rng.randint(0, 3)}|30")
        spots[receptacle] = previous
    return spots


def _lying_about(goal, layout, room: Room, count: int, fits, rng: random.Random) -> list[tuple[str, int]]:
    """Objects that the task does not ask for, each in a receptacle that may hold it."""
    found: list[tuple[str, int]] = []
    stock = [c for c in room.objects if c != goal.object]
    rng.shuffle(stock)
    for class_ in stock:
        places = [i for i, c in enumerate(layout.classes) if class_ in fits.get(c, ())]
        twins = 2 if rng.random() < room.duplicates else 1
        for _ in range(twins):
            if len(found) < count and places:
                found.append((class_, rng.choice(places)))
    return found


def _problem(goal, layout, receptacles, openable, spots, where, class_of, fits, can) -> str:
    """The PDDL problem. Declares the types that the domain names even where no such thing is in the room."""
    receptacle_types = sorted({*layout.classes, *DOMAIN_RECEPTACLE_TYPES})
    object_types = sorted({*class_of.values(), *DOMAIN_OBJECT_TYPES})
    start = "loc_bar_0_bar_0_bar_0_bar_30"
    locations = sorted({*spots.values(), start})
    lines = ["(define (problem plan_generated)", "(:domain alfred)", "(:objects"]
    lines += [f"    {o} - object" for o in where]
    lines += [f"    {r} - receptacle" for r in receptacles]
    lines += [f"    {spot} - location" for spot in locations]
    lines += [f"    {t}Type - otype" for t in object_types]
    lines += [f"    {t}Type - rtype" for t in receptacle_types]
    lines += ["    agent1 - agent", ")", "(:init", "    (= (total-cost) 0)", f"    (atLocation agent1 {start})"]
    for receptacle, class_ in zip(receptacles, layout.classes, strict=True):
        lines.append(f"    (receptacleType {receptacle} {class_}Type)")
        lines.append(f"    (receptacleAtLocation {receptacle} {spots[receptacle]})")
        if receptacle in openable:
            lines.append(f"    (openable {receptacle})")
    kinds = (("Heatable", "heatable"), ("Coolable", "coolable"), ("Cleanable", "cleanable"), ("Sliceable", "sliceable"))
    has_knife = any(c in DOMAIN_OBJECT_TYPES for c in class_of.values())
    for object_, receptacle in where.items():
        class_ = class_of[object_]
        lines.append(f"    (objectType {object_} {class_}Type)")
        lines.append(f"    (inReceptacle {object_} {receptacle})")
        lines.append(f"    (objectAtLocation {object_} {spots[receptacle]})")
        lines.append(f"    ({'toggleable' if class_ in LAMPS else 'pickupable'} {object_})")
        for kind, predicate in kinds:
            if class_ in can[kind] and (kind != "Sliceable" or has_knife):
                lines.append(f"    ({predicate} {object_})")
    for receptacle_type in sorted(set(layout.classes)):
        for object_type in sorted(set(class_of.values())):
            if object_type in fits.get(receptacle_type, ()):
                lines.append(f"    (canContain {receptacle_type}Type {object_type}Type)")
    return "\n".join([*lines, ")", f"(:goal {_goal_pddl(goal)})", "(:metric minimize (total-cost))", ")"])


def _walkthrough(goal, main, where, receptacles, layout, openable, spots, names, put_words) -> list[str]:
    """A solution by one who knows where everything is. `main` starts with the wanted object(s), then the lamp."""
    of_class = {}
    for receptacle, class_ in zip(receptacles, layout.classes, strict=True):
        of_class.setdefault(class_, receptacle)
    here: str | None = None
    opened: set[str] = set()
    plan: list[str] = []

    def go(receptacle: str, open_it: bool) -> None:
        nonlocal here
        if here != spots[receptacle]:
            plan.append(f"go to {names[receptacle]}")
            here = spots[receptacle]
        if open_it and receptacle in openable and receptacle not in opened:
            plan.append(f"open {names[receptacle]}")
            opened.add(receptacle)

    wanted = main[:2] if goal.task_type == "pick_two_obj_and_place" else main[:1]
    for object_ in wanted:
        go(where[object_], open_it=True)
        plan.append(f"take {names[object_]} from {names[where[object_]]}")
        if goal.task_type == "look_at_obj_in_light":
            go(where[main[1]], open_it=False)
            plan.append(f"use {names[main[1]]}")
            continue
        if goal.task_type in APPLIANCE:
            appliance = of_class[APPLIANCE[goal.task_type][0]]
            go(appliance, open_it=False)
            plan.append(f"{TRANSFORM_VERB[goal.task_type]} {names[object_]} with {names[appliance]}")
        target = of_class[goal.receptacle]
        go(target, open_it=True)
        joint = "to" if put_words == "move" else "in/on"
        plan.append(f"{put_words} {names[object_]} {joint} {names[target]}")
    return plan


# --------------------------------------------------------------------------------------------------- whole splits
def generate(split: str, count: int, scene: str, seed: int, logic: Logic, put_words: str, taken: set) -> Iterator[Game]:
    """`count` games of a split, task types in turn, objects in turn within a type.

    `taken` holds the signatures of all games made so far (over all splits); new ones are added. Raises
    EnvironmentFault where a split cannot be filled.
    """
    unseen = split == "unseen"
    numbers = {layout: i for i, layout in enumerate([*layouts(scene, seed)[0], *layouts(scene, seed)[1]])}
    for number in range(count):
        task_type = TASK_TYPES[number % len(TASK_TYPES)]
        cells = _cells(scene, seed, unseen, task_type)
        if not cells:
            raise EnvironmentFault(f"split {split!r}, seed {seed}: no layout can host {task_type}; try another seed")
        order = random.Random(f"objects {scene} {seed} {split} {task_type}").sample(range(len(cells)), len(cells))
        _, combinations = cells[order[number // len(TASK_TYPES) % len(cells)]]
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


def dumps(value: object) -> str:
    """JSON in one fixed form, so that equal games are equal bytes."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
