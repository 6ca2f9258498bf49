"""The algorithm's section of the settings: its options, and what it asks of the others."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isabstract
from typing import Any

from pipeline.config import Config, ConfigError, did_you_mean

DEFAULT_ALGORITHM = "sapo"


def option_section(name: str) -> str:
    """Where an algorithm's options are set: the section of its name; `algorithm.options` for one of the user's own."""
    return "algorithm.options" if ":" in name else name


def move_options(tree: Mapping[str, Any]) -> dict[str, Any]:
    """`grpo: {group_size: 4}` -> `algorithm: {options: {group_size: 4}}`, where the algorithm is grpo.

    Raises:
        ConfigError: options of another algorithm.
    """
    from runtime.algorithms import ALGORITHMS

    tree = dict(tree)
    own = tree.get("algorithm", {})
    if not isinstance(own, Mapping) or not isinstance(own.get("name", DEFAULT_ALGORITHM), str):
        return tree  # refused with the other types
    name = own.get("name", DEFAULT_ALGORITHM)
    for other in ALGORITHMS.keys() & tree.keys() - {name}:
        raise ConfigError(
            f"{other}: options of the algorithm {other}, the run's is {name}; leave them out, or say "
            f"--algorithm {other}"
        )
    given = tree.pop(name, {}) if name in ALGORITHMS else {}
    stored = own.get("options") or {}
    for section, options in ((name, given), ("algorithm.options", stored)):
        if not isinstance(options, Mapping):
            raise ConfigError(f"{section} = {options!r}: must be a section of keys, such as {section}.key: value")
    return {**tree, "algorithm": {**own, "options": {**stored, **given}}}


def known_algorithm(name: str) -> type:
    """The class of an algorithm.

    Raises:
        ConfigError: there is none of that name.
    """
    from runtime.algorithms import ALGORITHMS, algorithm_class
    from runtime.algorithms.base import Algorithm

    try:
        kind = algorithm_class(name)
    except Exception as fault:  # a user's module may raise anything while it is imported
        reason = f" ({type(fault).__name__}: {fault})" if ":" in name else ""
        raise ConfigError(
            f"algorithm.name = {name!r}: no such algorithm{reason}{did_you_mean(name, ALGORITHMS)}; there are "
            f"{', '.join(ALGORITHMS)}, or package.module:Class"
        ) from fault
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise ConfigError(f"algorithm.name = {name!r}: not a subclass of runtime.algorithms.base.Algorithm; name one")
    if isabstract(kind):
        raise ConfigError(f"algorithm.name = {name!r}: it has no `estimate`; see runtime/algorithms/base.py")
    return kind


def check_groups(config: Config) -> None:
    """Trajectories divide into the algorithm's groups.

    Raises:
        ConfigError: they do not.
    """
    from stages.algorithm import algorithm_of

    name, count, samples = config.algorithm.name, config.rollout.trajectories, algorithm_of(config).samples
    if count % samples:
        raise ConfigError(
            f"rollout.trajectories = {count}: must be a multiple of {samples}, the trajectories that {name} plays of "
            "a task"
        )
