"""Generates, verifies and packs games: each one is translated, and its walkthrough won on the real engine.

Work is cut into packs of `PACK_SIZE` games. A pack is written whole or not at all, so after a kill only missing
packs are made again. The manifest is written last: a folder without one is not ready.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from env_adapters.alfworld.building import Logic
from env_adapters.alfworld.engine import EngineSlot
from env_adapters.alfworld.games import (
    MANIFEST,
    PackedGame,
    pack_game,
    pack_translation,
    read_manifest,
    read_pack_index,
    write_atomic,
    write_pack,
)
from env_adapters.alfworld.generate import Game, generate
from env_adapters.alfworld.states import GameCache
from env_adapters.alfworld.translation import translate
from env_adapters.base import EnvironmentFault
from env_adapters.disk import locked

PACK_SIZE = 50
SMALL_JOB = 100  # games; fewer than that are made in this process, a pool would cost more than it saves


def prepare_games(
    folder: Path, counts: Mapping[str, int], scene: str, seed: int, logic: Logic, put_words: str,
    facts: Mapping[str, Any], processes: int, progress: Any = None,
) -> None:  # fmt: skip
    """Fill `folder` with packs and a manifest. Idempotent; two callers at once wait for each other.

    `progress(done, total, what)` counts games. Raises EnvironmentFault where a game is not won by its walkthrough:
    that is a fault of the generator.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"{folder}: cannot be made ({error}); set env.cache_dir") from error
    with locked(folder / "lock"):
        if _is_ready(folder):
            return
        for left_over in folder.glob(".*.tmp"):  # of a killed run
            left_over.unlink()
        total, done = sum(counts.values()), 0
        packs: dict[str, list[str]] = {}
        jobs, digests, taken = [], {}, set()
        for split, count in counts.items():
            games = list(generate(split, count, scene, seed, logic, put_words, taken))
            digest = hashlib.sha256()
            packs[split] = []
            for number in range(0, count, PACK_SIZE):
                part = games[number : number + PACK_SIZE]
                name = f"{split}-{number // PACK_SIZE:03d}.pack"
                packs[split].append(name)
                for game in part:
                    digest.update(json.dumps([game.task_id, game.data, game.traj], sort_keys=True).encode("utf-8"))
                found = read_pack_index(folder / name)
                if found is not None and [t.task_id for t in found] == [g.task_id for g in part]:
                    done += len(part)
                else:
                    jobs.append((folder / name, part))
            digests[split] = digest.hexdigest()
        if progress is not None:
            progress(done, total, "games")
        failures: list[str] = []
        for size, wrong in _run(jobs, processes):
            failures += wrong
            done += size
            if progress is not None:
                progress(done, total, "games")
        if failures:
            raise EnvironmentFault(
                f"{len(failures)} of {total} generated games are not won by their walkthrough, first {failures[0]}; "
                "this is a fault of the generator, please report scene and seed"
            )
        manifest = {**facts, "packs": packs, "sha256": digests, "counts": dict(counts)}
        write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode("utf-8"))


def _is_ready(folder: Path) -> bool:
    """Whether the manifest and all of its packs are there and whole: what is not is made again."""
    manifest = read_manifest(folder)
    names = [] if manifest is None else [name for names in manifest["packs"].values() for name in names]
    return manifest is not None and all(read_pack_index(folder / name) is not None for name in names)


def _run(jobs: list[tuple[Path, list[Game]]], processes: int) -> Iterator[tuple[int, list[str]]]:
    if sum(len(games) for _, games in jobs) <= SMALL_JOB or processes == 1:
        for path, games in jobs:
            yield make_pack(path, games)
        return
    # spawn: the caller may hold threads (torch, MPI), which a forked child must not inherit.
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            for future in as_completed([pool.submit(make_pack, path, games) for path, games in jobs]):
                yield future.result()
    except BrokenProcessPool as error:
        raise EnvironmentFault(
            "a process that prepared games died (out of memory?); start again, finished packs are kept; "
            "env.prepare_processes=1 needs the least memory"
        ) from error


_SLOT: EngineSlot | None = None  # one a process, for life (see engine.EngineSlot)


def make_pack(path: Path, games: list[Game]) -> tuple[int, list[str]]:
    """Translate and play some games, then write their pack. Returns (how many, what went wrong)."""
    global _SLOT
    _SLOT = _SLOT or EngineSlot()
    _SLOT.use(GameCache())  # these games are played once, and never under this name again
    packed, failures = [], []
    for game in games:
        translation = translate(game.data["pddl_domain"], game.data["pddl_problem"])
        _SLOT.load(game.task_id, game.data, translation)
        if fault := _play(_SLOT, game):
            failures.append(f"{game.task_id}: {fault}")
        packed.append(
            PackedGame(
                game.task_id,
                game.split,
                game.goal.task_type,
                pack_game(game.data, game.traj),
                pack_translation(translation),
            )
        )
    if not failures:
        write_pack(path, packed)
    return len(games), failures


def _play(slot: EngineSlot, game: Game) -> str | None:
    slot.reset(game.task_id)
    if slot.won:
        return "the goal holds at the start"
    for action in game.data["walkthrough"]:
        if action not in slot.admissible:
            return f"{action!r} is not admissible"
        slot.step(action)
    return None if slot.won else "the walkthrough does not win"
