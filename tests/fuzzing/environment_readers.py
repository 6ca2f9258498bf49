"""The readers of the environments' files, each with a whole sample: small games and an invented shop, made for it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from env_adapters.alfworld.expert import wanted_of
from env_adapters.alfworld.games import GAME_FILE, TRAJ_FILE, read_game_folder, read_pack_index
from env_adapters.base import EnvironmentFault, Task
from env_adapters.registry import make_adapter
from env_adapters.webshop.goals import GoalList
from env_adapters.webshop.search import SearchIndex
from env_adapters.webshop.store import ProductStore
from env_adapters.webshop.upstream_files import find_files, read_products
from pipeline.inspect.reading import decode_strictly
from runtime.records import RecordError, to_json
from tests.fuzzing.reader import Reader
from tests.trajectories import trajectory

PRODUCT = {
    "name": "Linen Curtain", "asin": "B000000001", "category": "garden", "query": " Curtains ",
    "product_category": "Home › Curtains", "full_description": "Falls softly.",
    "small_description": ["Washable", "Two panels"], "pricing": "$18.99", "images": [],
    "customization_options": {"Color": [{"value": "grey", "image": None}], "Size": None},
}  # fmt: skip
ATTRIBUTES = {
    "B000000001": {"attributes": ["linen"], "instruction": "find curtains", "instruction_attributes": ["linen"]}
}
HUMAN = {
    "B000000001": [
        {"instruction": "I need a curtain.", "instruction_attributes": ["linen"], "instruction_options": ["grey"]}
    ]
}


def environment_readers(root: Path) -> list[Reader]:
    """All of them, over files below `root`."""
    root.mkdir(parents=True)
    return [*_generated_games(root / "generated"), *_real_games(root), *_shop_files(root / "shop"), *_shop(root)]


def alfworld(cache: Path, **options: Any) -> Any:
    """An adapter over a handful of generated games, or over real ones in `data_dir`."""
    few = {"train_games": 3, "warm_start_games": 1, "dev_games": 1, "held_out_games": 1, "prepare_processes": 1}
    adapter = make_adapter("alfworld", {"cache_dir": str(cache), **few, **options})
    adapter.prepare()
    return adapter


def webshop(cache: Path, **options: Any) -> Any:
    adapter = make_adapter("webshop", {"cache_dir": str(cache), "catalogue": "tiny", "products": 60, **options})
    adapter.prepare()
    return adapter


def _generated_games(cache: Path) -> list[Reader]:
    adapter = alfworld(cache, source="generated")
    pack = next(adapter.folder().glob("train-*.pack"))
    task = adapter.tasks("train")[0]
    games, whole = adapter._load(), pack.read_bytes()
    payload = cache / "payload.json"
    manifest = adapter.folder() / "manifest.json"

    def read_payload() -> Any:
        line = json.dumps(to_json(replace(trajectory("train/x", 1), task={"place": 1}))).encode()
        line = line.replace(b'{"place": 1}', payload.read_bytes())
        return games.read(Task("train/x", "train", "x", decode_strictly(line, "shard:1").task))

    def open_again() -> Any:
        return make_adapter("alfworld", {"source": "generated", "cache_dir": str(cache), **_sizes(adapter)}).tasks(
            "train"
        )

    return [
        Reader("pack of games (index)", pack, whole, "bytes", lambda: read_pack_index(pack),
               left_out=lambda tasks: tasks is None),
        Reader("pack of games (game)", pack, whole, "bytes", lambda: games.read(task), (EnvironmentFault,), count=160),
        Reader("manifest of generated games", manifest, manifest.read_bytes(), "json", open_again,
               (EnvironmentFault,)),
        Reader("task payload of a shard", payload, json.dumps(dict(task.payload)).encode(), "json", read_payload,
               (EnvironmentFault, RecordError)),
    ]  # fmt: skip


def _sizes(adapter: Any) -> dict[str, int]:
    names = ("train_games", "warm_start_games", "dev_games", "held_out_games", "prepare_processes")
    return {name: getattr(adapter.options, name) for name in names}


def _real_games(root: Path) -> list[Reader]:
    made = alfworld(root / "generated", source="generated")
    stored = made._load().read(made.tasks("train")[0])
    folder = root / "real" / "json_2.1.1" / "train" / "pick-Mug" / "trial_0"
    folder.mkdir(parents=True)
    game, traj = folder / GAME_FILE, folder / TRAJ_FILE
    game.write_text(json.dumps(stored.data))
    traj.write_text(json.dumps(stored.traj))
    cache = root / "real-cache"
    adapter = alfworld(cache, data_dir=str(root / "real"))
    task = adapter.tasks("train")[0]
    problem = root / "problem.pddl"
    shutil.copytree(root / "real", root / "scanned")  # a scan is kept under the times of files that nobody rewrites
    scans = root / "scan-cache"
    alfworld(scans, data_dir=str(root / "scanned"))
    (scan,) = (scans / "scans").glob("*.json")

    def translate() -> Any:
        game.write_text(json.dumps({**stored.data, "pddl_problem": problem.read_bytes().decode("latin-1")}))
        try:
            return adapter._load().read(task)
        finally:
            shutil.rmtree(cache / "translations", ignore_errors=True)
            game.write_text(json.dumps(stored.data))

    def scan_again() -> Any:
        return [task.payload for task in alfworld(scans, data_dir=str(root / "scanned")).tasks("train")]

    adapter._load().read(task)
    (kept,) = (cache / "translations").glob("*.json.z")
    return [
        Reader("kept scan of games", scan, scan.read_bytes(), "json", scan_again, left_out=made_anew(scan)),
        Reader("game.tw-pddl", game, game.read_bytes(), "json", lambda: read_game_folder(folder), (EnvironmentFault,)),
        Reader("traj_data.json", traj, traj.read_bytes(), "json", lambda: wanted_of(adapter._load().read(task).traj),
               (EnvironmentFault,)),
        Reader("kept translation", kept, kept.read_bytes(), "bytes", lambda: adapter._load().read(task),
               left_out=made_anew(kept)),
        Reader("PDDL problem", problem, stored.data["pddl_problem"].encode(), "bytes", translate, (EnvironmentFault,),
               count=60),
    ]  # fmt: skip


def made_anew(kept: Path) -> Callable[[Any], bool]:
    """Whether a file of a cache was written again: what cannot be read there counts as absent."""
    sample = kept.read_bytes()
    return lambda result: kept.read_bytes() == sample


def _shop_files(folder: Path) -> list[Reader]:
    folder.mkdir()
    names = ("items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json")
    for name, content in zip(names, ([PRODUCT, {**PRODUCT, "asin": "B000000002"}], ATTRIBUTES, HUMAN), strict=True):
        (folder / name).write_text(json.dumps(content))

    def read() -> Any:
        return list(read_products(find_files(folder)))

    return [
        Reader(name, folder / name, (folder / name).read_bytes(), "json", read, (EnvironmentFault,)) for name in names
    ]


def _shop(root: Path) -> list[Reader]:
    adapter = webshop(root / "webshop-cache")
    folder = adapter.folder()
    store = ProductStore(folder / "products")
    (goals,) = folder.glob("goals-*")
    line = (folder / "products" / "products.jsonl").read_bytes().splitlines(keepends=True)[0]
    product = root / "product.jsonl"

    def open_goals() -> Any:
        return [GoalList(goals, store).goal(number) for number in range(3)]

    def manifest(place: Path, name: str, read: Any) -> Reader:
        path = place / "manifest.json"
        return Reader(name, path, path.read_bytes(), "json", read, (EnvironmentFault,), count=100)

    def file(place: Path, name: str, read: Any) -> Reader:
        return Reader(name, place / name, (place / name).read_bytes(), "bytes", read, (EnvironmentFault,), count=60)

    def open_index() -> Any:
        return SearchIndex(folder / "index", store.catalogue).search("shirt", 5)

    return [
        Reader("product of a store", product, line, "jsonl", lambda: store._parse(0, product.read_bytes()),
               (EnvironmentFault,), count=160),
        manifest(folder / "products", "manifest of a store", lambda: ProductStore(folder / "products")),
        manifest(goals, "manifest of goals", open_goals),
        manifest(folder / "index", "manifest of a search index", open_index),
        file(goals, "goals.jsonl", open_goals),
        file(folder / "products", "offsets.npy", lambda: ProductStore(folder / "products").product(1)),
        file(folder / "index", "terms.bin", open_index),
    ]  # fmt: skip


def hostile_responses(seed: str, count: int) -> list[str]:
    """Texts that a policy may sample: tags nested, missing, repeated and torn, among everything that text can hold."""
    draw = random.Random(seed)
    parts = [
        "<think>", "</think>", "<action>", "</action>", "< action>", "<ACTION>", "<action", "look", "go to shelf 1",
        "search[red shirt]", "click[buy now]", "click[", "]", "search[]", " ", "\n", "\x00", "\ud800", "\udfff",
        "\u202e", "\u200b", "\ufffd", "İ", "ß", "e\u0301", "🛒", "\x1b[2J", "a" * 100_000, "<action>" * 1000,
        "[" * 5000,
    ]  # fmt: skip
    wild = ["".join(draw.choices(parts, k=draw.randint(0, 12))) for _ in range(count // 2)]
    tagged = ["".join(draw.choices(parts[6:], k=draw.randint(1, 3))) for _ in range(count // 2)]
    return [*wild, *(f"<think></think><action>{action}</action>" for action in tagged)]
