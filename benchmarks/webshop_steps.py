"""Environment steps a second on one core, first search included: `python -m benchmarks.webshop_steps`.

    python -m benchmarks.webshop_steps [--products 1000] [--episodes 2000] [--observation text] [--out steps.json]

Plays episodes of the scripted shopper, and of a wanderer that draws what it clicks, through the adapter as a worker
does: responses in, observations out. Every task is another one, so no search is answered from memory unless two
instructions hold the same words. CPU time of this process; preparing is measured apart.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import tempfile
import time
from pathlib import Path

from env_adapters.registry import make_adapter

TURNS = 15


def play(adapter, environment, tasks, wander: bool) -> dict[str, float]:
    """Seconds of CPU and steps of one episode a task."""
    steps, begin = 0, time.process_time()
    for number, task in enumerate(tasks):
        rng, observation = random.Random(number), environment.reset(task)
        for turn in range(TURNS):
            action = environment.expert_action()
            if wander and turn:
                action = rng.choice(observation.admissible_actions)
            result = environment.step(adapter.response(action))
            steps += 1
            if result.terminated:
                break
            observation = result.observation
    seconds = time.process_time() - begin
    return {"episodes": len(tasks), "steps": steps, "seconds": seconds, "steps_per_second": steps / seconds}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--products", type=int, default=1000)
    flags.add_argument("--episodes", type=int, default=2000)
    flags.add_argument("--observation", choices=("text", "text_rich"), default="text")
    flags.add_argument("--out", type=Path)
    arguments = flags.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = {"products": arguments.products, "observation": arguments.observation, "cache_dir": folder}
        adapter = make_adapter("webshop", options)
        begin = time.process_time()
        adapter.prepare()
        prepare_s = time.process_time() - begin
        tasks = list(adapter.tasks("train"))[: arguments.episodes]
        found = {"machine": platform.processor() or platform.machine(), **options, "prepare_s": prepare_s}
        found.pop("cache_dir")
        begin = time.process_time()
        fresh = make_adapter("webshop", options)
        environment = fresh.make()
        environment.reset(tasks[0])
        environment.step(fresh.response(environment.expert_action()))
        found["open_and_first_search_s"] = time.process_time() - begin
        for name, wander in (("expert", False), ("wanderer", True)):
            new = make_adapter("webshop", options)  # nothing remembered
            found[name] = play(new, new.make(), tasks, wander)
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
