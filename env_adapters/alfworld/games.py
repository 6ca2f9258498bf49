"""Where games come from: folders of real games, or packs of generated ones. Both give the same `StoredGame`.

A real game is a folder with game.tw-pddl and traj_data.json. A pack is one file of `prepare`: a line of JSON that
says what is in it, then for each game two zlib blobs, the game (the same JSON as in a folder, but for the two
logic texts, which all games share) and its translation. `export` writes a pack's games as real folders.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from env_adapters.alfworld.building import Logic
from env_adapters.alfworld.engine import INSTALL_HINT
from env_adapters.alfworld.scenes import TASK_TYPES
from env_adapters.alfworld.translation import Translation, translate
from env_adapters.base import EnvironmentFault, Task
from env_adapters.disk import is_inside

GAME_FILE = "game.tw-pddl"
TRAJ_FILE = "traj_data.json"
TARGETS = ("object_target", "parent_target", "toggle_target")  # of pddl_params, where they are there
GAME_KEYS = ("pddl_domain", "grammar", "pddl_problem", "solvable")
REAL_VERSION_FOLDER = "json_2.1.1"
REAL_FOLDERS = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen"}
TRANSLATION_VERSION = 2  # part of the name of kept translations
SCAN_VERSION = 2  # likewise of kept scans
MANIFEST = "manifest.json"  # of a folder of packs
TASK_ID = re.compile(r"[A-Za-z0-9/_.-]+")
LARGEST = 1 << 26  # bytes that a game or a translation unpacks to; a real one has less than one MiB
DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error)


@dataclass(frozen=True)
class StoredGame:
    """One game, ready for an engine slot."""

    data: Mapping[str, Any]  # game.tw-pddl
    traj: Mapping[str, Any]  # traj_data.json
    translation: Translation


class GameFault(EnvironmentFault):
    """A game that cannot be used: the file, why, and what to do."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}; {remedy}")
        self.reason = reason


GET_AGAIN = "get it again with alfworld-download"
LEAVE_OUT = "leave this game out"


def write_atomic(path: Path, content: bytes) -> None:
    """Write under a temporary name, flush, rename: a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise EnvironmentFault(f"{path}: cannot be written ({error}); free space or set env.cache_dir") from error


def installed_logic(grammar: str = "move") -> Logic:
    """The logic texts that ship in the alfworld wheel; `grammar="put"` rewrites them to the 2.1.1 text generation.

    2.1.1 says `put X in/on Y` where later versions say `move X to Y`, and has no `help`.
    """
    from importlib.util import find_spec

    spec = find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentFault(f"environment 'alfworld' needs alfworld, which is not installed: {INSTALL_HINT}")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    domain, text = ((folder / name).read_text(encoding="utf-8") for name in ("alfred.pddl", "alfred.twl2"))
    if grammar == "move":
        return Logic(domain, text)
    changes = (
        ('template :: "move {o} to {r}"', 'template :: "put {o} in/on {r}"'),
        ("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."),
    )
    for old, new in changes:
        if old not in text:
            raise EnvironmentFault(f"the grammar of the installed alfworld has no {old!r}: {INSTALL_HINT}")
        text = text.replace(old, new)
    text = re.sub(r"\naction help \{.*?\n\}\n", "\n", text, flags=re.DOTALL)
    domain = re.sub(r"\(:action help\b.*?\n\)\n", "", domain, flags=re.DOTALL)
    return Logic(domain, text)


def detect_grammar(grammar: str) -> str:
    """Which text generation a game's grammar is: 'put' (2.1.1), 'move' (2.1.2 and later) or 'other'."""
    body = re.search(r"action\s+PutObject\s*\{[^}]*?template\s*::\s*\"(\w+) ", grammar)
    return body.group(1) if body and body.group(1) in ("put", "move") else "other"


# ------------------------------------------------------------------------------------------------- real folders
def read_game_folder(folder: Path) -> tuple[dict, dict]:
    """(game.tw-pddl, traj_data.json) of one real game. Raises EnvironmentFault that names the file and its fault."""
    game_path, traj_path = folder / GAME_FILE, folder / TRAJ_FILE
    data, traj = _read_json(game_path), _read_json(traj_path)
    missing = [key for key in GAME_KEYS if key not in data]
    if missing:
        raise GameFault(game_path, f"lacks {', '.join(missing)}", GET_AGAIN)
    if data["solvable"] is not True:
        raise GameFault(game_path, "is marked unsolvable", LEAVE_OUT)
    if bad := [key for key in ("pddl_domain", "grammar", "pddl_problem") if not isinstance(data[key], str)]:
        raise GameFault(game_path, f"{', '.join(bad)} is not text", GET_AGAIN)
    if traj.get("task_type") not in TASK_TYPES:
        raise GameFault(traj_path, f"task_type is none of {', '.join(TASK_TYPES)}", LEAVE_OUT)
    walkthrough, parameters = data.get("walkthrough") or [], traj.get("pddl_params") or {}
    if not isinstance(walkthrough, list) or not all(isinstance(action, str) for action in walkthrough):
        raise GameFault(game_path, "walkthrough is no list of texts", GET_AGAIN)
    if not isinstance(parameters, dict) or not all(isinstance(parameters.get(k) or "", str) for k in TARGETS):
        raise GameFault(traj_path, f"pddl_params is no object whose {', '.join(TARGETS)} are texts", GET_AGAIN)
    return data, traj


def _read_json(path: Path) -> dict:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise GameFault(path, "no such file", f"a game is a folder with {GAME_FILE} and {TRAJ_FILE}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise GameFault(path, f"is not readable JSON ({type(error).__name__})", GET_AGAIN) from error
    if not isinstance(found, dict):
        raise GameFault(path, "is not a JSON object", GET_AGAIN)
    return found


class RealGames:
    """The games under `root/json_2.1.1`. Unusable ones are left out and counted by reason (`skipped`).

    A scan opens thousands of files, so its outcome is kept under `cache`, keyed by names, sizes and times.
    """

    def __init__(self, root: Path, cache: Path, warm_start_games: int, dev_games: int) -> None:
        self._root = root
        self._cache = cache
        scan = self._kept_scan()
        self.skipped: dict[str, int] = scan["skipped"]
        self.grammars: dict[str, int] = scan["grammars"]
        self.sha256: dict[str, str] = scan["sha256"]  # by split of the data: names and contents of the games in use
        self._splits = {
            split: [Task(task_id, split, task_type, {"game": game}) for task_id, task_type, game in found]
            for split, found in scan["splits"].items()
        }
        # The real data has no split for demonstrations or development: both are cut from train, evenly spread.
        train = self._splits["train"]
        wanted = min(warm_start_games, len(train) // 3), min(dev_games, len(train) // 10)
        for split, count in zip(("warm_start", "dev"), wanted, strict=True):
            chosen = {i * len(train) // count for i in range(count)}
            self._splits[split] = [_renamed(train[i], split) for i in sorted(chosen)]
            train = [task for i, task in enumerate(train) if i not in chosen]
        self._splits["train"] = train

    def _kept_scan(self) -> dict[str, Any]:
        listing, candidates = hashlib.sha256(f"{SCAN_VERSION} {self._root}".encode()), {}
        for split, folder in REAL_FOLDERS.items():
            candidates[split] = []
            for where, folders, files in os.walk(self._root / REAL_VERSION_FOLDER / folder):
                folders.sort()
                if TRAJ_FILE not in files:
                    continue
                candidates[split].append(Path(where))
                for name in sorted({GAME_FILE, TRAJ_FILE} & set(files)):
                    facts = os.stat(os.path.join(where, name))
                    listing.update(f"{where}/{name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
        path = self._cache / "scans" / f"{listing.hexdigest()[:32]}.json"
        try:
            return _checked_scan(json.loads(path.read_bytes()))
        except DAMAGED:
            scan = self._scan(candidates)
            write_atomic(path, json.dumps(scan).encode("utf-8"))
            return scan

    def _scan(self, candidates: Mapping[str, list[Path]]) -> dict[str, Any]:
        skipped: Counter[str] = Counter()
        grammars: Counter[str] = Counter()
        splits: dict[str, list] = {}
        for split, folders in candidates.items():
            splits[split] = []
            for folder in folders:
                game = folder.relative_to(self._root).as_posix()
                if "movable" in game or "Sliced" in game:
                    skipped["movable or sliced"] += 1
                    continue
                try:
                    data, traj = read_game_folder(folder)
                except GameFault as fault:
                    skipped[fault.reason] += 1
                    continue
                grammars[detect_grammar(data["grammar"])] += 1
                name = re.sub(r"[^A-Za-z0-9/_.-]", "_", game.split("/", 2)[2])
                splits[split].append([f"{split}/{name}", traj["task_type"], game])
            splits[split].sort()
        sha256 = {split: self._digest(found) for split, found in splits.items()}
        return {"splits": splits, "skipped": dict(skipped), "grammars": dict(grammars), "sha256": sha256}

    def _digest(self, found: list) -> str:
        digest = hashlib.sha256()
        for task_id, _, game in found:
            digest.update(f"{task_id}\n".encode())
            for name in (GAME_FILE, TRAJ_FILE):
                digest.update(hashlib.sha256((self._root / game / name).read_bytes()).digest())
        return digest.hexdigest()

    def tasks(self, split: str) -> Sequence[Task]:
        return self._splits[split]

    def key(self, task: Task) -> str:
        """A name for the game that holds over all adapters of a process."""
        return f"{self._root}/{task.payload['game']}"

    def read(self, task: Task) -> StoredGame:
        """The game with its translation, which is kept on disk under a hash of the problem's text."""
        game = task.payload.get("game")
        if not isinstance(game, str) or not is_inside(game):
            raise EnvironmentFault(f"task {task.task_id!r}: game {game!r} is no folder of {self._root}; other games?")
        data, traj = read_game_folder(self._root / game)
        key = f"{TRANSLATION_VERSION}\n{data['pddl_domain']}\n{data['pddl_problem']}".encode()
        path = self._cache / "translations" / f"{hashlib.sha256(key).hexdigest()[:32]}.json.z"
        try:
            return StoredGame(data, traj, _unpack_translation(path.read_bytes()))
        except DAMAGED:
            try:
                translation = translate(data["pddl_domain"], data["pddl_problem"])
            except EnvironmentFault as fault:
                raise GameFault(self._root / task.payload["game"] / GAME_FILE, str(fault), LEAVE_OUT) from fault
            write_atomic(path, pack_translation(translation))
            return StoredGame(data, traj, translation)


def _checked_scan(scan: Any) -> dict[str, Any]:
    """A kept scan. Raises one of DAMAGED where it is none."""
    for found in (scan["splits"][split] for split in REAL_FOLDERS):
        for task_id, task_type, game in found:
            if not TASK_ID.fullmatch(task_id) or not isinstance(task_type, str) or not is_inside(game):
                raise ValueError(task_id)
    return {"splits": scan["splits"], **{name: dict(scan[name]) for name in ("skipped", "grammars", "sha256")}}


def _renamed(task: Task, split: str) -> Task:
    return Task(f"{split}/{task.task_id.split('/', 1)[1]}", split, task.task_type, task.payload)


# ------------------------------------------------------------------------------------------------------- packs
@dataclass(frozen=True)
class PackedGame:
    """A verified game on its way into a pack."""

    task_id: str
    split: str
    task_type: str
    game: bytes  # compressed JSON {"data": ..., "traj": ...} without the logic texts
    translation: bytes


def pack_game(data: Mapping[str, Any], traj: Mapping[str, Any]) -> bytes:
    own = {key: value for key, value in data.items() if key not in ("pddl_domain", "grammar")}
    text = json.dumps({"data": own, "sentence": _sentence(data["grammar"]), "traj": traj}, sort_keys=True)
    return zlib.compress(text.encode("utf-8"), 6)


def _sentence(grammar: str) -> str:
    return re.search(r'"rhs": "Your task is to: (.*?)\."\n', grammar).group(1)


def pack_translation(translation: Translation) -> bytes:
    return zlib.compress(json.dumps(translation.to_json()).encode("utf-8"), 6)


def _unpack_translation(blob: bytes) -> Translation:
    return Translation.from_json(json.loads(_inflate(blob)))


def _inflate(blob: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(blob, LARGEST)
    if not unpacker.eof:
        raise ValueError(f"torn, or larger than {LARGEST} bytes")
    return content


def write_pack(path: Path, games: Iterable[PackedGame]) -> None:
    """One file, written atomically."""
    games = list(games)
    index = [[g.task_id, g.split, g.task_type, len(g.game), len(g.translation)] for g in games]
    head = json.dumps({"games": index}).encode("utf-8") + b"\n"
    write_atomic(path, head + b"".join(part for g in games for part in (g.game, g.translation)))


def read_pack_index(path: Path) -> list[Task] | None:
    """The tasks of a pack in order, or None where the file is not a whole pack."""
    try:
        with open(path, "rb") as file:
            head = file.readline()
            index = json.loads(head)["games"]
        start, tasks = len(head), []
        for task_id, split, task_type, game_size, translation_size in index:
            if not TASK_ID.fullmatch(task_id) or not is_inside(task_id) or not isinstance(split + task_type, str):
                return None
            if not all(type(size) is int and size > 0 for size in (game_size, translation_size)):
                return None
            payload = {"pack": path.name, "start": start, "game": game_size, "translation": translation_size}
            tasks.append(Task(task_id, split, task_type, payload))
            start += game_size + translation_size
        return tasks if path.stat().st_size == start else None
    except DAMAGED:
        return None


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder of packs, or None where there is none: prepare() makes it again."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        names = [name for names in manifest["packs"].values() for name in names]
        inside = all(isinstance(name, str) and is_inside(name) for name in names)
        return manifest if inside and manifest["sha256"].keys() == manifest["packs"].keys() else None
    except DAMAGED:
        return None


class GeneratedGames:
    """The packs of one prepared folder."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any], logic: Logic) -> None:
        self._folder = folder
        self._logic = logic
        self.manifest = manifest
        self._splits: dict[str, list[Task]] = {}
        self._packs = [pack for packs in manifest["packs"].values() for pack in packs]
        for split, packs in manifest["packs"].items():
            self._splits[split] = []
            for pack in packs:
                tasks = read_pack_index(folder / pack)
                if tasks is None:
                    raise EnvironmentFault(f"{folder / pack}: damaged; prepare() makes it again")
                self._splits[split] += tasks

    def tasks(self, split: str) -> Sequence[Task]:
        return self._splits[split]

    def key(self, task: Task) -> str:
        """A name for the game that holds over all adapters of a process."""
        return f"{self._folder}/{task.payload['pack']}:{task.payload['start']}"

    def read(self, task: Task) -> StoredGame:
        pack, *sizes = (task.payload.get(name) for name in ("pack", "start", "game", "translation"))
        if pack not in self._packs or not all(type(size) is int and 0 <= size <= LARGEST for size in sizes):
            raise EnvironmentFault(f"task {task.task_id!r}: {pack!r} is no pack of {self._folder}; other games?")
        start, game_size, translation_size = sizes
        path = self._folder / pack
        try:
            with open(path, "rb") as file:
                file.seek(start)
                blob = file.read(game_size + translation_size)
            found = json.loads(_inflate(blob[:game_size]))
            translation = _unpack_translation(blob[game_size:])
            data = {
                **found["data"],
                "pddl_domain": self._logic.domain,
                "grammar": self._logic.grammar.replace("UNKNOWN GOAL", found["sentence"]),
            }
            return StoredGame(data, found["traj"], translation)
        except DAMAGED as error:
            raise EnvironmentFault(
                f"game {task.task_id!r}: cannot be read from {path} ({error}); delete that folder and prepare again"
            ) from error


def export(games: GeneratedGames, split: str, root: Path) -> int:
    """Write a split as real folders under `root/json_2.1.1`, for other tools. Returns how many games."""
    folder = REAL_FOLDERS.get(split, split)
    for task in games.tasks(split):
        stored = games.read(task)
        target = root / REAL_VERSION_FOLDER / folder / task.task_id.split("/", 1)[1]
        for name, content in ((GAME_FILE, stored.data), (TRAJ_FILE, stored.traj)):
            write_atomic(target / name, json.dumps(content, sort_keys=True).encode("utf-8"))
    return len(games.tasks(split))
