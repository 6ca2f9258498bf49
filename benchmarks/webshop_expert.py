"""Success of WebShop's scripted shopper on the dev and test goals of the embedded catalogues.

python -m benchmarks.webshop_expert
"""

from __future__ import annotations

import statistics
from typing import Any

from env_adapters.registry import make_adapter

MAX_TURNS = 15
CASES: dict[str, dict[str, Any]] = {
    "full, 1,000 products, human": {},
    "full, 1,000 products, synthetic": {"goals": "synthetic"},
    "tiny, 200 products, human": {"catalogue": "tiny", "products": 200, "instructions": 30, "page_size": 5},
}


def play(options: dict[str, Any]) -> list[tuple[bool, float, int]]:
    """(success, score, turns) of each dev and test goal."""
    adapter = make_adapter("webshop", options)
    adapter.prepare()
    environment, outcomes = adapter.make(), []
    for task in [*adapter.tasks("dev"), *adapter.tasks("test")]:
        environment.reset(task)
        turns, over = 0, False
        while not over and turns < MAX_TURNS:
            result = environment.step(adapter.response(environment.expert_action()))
            turns, over = turns + 1, result.terminated
        outcomes.append((result.success, result.score, turns))
    environment.close()
    return outcomes


def main() -> None:
    print("| catalogue, goals | n | success % | score | turns |\n|---|---|---|---|---|")
    for name, options in CASES.items():
        found = play(options)
        success, score, turns = (statistics.fmean(column) for column in zip(*found, strict=True))
        print(f"| {name} | {len(found)} | {100 * success:.1f} | {score:.3f} | {turns:.1f} |")


if __name__ == "__main__":
    main()
