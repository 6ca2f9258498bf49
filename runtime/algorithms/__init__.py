"""The algorithms by name. Another one is a module with a class of the base; it is named `package.module:Class`."""

from __future__ import annotations

import importlib

from runtime.algorithms.base import Algorithm

ALGORITHMS = {
    "sapo": "runtime.algorithms.sapo:SAPO",
    "ppo": "runtime.algorithms.ppo:PPO",
    "grpo": "runtime.algorithms.grpo:GRPO",
    "rloo": "runtime.algorithms.rloo:RLOO",
    "remax": "runtime.algorithms.remax:ReMax",
    "dapo": "runtime.algorithms.dapo:DAPO",
    "gigpo": "runtime.algorithms.gigpo:GiGPO",
    "vineppo": "runtime.algorithms.vineppo:VinePPO",
}


def algorithm_class(name: str) -> type[Algorithm]:
    """The class of a name of ALGORITHMS, or of `package.module:Class`.

    Raises:
        KeyError: no such name. ImportError, AttributeError: no such module or class.
    """
    module, _, attribute = (name if ":" in name else ALGORITHMS[name]).partition(":")
    return getattr(importlib.import_module(module), attribute)
