"""The algorithm that a configuration names, ready to be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.algorithms import algorithm_class
from runtime.algorithms.base import Algorithm, Settings

if TYPE_CHECKING:
    from pipeline.config import Config


def algorithm_of(config: Config) -> Algorithm:
    """Its options were checked when the configuration was built."""
    kind, advantage = algorithm_class(config.algorithm.name), config.advantage
    settings = Settings(
        gamma=advantage.gamma,
        gae_lambda=advantage.gae_lambda,
        c_inv=advantage.invalid_action_coef,
        epsilon=advantage.epsilon,
        min_std=advantage.min_std,
        r_max=config.value.r_max,
        response_tokens=config.env.response_tokens,
    )
    return kind(kind.Options(**config.algorithm.options), settings)
