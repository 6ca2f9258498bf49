"""One game of a layout and a goal: the objects are placed, then the PDDL problem and a walkthrough are written."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from env_adapters.alfworld import scenes
from env_adapters.alfworld.layouts import Goal, Layout, sources
from env_adapters.alfworld.scenes import APPLIANCE, LAMPS, OPENABLE, TRANSFORM_VERB, Room

# Types that the PDDL domain names as constants: a problem that leaves one out does not translate.
DOMAIN_OBJECT_TYPES = ("Knife", "ButterKnife")
DOMAIN_RECEPTACLE_TYPES = ("SinkBasin", "Microwave", "Fridge")


@dataclass(frozen=True)
class Logic:
    """The text of the PDDL domain and of the grammar that every game of one text generation shares."""

    domain: str
    grammar: str


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
