"""Made-up trajectories for tests."""

from __future__ import annotations

import random

from runtime.records import Trajectory, Turn
from tests.tiny_policies import VOCABULARY


def trajectory(
    task_id: str,
    num_turns: int,
    seed: int = 0,
    policy: str = "p",
    status: str = "terminated",
    reward: float = 10.0,
    valid: tuple[bool, ...] | None = None,
) -> Trajectory:
    """Random ids; `reward` is paid at the last turn."""
    rng = random.Random(f"{task_id} {seed}")
    turns = []
    for index in range(num_turns):
        response = tuple(rng.randrange(VOCABULARY - 2) for _ in range(rng.randint(1, 5)))
        turns.append(
            Turn(
                observation="You see a mug 1.",
                admissible_actions=None,
                prompt_ids=tuple(rng.randrange(VOCABULARY - 2) for _ in range(rng.randint(1, 20))),
                response="take mug 1",
                response_ids=response,
                sampling_logprobs=tuple(-rng.random() for _ in response),
                action="take mug 1",
                valid=True if valid is None else valid[index],
                reward=reward if index == num_turns - 1 else 0.0,
                generation_s=0.0,
                environment_s=0.0,
                terminated=status == "terminated" and index == num_turns - 1,
                truncated=status == "truncated" and index == num_turns - 1,
            )
        )
    return Trajectory(
        task_id=task_id,
        sample=0,
        split="train",
        task_type="pick",
        goal="take a mug",
        iteration=1,
        seed=seed,
        policy=policy,
        temperature=1.0,
        status=status,
        success=reward > 0,
        score=1.0,
        turns=tuple(turns),
        error="lost" if status == "error" else None,
        task={"game": f"{task_id}.json"},
    )
