"""What a stage is given and what it returns.

A stage reads files named by `context.paths`, writes files into its own folder and returns a `StageResult`;
the pipeline checks the inputs before and writes the manifest after. A stage knows nothing of manifests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runtime.distributed import Distributed

if TYPE_CHECKING:  # names for readers only: nothing of pipeline is imported by a stage
    from pipeline.config import Config
    from pipeline.run_directory import RunPaths


@dataclass
class Resident:
    """Heavy objects that stay in memory between the stages of one process. A stage run alone starts empty."""

    engine: Any = None  # runtime.engine.TrainingEngine of the policy
    engine_iteration: int | None = None  # the policy version the engine holds
    critic_engine: Any = None  # TrainingEngine of the critic, of the same version
    critic_replica: Any = None  # runtime.critic.Critic: plain inference replica
    critic_version: str | None = None  # fingerprint of the weights it holds
    replica: Any = None  # runtime.model.Policy: plain inference replica
    replica_policy: str | None = None  # fingerprint of the weights it holds
    vllm: Any = None  # runtime.vllm_generation.VllmEngine, where rollout.backend asks for it
    environments: Any = None  # runtime.rollouts.EnvironmentPool


@dataclass
class Context:
    """One stage's view of the run.

    `iteration` i >= 1 for collect_rollouts, compute_advantages and optimize: the stage turns policy i-1 into
    policy i. For evaluate it is the policy version that is evaluated. For reserve_vocab and warm_start it is 0.
    """

    config: Config
    paths: RunPaths
    iteration: int
    distributed: Distributed
    adapter: Any  # env_adapters.base.Adapter
    resident: Resident
    progress: Callable[..., Any]  # runtime.progress.Progress: progress(total, what, unit) -> a bar


@dataclass(frozen=True)
class StageResult:
    """What goes into the manifest and the metrics of a completed stage. Every rank returns one; rank 0's counts."""

    counts: Mapping[str, int | float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)  # canonical names: "rollout/success", "sapo/approx_kl"
    seconds: Mapping[str, float] = field(default_factory=dict)  # parts of the stage's time
