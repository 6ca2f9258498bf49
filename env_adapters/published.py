"""The published prompt, as far as environments share it (the framework that SAPO's results follow, in our words)."""

from __future__ import annotations

from collections.abc import Sequence

from env_adapters.base import PastTurn


def published_prompt(
    role: str,
    task: str,
    observation: str,
    admissible_actions: Sequence[str] | None,
    history: Sequence[PastTurn],
    turns_taken: int,
    request: str,
) -> str:
    """Role, task, number of steps taken, the last (observation, action) pairs, the current observation, the admissible
    actions quoted one a line where the environment lists them, and the request for an answer."""
    lines = [role, f"Your task is to: {task}"]
    if history:
        first = turns_taken - len(history) + 1
        lines.append(
            f"Prior to this step, you have already taken {turns_taken} step(s). "
            f"Below are the most recent {len(history)} observations and the corresponding actions you took:"
        )
        lines += [
            f"[Observation {first + i}: '{past.observation}', Action {first + i}: '{past.action}']"
            for i, past in enumerate(history)
        ]
    elif turns_taken:
        lines.append(f"Prior to this step, you have already taken {turns_taken} step(s).")
    lines.append(f"You are now at step {turns_taken + 1} and your current observation is: {observation}")
    if admissible_actions is not None:
        quoted = "\n".join(f"'{action}'" for action in admissible_actions)
        lines.append(f"Your admissible actions of the current situation are: [\n{quoted}\n].")
    return "\n".join([*lines, "", request])
