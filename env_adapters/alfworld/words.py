"""Every word that prompts, observations and actions can hold, for a word-level tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from env_adapters.alfworld import prompts, scenes

_SENTENCES = (
    "put a some in on it them two hot cool clean cold heat find and look at under the examine with",
    "you are in the middle of a room . looking quickly around you , you see a nothing and an",
    "you arrive at on the is open closed . in it , you see",
    "you open close pick up from move to put in/on heat clean cool using turn off",
    "you are carrying : not anything . you are facing next to it",
    "this is a normal hot and clean cool cold sliced . there's nothing special about",
    "you don't see any switch on the",
    "nothing happens .",
    "go to take from open close examine use look inventory put in/on move to heat with clean cool slice",
    "you sliced the with the",
    "<think> </think> <action> </action>",
)
_COMPACT = ("task turn saw did now can ; , : . room special happens nothing",)
_NUMBERS = 100  # the prompts count turns; no scene has as many of a class


def vocabulary(scene: str, prompt_form: str) -> Sequence[str]:
    """Texts that together hold every word; numbers up to the most of a class, or of turns."""
    rooms = scenes.SCENES[scene]
    classes = {c for room in rooms for c in (*room.receptacles, *room.objects, *room.lamps)}
    numbers = " ".join(str(n) for n in range(_NUMBERS + 1))
    things = sorted(c.lower() for c in classes)
    texts = [*_SENTENCES, *things, numbers]
    if prompt_form == "compact":
        return (*texts, *_COMPACT)
    return (*texts, prompts.ROLE, prompts.REQUEST, *_published_frame())


def _published_frame() -> tuple[str, ...]:
    from env_adapters.base import Observation, PastTurn

    empty = Observation("", "", ("",))
    return (prompts.published(empty, [], 0), prompts.published(empty, [PastTurn("", "")], 1))


def interchangeable(scene: str) -> Sequence[Sequence[str]]:
    """The objects. Not the receptacles: their alphabetical order tells which one the expert looks into next."""
    return (tuple(sorted({c.lower() for room in scenes.SCENES[scene] for c in room.objects})),)
