"""Every random number has a name: the run's seed and what it is for, hashed.

No generator is carried from one place to the next, so a resumed run, another number of ranks or another order
of episodes draws the same numbers.
"""

from __future__ import annotations

import hashlib

import numpy as np

Name = str | int


def seed_from_names(run_seed: int, *names: Name) -> int:
    """A 64-bit seed out of the run's seed and names, the same on every machine and Python version.

    Ints and strings differ (1 is not "1"), and so do different cuts of the same letters: each name goes into the
    hash with its type and length.

    Raises:
        TypeError: a name is neither a string nor an int.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name in (run_seed, *names):
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            raise TypeError(f"seed name {name!r} is a {type(name).__name__}: names are strings or ints")
        data = str(name).encode("utf-8", "surrogatepass")
        digest.update(f"{type(name).__name__}:{len(data)}:".encode())
        digest.update(data)
    return int.from_bytes(digest.digest(), "little")


def trajectory_seed(run_seed: int, iteration: Name, task_id: str, sample: int) -> int:
    """The seed of one trajectory. `iteration` is a number in training, a name ("evaluate/seen") elsewhere."""
    return seed_from_names(run_seed, "trajectory", iteration, task_id, sample)


def uniforms(run_seed: int, iteration: Name, task_id: str, sample: int, turn: int, n: int) -> np.ndarray:
    """The n numbers in [0, 1) that sample the response of one turn: float64 [n].

    A shorter draw is the beginning of a longer one.
    """
    seed = seed_from_names(trajectory_seed(run_seed, iteration, task_id, sample), "turn", turn)
    return _philox(seed).random(n)


def permutation(run_seed: int, *names: Name, n: int) -> np.ndarray:
    """A shuffled range(n) that belongs to the names: int64 [n]."""
    keys = _philox(seed_from_names(run_seed, "permutation", *names)).random(n)
    return np.argsort(keys, kind="stable")


def _philox(seed: int) -> np.random.Generator:
    # numpy keeps the raw stream of a bit generator and `random()` stable between versions, not the shuffles.
    return np.random.Generator(np.random.Philox(key=seed))
