"""Invents a shop's catalogue: families of near-duplicates, each with instructions that it fulfils.

A family is a product and up to two that differ from it in one attribute or in the price. Everything derives from
`random.Random(text)` with a text that names seed and family, so a larger catalogue begins with the smaller one.
Scores on it are not comparable with published WebShop numbers.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

from env_adapters.webshop.products import CRUMB_SEPARATOR, Instruction, Product
from env_adapters.webshop.wares import WARES, Department, Wares

GENERATOR_VERSION = 1  # part of the cache key: raise it whenever the same options would give other products
OPTION_SHARE = 0.4  # of the families that have options
FAMILY_SIZES = (1, 1, 2, 2, 3)  # drawn evenly
RANGE_SHARE = 0.1  # of the families with options that have a range of prices
CENTS = (0.0, 0.49, 0.95, 0.99)
DEARER = (1.2, 1.8)  # how much dearer the near-duplicate in price is
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
SYLLABLES = tuple(consonant + vowel for consonant in CONSONANTS for vowel in VOWELS)
ID_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SPREAD = 2_654_435_761  # odd and no multiple of 3, 5 or 7: numbers times it, modulo 36^8 or 70^3, are a permutation
SMALL_ATTEMPTS = 8  # draws an instruction; a product of few words runs out of new ones


def generate(kind: str, count: int, instructions: int, seed: int) -> Iterator[Product]:
    """`count` products of a catalogue, "full" or "tiny", each with up to `instructions` instructions, all different."""
    wares, number = WARES[kind], 0
    for family in itertools.count():
        for product in _family(wares, family, seed):
            if number == count:
                return
            asin = _word_id(number) if wares.plain else _code_id(number)
            rng = random.Random(f"instructions {seed} {number}")
            yield replace(product, asin=asin, **_instructions(wares, product, instructions, rng))
            number += 1


# ----------------------------------------------------------------------------------------------------------- products
def _family(wares: Wares, family: int, seed: int) -> Iterator[Product]:
    """A product and its near-duplicates, still without ids and instructions."""
    rng = random.Random(f"family {seed} {family}")
    department = wares.departments[family % len(wares.departments)]
    group = rng.choice(list(department.groups))
    type_ = rng.choice(department.groups[group])
    attributes = tuple(rng.sample(department.attributes, rng.randint(*wares.num_attributes)))
    options = _options(department, rng) if rng.random() < OPTION_SHARE else {}
    pricing = _pricing(wares, department, bool(options), rng)
    first = _product(wares, department, (group, type_), attributes, options, pricing, rng)
    yield first
    for _ in range(rng.choice(FAMILY_SIZES) - 1):
        if rng.random() < 0.5:
            factor = rng.uniform(*DEARER)
            dearer = tuple(round(price * factor, 0 if wares.plain else 2) for price in pricing)
            yield _product(wares, department, (group, type_), attributes, options, dearer, rng)
        else:
            place = rng.randrange(min(wares.in_title, len(attributes)))
            other = rng.choice([a for a in department.attributes if a not in attributes])
            changed = (*attributes[:place], other, *attributes[place + 1 :])
            yield _product(wares, department, (group, type_), changed, options, pricing, rng)


def _product(
    wares: Wares, department: Department, kind: tuple[str, str], attributes: tuple[str, ...],
    options: dict[str, tuple[str, ...]], pricing: tuple[float, ...], rng: random.Random,
) -> Product:  # fmt: skip
    group, type_ = kind
    named, unnamed = attributes[: wares.in_title], attributes[wares.in_title :]
    words = [*named, type_]
    bullets, description = [], ""
    if not wares.plain:
        brand, model = _brand(rng), f"{rng.choice(ID_DIGITS[10:])}{rng.choice(ID_DIGITS[10:])}{rng.randint(10, 99)}"
        words = [brand, *words, model]
        bullets = [f"{attribute.capitalize()}, as you would expect from {brand}" for attribute in unnamed]
        rng.shuffle(bullets)
        description = f"The {brand} {model} is our {type_} for every day. It comes from the {group.lower()} workshop."
    return Product(
        asin="",
        title=" ".join(words) if wares.plain else _title_case(" ".join(words)),
        category=department.name,
        query=type_,
        product_category=f" {CRUMB_SEPARATOR} ".join((department.root, group, type_.title())),
        description=description,
        bullets=tuple(bullets),
        pricing=pricing,
        options=options,
        attributes=attributes,
    )


def _title_case(text: str) -> str:
    return " ".join(word[:1].upper() + word[1:] for word in text.split())


def _options(department: Department, rng: random.Random) -> dict[str, tuple[str, ...]]:
    """One or two options with at least two values each, in the department's order."""
    names = sorted(rng.sample(list(department.options), rng.randint(1, len(department.options))))
    chosen = {}
    for name in names:
        values = department.options[name]
        kept = set(rng.sample(values, rng.randint(2, min(5, len(values)))))
        chosen[name] = tuple(value for value in values if value in kept)
    return chosen


def _pricing(wares: Wares, department: Department, has_options: bool, rng: random.Random) -> tuple[float, ...]:
    low = float(rng.randint(*department.prices))
    if wares.plain:
        return (low,)
    low += rng.choice(CENTS)
    return (low, round(low * rng.uniform(1.1, 1.6), 2)) if has_options and rng.random() < RANGE_SHARE else (low,)


def _brand(rng: random.Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(3)).capitalize()


def _code_id(number: int) -> str:
    """Ten characters, different for every number below 36^8: "B0" and eight more."""
    rest, text = number * SPREAD % 36**8, ""
    for _ in range(8):
        rest, digit = divmod(rest, 36)
        text += ID_DIGITS[digit]
    return f"B0{text}"


def _word_id(number: int) -> str:
    """An id that is one word of letters alone and no word of the shop: "X" and three syllables or more."""
    block, rest = divmod(number, len(SYLLABLES) ** 3)
    rest, text = rest * SPREAD % len(SYLLABLES) ** 3, ""
    for _ in range(3):
        rest, digit = divmod(rest, len(SYLLABLES))
        text += SYLLABLES[digit]
    return f"X{text}{SYLLABLES[block - 1] if block else ''}".upper()


# ------------------------------------------------------------------------------------------------------- instructions
def _instructions(wares: Wares, product: Product, count: int, rng: random.Random) -> dict[str, object]:
    """The fields of a product that hold its instructions."""
    found: dict[str, Instruction] = {}
    for _ in range(count * SMALL_ATTEMPTS):
        if len(found) == count:
            break
        wish = _wish(wares, product, rng)
        found.setdefault(wish.text, wish)
    attributes = product.attributes[: wares.in_title]
    synthetic = Instruction(f"Find me {', '.join(attributes)} {product.query}", attributes)
    return {"human_instructions": tuple(found.values()), "synthetic_instruction": synthetic}


def _wish(wares: Wares, product: Product, rng: random.Random) -> Instruction:
    """One customer's words: some of the attributes, the type, and a value of every option."""
    most = min(3, len(product.attributes))
    attributes = tuple(rng.sample(product.attributes, rng.randint(1, most)))
    options = {name: rng.choice(values) for name, values in product.options.items()}
    thing = rng.choice(wares.joints).format(attributes=_listed(attributes, rng), type=product.query)
    if thing.startswith("a ") and thing[2] in VOWELS:
        thing = f"an {thing[2:]}"
    text = rng.choice(wares.openings).format(thing=thing)
    text += "".join(rng.choice(wares.choices).format(name=name, value=value) for name, value in options.items())
    return Instruction(f"{text}.", attributes, tuple(options.values()))


def _listed(attributes: tuple[str, ...], rng: random.Random) -> str:
    """ "soft, warm and light" or "soft warm light"."""
    if len(attributes) == 1 or rng.random() < 0.5:
        return " ".join(attributes)
    return f"{', '.join(attributes[:-1])} and {attributes[-1]}"
