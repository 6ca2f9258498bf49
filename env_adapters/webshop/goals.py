"""What customers want: goals out of a catalogue's instructions, built once, shuffled and split as published.

    goals.jsonl    one goal a line, in the catalogue's order, without what the product says itself
    offsets.npy    int64 [N + 1]: where each line starts
    order.npy      int32 [N]: the line of the goal at each position after the shuffle
    splits.npy     uint8 [N]: the split of each position, an index into SPLITS, or LEFT_OUT

The original engine draws price limits without a seed, so its instructions differ from process to process; here a
private generator draws them once, and every process maps the same files.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import mmap
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from env_adapters.base import EnvironmentFault, Task
from env_adapters.webshop.folders import build_folder, mapped, read_manifest
from env_adapters.webshop.products import CRUMB_SEPARATOR, Instruction, Product
from env_adapters.webshop.store import ProductStore

FORMAT = 1
SPLITS = ("test", "dev", "train", "warm_start")
LEFT_OUT = 255  # in splits.npy: the instruction occurs in an earlier split too
SHUFFLE_SEED = 233  # published
TEST_GOALS, DEV_GOALS = 500, 1000  # published: positions 0-499 and 500-1499; small lists give a sixth and a third
PRICE_STEPS = tuple(10.0 * step for step in range(1, 100))
NEXT_STEPS = 4  # of the steps above the price, two are drawn and the larger is the limit
NO_LIMIT = 1_000_000.0


@dataclass(frozen=True)
class Goal:
    """What one customer wants.

    Example:
        Goal(number=17, asin="B0000EXMPL", instruction="i need a machine washable curtain in grey, and price lower "
             "than 40.00 dollars", attributes=("machine washable",), options=("grey",), price_upper=40.0,
             title="Linen Curtain", query="curtains", product_category="Home › Curtains", category="garden")
    """

    number: int  # its line
    asin: str  # of the product it was made from
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] | Mapping[str, str]  # values; of a synthetic goal name to value
    price_upper: float  # dollars
    title: str
    query: str
    product_category: str
    category: str

    @property
    def crumbs(self) -> tuple[str, ...]:
        """The parts of the category path."""
        return tuple(part.strip() for part in self.product_category.split(CRUMB_SEPARATOR))


# --------------------------------------------------------------------------------------------------- instructions
def price_of(product: Product, seed: int) -> float:
    """Dollars; of a range, one price drawn for the product."""
    low, high = product.pricing[0], product.pricing[-1]
    return low if len(product.pricing) == 1 else random.Random(f"price {seed} {product.asin}").uniform(low, high)


def draw_limit(price: float, rng: random.Random) -> tuple[float, str]:
    """(price limit, its words): the larger of two of the first four steps above the price; no limit near the top."""
    above = [step for step in PRICE_STEPS if step > price][:NEXT_STEPS]
    if len(above) < 2:
        return NO_LIMIT, ""
    limit = max(rng.sample(above, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def wishes(product: Product, kind: str) -> Iterator[tuple[str, Instruction, Any]]:
    """(words, instruction, options) of every goal of a product, before a price limit.

    Human: one an instruction that names attributes. Synthetic: one a combination of option values.
    """
    if kind == "human":
        for instruction in product.human_instructions:
            if instruction.attributes:
                yield instruction.text.strip("."), instruction, list(instruction.options)
        return
    instruction = product.synthetic_instruction
    if instruction is None or not instruction.attributes:
        return
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        chosen = dict(zip(names, values, strict=True))
        words = ", and ".join(f"{name}: {value}" for name, value in chosen.items())
        yield instruction.text + (f" with {words}" if words else ""), instruction, chosen


def goal_lines(store: ProductStore, kind: str, seed: int) -> Iterator[dict[str, Any]]:
    """The lines of goals.jsonl. "words" is the instruction before the limit: what must not occur in two splits."""
    rng = random.Random(f"goals {kind} {seed}")
    for number, product in enumerate(store):
        price, limit = price_of(product, seed), None
        for words, instruction, options in wishes(product, kind):
            if limit is None or kind == "human":  # a product's synthetic goals share one limit
                limit = draw_limit(price, rng)
            yield {
                "product": number,
                "words": words,
                "limit": limit[1],
                "attributes": list(instruction.attributes),
                "options": options,
                "price_upper": limit[0],
                "category": product.category,
            }


# ---------------------------------------------------------------------------------------------------------- splits
def split_sizes(count: int) -> tuple[int, int]:
    """(test, dev): as published from 3,000 goals on, of smaller lists a sixth and a third."""
    return min(TEST_GOALS, count // 6), min(DEV_GOALS, count // 3)


def assign_splits(words: Sequence[bytes], warm_start: int) -> np.ndarray:
    """The split of each position of the shuffled list: uint8 [N].

    A goal of dev or train whose words an earlier split has is left out. Every n-th train goal goes to the warm start,
    `warm_start` of them, at most a third.

    Args:
        words: a digest of each position's words.
    """
    num_test, num_dev = split_sizes(len(words))
    splits = np.full(len(words), SPLITS.index("train"), dtype=np.uint8)
    splits[:num_test] = SPLITS.index("test")
    splits[num_test : num_test + num_dev] = SPLITS.index("dev")
    owner: dict[bytes, int] = {}
    for position, text in enumerate(words):
        if owner.setdefault(text, int(splits[position])) != splits[position]:
            splits[position] = LEFT_OUT
    train = np.flatnonzero(splits == SPLITS.index("train"))
    wanted = min(warm_start, len(train) // 3)
    chosen = train[np.arange(wanted) * len(train) // max(wanted, 1)]
    taken = {words[position] for position in chosen}
    moved = [position for position in train if words[position] in taken]  # the same words go with them
    splits[moved] = SPLITS.index("warm_start")
    return splits


def check_splits(words: Sequence[bytes], splits: np.ndarray) -> None:
    """Raises EnvironmentFault where two splits have an instruction's words in common."""
    owner: dict[bytes, int] = {}
    for position, text in enumerate(words):
        split = int(splits[position])
        if split != LEFT_OUT and owner.setdefault(text, split) != split:
            names = sorted((SPLITS[owner[text]], SPLITS[split]))
            raise EnvironmentFault(
                f"goal {position}: its instruction is in {' and '.join(names)}; delete the goals' folder, prepare again"
            )


# ----------------------------------------------------------------------------------------------------------- files
def ensure_goals(folder: Path, store: ProductStore, kind: str, seed: int, warm_start: int) -> GoalList:
    """The goals in `folder`, made unless they are there for this catalogue and these settings.

    Raises:
        EnvironmentFault: the catalogue has no goals of this kind, or the disk does not take them.
    """
    facts = {"catalogue": store.catalogue, "kind": kind, "seed": seed, "warm_start": warm_start}

    def is_ready() -> bool:
        found = read_manifest(folder, FORMAT, goals=str)
        return found is not None and found.get("facts") == facts

    build_folder(
        folder,
        is_ready,
        lambda temporary: {**_write(temporary, goal_lines(store, kind, seed), warm_start), "facts": facts},
    )
    return GoalList(folder, store)


def _write(folder: Path, lines: Iterator[dict[str, Any]], warm_start: int) -> dict[str, Any]:
    digest, offsets, words = hashlib.sha256(), array("q", [0]), []
    with open(folder / "goals.jsonl", "wb", buffering=1 << 20) as file:
        for line in lines:
            blob = json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"
            file.write(blob)
            digest.update(blob)
            offsets.append(offsets[-1] + len(blob))
            words.append(_words_digest(line["words"]))
    if not words:
        raise EnvironmentFault(
            f"{folder}: the catalogue has no goals of this kind; choose env.goals=human or synthetic, or other files"
        )
    order = list(range(len(words)))
    random.Random(SHUFFLE_SEED).shuffle(order)
    splits = assign_splits([words[line] for line in order], warm_start)
    order = np.array(order, dtype=np.int32)
    digest.update(order.tobytes() + splits.tobytes())
    np.save(folder / "offsets.npy", np.frombuffer(offsets, dtype=np.int64))
    np.save(folder / "order.npy", order)
    np.save(folder / "splits.npy", splits)
    return {"format": FORMAT, "goals": digest.hexdigest()}


def _words_digest(words: str) -> bytes:
    return hashlib.blake2b(" ".join(words.lower().split()).encode("utf-8", "replace"), digest_size=16).digest()


class GoalList:
    """The goals of a catalogue, mapped: `len(goals)`, `goals.goal(position)`, `goals.tasks(split)`."""

    def __init__(self, folder: Path, store: ProductStore) -> None:
        """Raises EnvironmentFault where there are no whole goals in `folder`, or two splits share an instruction."""
        manifest = read_manifest(folder, FORMAT, goals=str, facts=dict)
        if manifest is None:
            raise EnvironmentFault(f"{folder}: no whole goal list of format {FORMAT}; prepare() makes it again")
        if manifest["facts"].get("catalogue") != store.catalogue:
            raise EnvironmentFault(f"{folder}: goals of another catalogue; prepare() makes them again")
        self.folder, self._store = folder, store
        self.sha256: str = manifest["goals"]
        self._offsets, self._order, self._splits = (mapped(folder, name) for name in ("offsets", "order", "splits"))
        with open(folder / "goals.jsonl", "rb") as file:
            self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._order)

    @property
    def num_left_out(self) -> int:
        """Goals in no split, because an earlier split has their words."""
        return int(np.count_nonzero(self._splits == LEFT_OUT))

    def line(self, position: int) -> dict[str, Any]:
        """What goals.jsonl says of the goal at a position of the shuffled list.

        Raises:
            EnvironmentFault: the line is damaged.
        """
        number = int(self._order[position])
        try:
            line = json.loads(self._lines[self._offsets[number] : self._offsets[number + 1]])
            texts = (line["words"], line["limit"], line["category"], *line["attributes"], *line["options"])
            if not all(isinstance(text, str) for text in texts) or type(line["price_upper"]) is not float:
                raise TypeError("its fields have other types")
            if not 0 <= line["product"] < len(self._store):
                raise ValueError(f"product {line['product']} of {len(self._store)}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise EnvironmentFault(
                f"{self.folder}: goal {number} is damaged ({type(error).__name__}: {error}); delete that folder and "
                "prepare again"
            ) from error
        return line

    def goal(self, position: int) -> Goal:
        """The goal at a position of the shuffled list, 0 <= position < len(self)."""
        line = self.line(position)
        product = self._store.product(line["product"])
        options = line["options"]
        return Goal(
            position, product.asin, line["words"] + line["limit"], tuple(line["attributes"]),
            options if isinstance(options, dict) else tuple(options), line["price_upper"],
            product.title, product.query, product.product_category, product.category,
        )  # fmt: skip

    def tasks(self, split: str) -> SplitTasks:
        """The tasks of a split, in the shuffled order."""
        return SplitTasks(self, split, np.flatnonzero(self._splits == SPLITS.index(split)))

    def check(self) -> None:
        """Split hygiene: raises EnvironmentFault where two splits have an instruction's words in common."""
        check_splits([_words_digest(self.line(position)["words"]) for position in range(len(self))], self._splits)


class SplitTasks(Sequence[Task]):
    """Tasks made as they are asked for: a full catalogue has millions of synthetic goals."""

    def __init__(self, goals: GoalList, split: str, positions: np.ndarray) -> None:
        self._goals, self._split, self._positions = goals, split, positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int | slice) -> Task | SplitTasks:
        if isinstance(index, slice):
            return SplitTasks(self._goals, self._split, self._positions[index])
        position = int(self._positions[index])
        line = self._goals.line(position)
        payload = {"goal": position, "product": line["product"]}
        return Task(f"{self._split}/goal-{position:07d}", self._split, line["category"] or "none", payload)
