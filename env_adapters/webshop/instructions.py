"""What of a customer's instruction matters to a search: its words without the phrases around them, and its limit."""

from __future__ import annotations

import re

_LIMIT = re.compile(r",? and price lower than (\d+(?:\.\d+)?) dollars")
_WORD = re.compile(r"[^\W_]+(?:[-'][^\W_]+)*")
# What customers say around the things that they want.
_AROUND = frozenset(
    """
    i'm im i am we you me my our it it's is are be was should would could can will like want wanted need needs looking
    look for find search show get buy buying purchase shopping please help after asked friend that which who has have
    having with in of to the a an and or some any as described price lower than dollars under
    """.split()
)


def price_limit(instruction: str) -> float | None:
    """Dollars that the price must not be above, or None where the instruction names none."""
    found = _LIMIT.search(instruction)
    return float(found[1]) if found else None


def wanted_words(instruction: str) -> list[str]:
    """The words that say what is wanted, lower case, in order, without the price limit.

    Example: wanted_words("i need a grey, washable curtain, and price lower than 40.00 dollars") ==
        ["grey", "washable", "curtain"]
    """
    words = _WORD.findall(_LIMIT.sub("", instruction.lower()))
    return [word for word in words if word not in _AROUND]
