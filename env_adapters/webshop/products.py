"""What a shop sells: one frozen record a product, as loaded from the original files or as generated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

CRUMB_SEPARATOR = "›"  # between the parts of a category path in the original files


@dataclass(frozen=True)
class Instruction:
    """One wish that a product fulfils, before a price limit is drawn.

    Example:
        Instruction(text="i need a machine washable curtain in grey.", attributes=("machine washable",),
                    options=("grey",))
    """

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] = ()  # wished option values of a human instruction; () in the synthetic one


@dataclass(frozen=True)
class Product:
    """One product. Texts keep their case but for `query`, option names and option values, which are lower case.

    Example:
        Product(asin="B0000EXMPL", title="Linen Curtain 52 x 84 in", category="garden", query="curtains",
                product_category="Home & Kitchen › Window Treatments › Curtains", description="Falls softly.",
                bullets=("Machine washable", "Two panels"), pricing=(18.99, 27.5),
                options={"color": ("grey", "white")}, attributes=("machine washable",))
    """

    asin: str  # the id: unique, at most 10 characters
    title: str
    category: str  # department: "garden", "beauty", ...
    query: str  # the shelf: what was searched for when the product was found; reward compares it
    product_category: str  # category path, parts joined by " › "; reward compares the parts
    description: str
    bullets: tuple[str, ...]  # the page "Features"
    pricing: tuple[float, ...]  # dollars: (price,), or (low, high)
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # in the page's order
    attributes: tuple[str, ...] = ()  # what reward knows the product to be
    human_instructions: tuple[Instruction, ...] = ()
    synthetic_instruction: Instruction | None = None  # one a product; goals add the options

    @property
    def price_tag(self) -> str:
        """The price as the pages show it: "$18.99", or "$18.99 to $27.5"."""
        return " to ".join(f"${price}" for price in self.pricing)

    @property
    def crumbs(self) -> tuple[str, ...]:
        """The parts of the category path."""
        return tuple(part.strip() for part in self.product_category.split(CRUMB_SEPARATOR))


def to_dict(product: Product) -> dict[str, Any]:
    """A plain dict for JSON, keys in the order of the fields."""
    return asdict(product)


def from_dict(data: Mapping[str, Any]) -> Product:
    """The inverse of `to_dict`, also after JSON made lists of the tuples. Raises KeyError, TypeError."""
    synthetic = data["synthetic_instruction"]
    return Product(
        **{
            **data,
            "bullets": tuple(data["bullets"]),
            "pricing": tuple(data["pricing"]),
            "options": {name: tuple(values) for name, values in data["options"].items()},
            "attributes": tuple(data["attributes"]),
            "human_instructions": tuple(_instruction(one) for one in data["human_instructions"]),
            "synthetic_instruction": None if synthetic is None else _instruction(synthetic),
        }
    )


def _instruction(data: Mapping[str, Any]) -> Instruction:
    return Instruction(text=data["text"], attributes=tuple(data["attributes"]), options=tuple(data["options"]))
