"""What generated households are made of: receptacles, objects, rooms, and which goes with which.

Which object fits in which receptacle, and what can be heated, cooled or cleaned, is read from the installed
alfworld package (`alfworld.gen.constants`, MIT), the source that the real games were made from. Here stand only
the choices of ours: which classes a scene uses and how many of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

# The receptacle that does the work, and the property that the object must have.
APPLIANCE = {
    "pick_clean_then_place_in_recep": ("SinkBasin", "Cleanable"),
    "pick_heat_then_place_in_recep": ("Microwave", "Heatable"),
    "pick_cool_then_place_in_recep": ("Fridge", "Coolable"),
}
TRANSFORM_VERB = {
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
}

OPENABLE = frozenset({"Cabinet", "Drawer", "Fridge", "Microwave", "Safe"})
LAMPS = ("DeskLamp", "FloorLamp")


@dataclass(frozen=True)
class Room:
    """One kind of room: how many receptacles of each class, which objects lie about, which tasks it can host."""

    receptacles: Mapping[str, tuple[int, int]]  # class -> (fewest, most)
    objects: tuple[str, ...]
    task_types: tuple[str, ...]
    lamps: tuple[str, ...] = ()
    lamp_places: tuple[str, ...] = ()  # receptacle classes that a lamp may stand on
    num_receptacles: tuple[int, int] = (0, 99)  # inclusive limits on the total
    num_objects: tuple[int, int] = (4, 6)
    duplicates: float = 0.0  # chance that a lying-about object has a twin
    shared_point: float = 0.0  # chance that a receptacle shares its standing point with the one before


_TINY_OBJECTS = (
    "Apple", "Bread", "Egg", "Potato", "Tomato", "Mug", "Cup", "Plate", "Bowl", "Pan",
    "Fork", "Spoon", "Book", "Pen", "CD", "CellPhone", "Candle", "Vase",
)  # fmt: skip

TINY = (
    Room(
        receptacles={
            "Fridge": (0, 1), "Microwave": (0, 1), "SinkBasin": (0, 1),
            "Cabinet": (0, 2), "Drawer": (0, 2), "Shelf": (0, 2),
            "CounterTop": (0, 1), "DiningTable": (0, 1), "Desk": (0, 1), "SideTable": (0, 1), "Dresser": (0, 1),
        },
        objects=_TINY_OBJECTS,
        task_types=TASK_TYPES,
        lamps=LAMPS,
        lamp_places=("Desk", "SideTable", "Shelf", "Dresser"),
        num_receptacles=(4, 5),
        num_objects=(3, 4),
    ),
)  # fmt: skip

# Twice a tiny room, and only tasks of several steps: success is rarer, most places are empty, twins mislead.
SMALL = (
    Room(
        receptacles={
            "Fridge": (0, 1), "Microwave": (0, 1), "SinkBasin": (0, 1),
            "Cabinet": (0, 3), "Drawer": (0, 3), "Shelf": (0, 2),
            "CounterTop": (0, 1), "DiningTable": (0, 1), "Desk": (0, 1), "SideTable": (0, 1), "Dresser": (0, 1),
        },
        objects=_TINY_OBJECTS,
        task_types=(
            "pick_clean_then_place_in_recep", "pick_heat_then_place_in_recep", "pick_cool_then_place_in_recep",
            "pick_two_obj_and_place",
        ),
        lamps=LAMPS,
        lamp_places=("Desk", "SideTable", "Shelf", "Dresser"),
        num_receptacles=(8, 9),
        num_objects=(5, 6),
        duplicates=0.3,
    ),
)  # fmt: skip

_KITCHEN_OBJECTS = (
    "Apple", "Bread", "Egg", "Potato", "Tomato", "Lettuce", "Mug", "Cup", "Plate", "Bowl", "Pan", "Pot", "Kettle",
    "Fork", "Spoon", "Spatula", "Ladle", "Knife", "ButterKnife", "DishSponge", "SoapBottle", "SaltShaker",
    "PepperShaker", "WineBottle", "Book", "CreditCard", "CellPhone", "Vase", "Statue", "PaperTowel",
)  # fmt: skip
_LIVING_OBJECTS = (
    "Book", "Box", "Newspaper", "Pillow", "RemoteControl", "Laptop", "CellPhone", "CreditCard", "KeyChain", "Watch",
    "Candle", "Vase", "Statue", "TissueBox", "WateringCan", "Plate", "Bowl", "Pen", "Pencil",
)  # fmt: skip
_BED_OBJECTS = (
    "Book", "Pillow", "AlarmClock", "CD", "CellPhone", "Laptop", "CreditCard", "KeyChain", "Pen", "Pencil", "Mug",
    "Bowl", "BasketBall", "BaseballBat", "TennisRacket", "Watch", "Vase", "Statue", "Cloth", "TissueBox",
)  # fmt: skip
_BATH_OBJECTS = (
    "SoapBar", "SoapBottle", "Cloth", "ToiletPaper", "ToiletPaperRoll", "Candle", "SprayBottle", "TissueBox",
    "HandTowel", "DishSponge", "PaperTowel",
)  # fmt: skip

FULL = (
    Room(
        receptacles={
            "Fridge": (1, 1), "Microwave": (1, 1), "SinkBasin": (1, 1), "Toaster": (1, 1), "CoffeeMachine": (1, 1),
            "GarbageCan": (1, 1), "StoveBurner": (2, 4), "CounterTop": (1, 3), "DiningTable": (0, 1),
            "SideTable": (0, 1), "Cabinet": (3, 8), "Drawer": (3, 8), "Shelf": (0, 3),
        },
        objects=_KITCHEN_OBJECTS,
        task_types=tuple(t for t in TASK_TYPES if t != "look_at_obj_in_light"),
        num_objects=(16, 26),
        duplicates=0.3,
        shared_point=0.08,
    ),
    Room(
        receptacles={
            "Sofa": (1, 1), "ArmChair": (0, 2), "CoffeeTable": (1, 1), "SideTable": (1, 2), "TVStand": (0, 1),
            "Dresser": (0, 1), "Shelf": (0, 4), "Drawer": (2, 6), "Cabinet": (0, 4), "DiningTable": (0, 1),
            "GarbageCan": (1, 1), "Ottoman": (0, 1),
        },
        objects=_LIVING_OBJECTS,
        task_types=("pick_and_place_simple", "look_at_obj_in_light", "pick_two_obj_and_place"),
        lamps=LAMPS,
        lamp_places=("SideTable", "Dresser", "Shelf", "CoffeeTable", "DiningTable"),
        num_objects=(10, 18),
        duplicates=0.3,
        shared_point=0.08,
    ),
    Room(
        receptacles={
            "Bed": (1, 1), "Desk": (1, 1), "Dresser": (0, 1), "SideTable": (1, 2), "Shelf": (1, 4), "Drawer": (2, 6),
            "Cabinet": (0, 2), "Safe": (0, 1), "LaundryHamper": (0, 1), "GarbageCan": (1, 1), "ArmChair": (0, 1),
        },
        objects=_BED_OBJECTS,
        task_types=("pick_and_place_simple", "look_at_obj_in_light", "pick_two_obj_and_place"),
        lamps=LAMPS,
        lamp_places=("Desk", "SideTable", "Dresser", "Shelf"),
        num_objects=(10, 18),
        duplicates=0.3,
        shared_point=0.08,
    ),
    Room(
        receptacles={
            "SinkBasin": (1, 2), "BathtubBasin": (0, 1), "Toilet": (1, 1), "ToiletPaperHanger": (1, 1),
            "TowelHolder": (0, 1), "HandTowelHolder": (1, 2), "CounterTop": (1, 1), "Cabinet": (2, 4),
            "Drawer": (0, 3), "Shelf": (0, 2), "GarbageCan": (1, 1), "Cart": (0, 1),
        },
        objects=_BATH_OBJECTS,
        task_types=("pick_and_place_simple", "pick_clean_then_place_in_recep", "pick_two_obj_and_place"),
        num_objects=(8, 14),
        duplicates=0.4,
        shared_point=0.08,
    ),
)  # fmt: skip

SCENES = {"tiny": TINY, "small": SMALL, "full": FULL}


def holds() -> Mapping[str, frozenset[str]]:
    """Receptacle class -> object classes that may be put in it."""
    from alfworld.gen.constants import VAL_RECEPTACLE_OBJECTS

    return {receptacle: frozenset(objects) for receptacle, objects in VAL_RECEPTACLE_OBJECTS.items()}


def affordances() -> Mapping[str, frozenset[str]]:
    """'Heatable', 'Coolable', 'Cleanable', 'Toggleable', 'Sliceable' -> object classes."""
    from alfworld.gen.constants import VAL_ACTION_OBJECTS

    return {name: frozenset(objects) for name, objects in VAL_ACTION_OBJECTS.items()}
