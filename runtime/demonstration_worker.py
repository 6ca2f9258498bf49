"""The expert's process: `python -m runtime.demonstration_worker`, started by runtime.demonstrations.

Reads one pickle (import path, adapter name, adapter options, tasks, turn limit, error rate, seed) from stdin and
writes one JSON line an episode to stdout. Nothing heavy is imported: no torch, no transformers.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
from typing import Any

from runtime.environment_worker import describe, die_with


def play_expert(
    adapter: Any, environment: Any, task: Any, max_turns: int, error_rate: float = 0.0, seed: int = 0
) -> dict[str, Any]:
    """One episode played by the environment's expert, as a demonstration record.

    Args:
        error_rate: share of turns at which a random one of the actions that the episode has listed so far is played
            instead of the expert's (many are not admissible any more); none where the environment lists no actions.
            Such a turn is not to be imitated: what follows it shows the way back. What is drawn derives from `seed`
            and the task's id.

    Returns:
        {"task_id", "goal", "success", "turns": [{"observation", "admissible_actions", "action", "imitated"}, ...]}. An
        episode that the expert gives up, or does not end within `max_turns`, has success False.
    """
    rng = random.Random(f"demonstration errors {seed} {task.task_id}")
    observation = environment.reset(task)
    goal, turns, success = observation.goal, [], False
    listed: dict[str, None] = {}  # a set in order of appearance
    for _ in range(max_turns):
        action = environment.expert_action()
        if action is None:
            break
        shown = observation.admissible_actions
        listed.update(dict.fromkeys(shown or ()))
        erring = bool(listed) and rng.random() < error_rate
        if erring:
            action = rng.choice(list(listed))
        turns.append(
            {
                "observation": observation.text,
                "admissible_actions": None if shown is None else list(shown),
                "action": action,
                "imitated": not erring,
            }
        )
        result = environment.step(adapter.response(action))
        if result.terminated:
            success = bool(result.success)
            break
        observation = result.observation
    return {"task_id": task.task_id, "goal": goal, "success": success, "turns": turns}


def main() -> None:
    die_with(os.getppid())
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what an engine prints must not mix with the records
    sys.path[:], name, options, tasks, *settings = pickle.load(sys.stdin.buffer)
    from env_adapters.registry import make_adapter

    adapter = make_adapter(name, options)
    environment = adapter.make()
    for task in tasks:
        try:
            record = play_expert(adapter, environment, task, *settings)
        except (
            Exception
        ) as fault:  # counted by the parent; the slot's state is unknown, so the next task gets a new one
            record = {"task_id": task.task_id, "error": describe(fault)}
            environment.close()
            environment = adapter.make()
        print(json.dumps(record), file=output, flush=True)
    environment.close()


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(1)  # the parent is gone
