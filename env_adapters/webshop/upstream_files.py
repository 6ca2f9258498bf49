"""The original shop's files, where a user has them: what they are called, whether they are whole, their products.

    items_shuffle[_1000].json   an array of products
    items_ins_v2[_1000].json    id -> attributes, and the synthetic instruction
    items_human_ins.json        id -> the human instructions

The set of 1,000 products and the full one of 1,181,436 share the third file. Sizes and hashes are those of the files
that WebShop's setup.sh fetches, as several public projects pin them independently of each other.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from env_adapters.base import EnvironmentFault
from env_adapters.webshop.json_stream import elements
from env_adapters.webshop.products import Instruction, Product
from env_adapters.webshop.store import ASIN_LENGTH

LOADER_VERSION = 1  # part of what a store depends on
PRODUCT_SETS = {"small": "_1000", "full": ""}  # by the flag -d of setup.sh ("all" is the full one)
KNOWN = {  # bytes, SHA-256
    "items_shuffle_1000.json": (4_467_013, "30a4765c3a327af72d9a9a95a6b2486d516f0fa1d3ecd83681901ce82a21b269"),
    "items_ins_v2_1000.json": (147_099, "f88a36314a397b53b3d9c3fa5878e5f7b26d35019a51ec83fbedeca61a948f6f"),
    "items_shuffle.json": (5_479_720_229, "2ef591d65df3af89e972ab72468eb82cbf124d876552d9f3678667edd620a6c8"),
    "items_ins_v2.json": (186_295_270, "1d36af476bdb8f82a5da62bd8acdabe54cd8de2fa84010d37da5c4890feb447e"),
    "items_human_ins.json": (5_137_548, "cf78667548a71786e1d9049c24b802e48e1084ad4bb021cae56ce1f6d96954a3"),
}
GET_AGAIN = "get it again with WebShop's setup.sh"
NO_PRICE = 100.0  # dollars, where a product has none (published)
NO_ATTRIBUTE = "DUMMY_ATTR"  # the one attribute of a product without any (published)

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class UpstreamFiles:
    """The three files of one product set."""

    items: Path
    attributes: Path
    instructions: Path

    @property
    def facts(self) -> dict[str, Any]:
        """What a store of these products depends on. Cheap: sizes and times stand for the content."""
        about = {path: path.stat() for path in (self.items, self.attributes, self.instructions)}
        files = {path.name: {"bytes": one.st_size, "modified_ns": one.st_mtime_ns} for path, one in about.items()}
        return {"loader": LOADER_VERSION, "files": files}


def find_files(folder: Path, product_set: str = "auto") -> UpstreamFiles:
    """The files of a product set in `folder`: "small", "full", or "auto" for the one that is there.

    Raises:
        EnvironmentFault: files are missing (their names and sizes), or "auto" finds both sets.
    """
    if product_set == "auto":
        found = [name for name, ending in PRODUCT_SETS.items() if (folder / f"items_shuffle{ending}.json").exists()]
        if len(found) > 1:
            raise EnvironmentFault(f"{folder}: holds both product sets; choose with env.product_set=small or full")
        product_set = found[0] if found else "small"
    ending = PRODUCT_SETS[product_set]
    names = (f"items_shuffle{ending}.json", f"items_ins_v2{ending}.json", "items_human_ins.json")
    missing = [f"{name} ({KNOWN[name][0]:,} bytes)" for name in names if not (folder / name).is_file()]
    if missing:
        flag = "all" if product_set == "full" else product_set
        raise EnvironmentFault(
            f"{folder}: lacks {', '.join(missing)}; get them with WebShop's setup.sh -d {flag}, or leave "
            "env.data_dir empty for the invented catalogue"
        )
    return UpstreamFiles(*(folder / name for name in names))


def check_files(files: UpstreamFiles, accept_others: bool = False, progress: Progress | None = None) -> None:
    """Compare the files with the published ones: first all sizes, then hashes (seconds for the full set).

    Args:
        accept_others: take other files of the same format too; nothing is compared then.

    Raises:
        EnvironmentFault: a file is another one; its size, the expected size and what to do.
    """
    if accept_others:
        return
    paths = (files.items, files.attributes, files.instructions)
    for path in paths:
        size, expected = path.stat().st_size, KNOWN[path.name][0]
        if size != expected:
            kind = "truncated, or another file" if size < expected else "another file"
            raise EnvironmentFault(
                f"{path}: {size:,} bytes, the published file has {expected:,} ({kind}); {GET_AGAIN}, or set "
                "env.accept_other_files=true"
            )
    for number, path in enumerate(paths):
        if progress is not None:
            progress(number, len(paths), "files checked")
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != KNOWN[path.name][1]:
            raise EnvironmentFault(
                f"{path}: SHA-256 {found[:12]}…, the published file has {KNOWN[path.name][1][:12]}…; {GET_AGAIN}, or "
                "set env.accept_other_files=true"
            )


def read_products(files: UpstreamFiles, progress: Progress | None = None) -> Iterator[Product]:
    """The products in the order of their file, read as the original engine reads them.

    Left out are the id "nan", empty ids, ids longer than ten characters, and all but the first of equal ids. Fields
    that nothing shows or compares are dropped: pictures, sellers, and who wrote an instruction.

    Memory: the attributes, packed, which get fewer as products are read, and the ids; under 1 GiB for the full set.

    Raises:
        EnvironmentFault: a file ends early or does not have the format; its name, how far it was read, what to do.
    """

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(min(done, total) >> 20, total >> 20, "MiB of products read")

    instructions = dict(elements(files.instructions, "{", GET_AGAIN))
    attributes = {asin: json.dumps(entry).encode() for asin, entry in elements(files.attributes, "{", GET_AGAIN)}
    seen = set()
    for number, entry in enumerate(elements(files.items, "[", GET_AGAIN, report)):
        try:
            asin = entry["asin"]
            if asin == "nan" or not 0 < len(asin) <= ASIN_LENGTH or asin in seen:
                continue
            seen.add(asin)
            about = json.loads(attributes.pop(asin, b"{}"))
            yield product_of(entry, about, instructions.get(asin, ()))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EnvironmentFault(
                f"{files.items}: product {number} is not in WebShop's format ({type(error).__name__}: {error}); "
                f"{GET_AGAIN}"
            ) from error


def product_of(entry: Mapping[str, Any], about: Mapping[str, Any], human: Any = ()) -> Product:
    """One product of the original files.

    Args:
        entry: its element of items_shuffle.json.
        about: its value in items_ins_v2.json, empty where there is none.
        human: its value in items_human_ins.json, a list.
    """
    bullets = entry["small_description"]
    synthetic = about.get("instruction")
    return Product(
        asin=entry["asin"],
        title=_text(entry["name"]),
        category=_text(entry["category"]),
        query=_text(entry["query"]).lower().strip(),
        product_category=_text(entry["product_category"]),
        description=_text(entry["full_description"]),
        bullets=tuple(map(_text, bullets)) if isinstance(bullets, list) else (_text(bullets),),
        pricing=prices(entry.get("pricing")),
        options=_options(entry["customization_options"]),
        attributes=_texts(about["attributes"]) if "attributes" in about else (NO_ATTRIBUTE,),
        human_instructions=tuple(
            Instruction(
                _text(one["instruction"]), _texts(one["instruction_attributes"]), _texts(one["instruction_options"])
            )
            for one in human
        ),
        synthetic_instruction=(
            None if synthetic is None else Instruction(_text(synthetic), _texts(about["instruction_attributes"]))
        ),
    )


def prices(pricing: str | None) -> tuple[float, ...]:
    """The first two amounts behind dollar signs, whatever else stands there.

    Example:
        prices("$1,299.00") == (1299.0,)
        prices("$18.99 - $27.50") == (18.99, 27.5)
        prices("") == (100.0,)
    """
    amounts = [re.sub(r"[^0-9.]", "", part) for part in (pricing or "").split("$")[1:]]
    return tuple(float(amount) for amount in amounts if _AMOUNT.fullmatch(amount))[:2] or (NO_PRICE,)


_AMOUNT = re.compile(r"[0-9]+\.?[0-9]*|\.[0-9]+")


def _options(choices: Mapping[str, Any] | None) -> dict[str, tuple[str, ...]]:
    """Option name -> values, in lower case. A / would read as a part of a path and becomes " | "."""
    return {
        _text(name).lower(): tuple(_text(one["value"]).strip().replace("/", " | ").lower() for one in values)
        for name, values in (choices or {}).items()
        if values is not None
    }


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{str(values)[:40]!r} is not a list")
    return tuple(map(_text, values))


def _text(value: Any) -> str:
    """A text without halves of surrogate pairs, which no encoding takes; "" for what is missing (null, NaN)."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return _SURROGATE.sub("\ufffd", value if isinstance(value, str) else str(value))


_SURROGATE = re.compile("[\ud800-\udfff]")
