"""Our engine slot against the stock engine, on the same games and commands, in one run.

    python benchmarks/alfworld_engine.py [--games 12] [--turns 20] [--scene tiny] [--out engine.json]

Play is mixed: half the commands are a walkthrough's, half are drawn from the admissible ones. CPU time of this process.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import resource
import time
from collections.abc import Mapping
from pathlib import Path

from env_adapters.alfworld.engine import EngineSlot
from env_adapters.alfworld.games import installed_logic
from env_adapters.alfworld.generate import generate
from env_adapters.alfworld.states import GameCache
from env_adapters.alfworld.stock import StockSlot
from env_adapters.alfworld.translation import Translation, translate


class Ours:
    """The fast slot with the stock slot's interface; translations come from before, as from the disk cache."""

    def __init__(self, translations: Mapping[str, Translation]) -> None:
        self._slot = EngineSlot(GameCache())
        self._translations = translations

    def load(self, data: Mapping) -> None:
        self._key = data["pddl_problem"]
        self._slot.load(self._key, data, self._translations[self._key])

    def reset(self) -> str:
        return self._slot.reset(self._key)

    def step(self, command: str) -> str:
        return self._slot.step(command)

    @property
    def admissible(self) -> tuple[str, ...]:
        return self._slot.admissible


def play(slot, games: list, turns: int, rounds: int) -> dict[str, float]:
    """Milliseconds of CPU for a load with reset and for a step, and the transcript's length as a check."""
    start_s = step_s = 0.0
    num_steps = num_chars = 0
    for round_ in range(rounds):
        for number, game in enumerate(games):
            begin = time.process_time()
            slot.load(game.data)
            num_chars += len(slot.reset())
            start_s += time.process_time() - begin
            rng, plan = random.Random(f"{round_} {number}"), list(game.data["walkthrough"])
            for _ in range(turns):
                listed = slot.admissible
                command = plan.pop(0) if plan and plan[0] in listed and rng.random() < 0.5 else rng.choice(listed)
                begin = time.process_time()
                num_chars += len(slot.step(command))
                step_s += time.process_time() - begin
                num_steps += 1
    episodes = rounds * len(games)
    return {"load_reset_ms": 1e3 * start_s / episodes, "step_ms": 1e3 * step_s / num_steps, "characters": num_chars}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=12)
    parser.add_argument("--turns", type=int, default=20, help="turns an episode")
    parser.add_argument("--scene", choices=("tiny", "full"), default="tiny")
    parser.add_argument("--out", type=Path, help="write the numbers there, as JSON")
    options = parser.parse_args()

    games = list(generate("train", options.games, options.scene, 0, installed_logic(), "move", set()))
    begin = time.process_time()
    translations = {g.data["pddl_problem"]: translate(g.data["pddl_domain"], g.data["pddl_problem"]) for g in games}
    translate_ms = 1e3 * (time.process_time() - begin) / len(games)

    ours = Ours(translations)
    rows = {"ours, cold": play(ours, games, options.turns, 1)}
    hot = play(ours, games, options.turns, 8)  # the first of its rounds repeats the cold one
    rows["ours, 8 rounds"] = hot
    rows["stock"] = play(StockSlot(), games, options.turns, 1)
    if rows["stock"]["characters"] != rows["ours, cold"]["characters"]:
        raise SystemExit("the transcripts differ: run tests/env_adapters/test_alfworld_engine.py")

    stock = rows["stock"]
    print(
        f"{options.scene} scene, {options.games} games, {options.turns} turns; translation {translate_ms:.1f} ms a game"
    )
    print(f"{'':16}{'load+reset ms':>15}{'step ms':>10}{'ratio':>9}{'ratio':>9}")
    for name, row in rows.items():
        ratios = stock["load_reset_ms"] / row["load_reset_ms"], stock["step_ms"] / row["step_ms"]
        print(f"{name:16}{row['load_reset_ms']:15.2f}{row['step_ms']:10.3f}{ratios[0]:8.1f}x{ratios[1]:8.1f}x")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process {peak_mb:.0f} MB, both engines in it")
    if options.out:
        facts = {"python": platform.python_version(), "scene": options.scene, "games": options.games}
        facts |= {"turns": options.turns, "translate_ms": translate_ms, "peak_mb": peak_mb, "rows": rows}
        options.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
