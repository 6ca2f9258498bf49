"""Which steps a run consists of, and which of them are to be done now. Pure: no files, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pipeline.config import Config
from pipeline.config_loading import fingerprint
from pipeline.manifests import POLICY, Manifest
from pipeline.run_directory import EXPORT

Name = tuple[str, int]  # (stage, iteration)
Manifests = Mapping[Name, Manifest]
FULL, SAMPLE = "full", "sample"  # sweeps of an evaluation
OTHER_SETTINGS = "made with other settings than config.yaml holds, or by another version"


@dataclass(frozen=True)
class Facts:
    """What the plan needs to know of the configuration."""

    warm_start: bool
    iterations: int
    evaluate_every: int  # 0: only before training and at the end
    config: str  # fingerprint of the settings that may not change
    reference: bool = False  # the KL term is on: policy 0 is read in every iteration

    @classmethod
    def of(cls, config: Config) -> Facts:
        return cls(
            warm_start=config.warm_start.enabled,
            iterations=config.run.iterations,
            evaluate_every=config.evaluate.every,
            config=fingerprint(config),
            reference=config.optimize.kl_coef != 0,
        )


@dataclass(frozen=True)
class Step:
    """`run`: to be done. `skip`: done, or not needed any more. `stale`: done, but from what is no longer there."""

    stage: str
    iteration: int
    action: Literal["run", "skip", "stale"]
    why: str

    @property
    def name(self) -> Name:
        return self.stage, self.iteration


def sequence(facts: Facts) -> list[Name]:
    """All steps of a run, in order."""
    steps: list[Name] = [("reserve_vocab", 0)]
    if facts.warm_start:
        steps.append(("warm_start", 0))
    steps.append(("evaluate", 0))
    for i in range(1, facts.iterations + 1):
        steps += [("collect_rollouts", i), ("compute_advantages", i), ("optimize", i)]
        on_the_way = facts.evaluate_every > 0 and i % facts.evaluate_every == 0
        if on_the_way or i == facts.iterations:
            steps.append(("evaluate", i))
    steps.append((EXPORT, 0))
    return steps


def policy_maker(iteration: int, warm_start: bool) -> Name:
    """The step that makes policy `iteration`."""
    if iteration > 0:
        return "optimize", iteration
    return ("warm_start", 0) if warm_start else ("reserve_vocab", 0)


def input_makers(step: Name, facts: Facts) -> dict[str, Name]:
    """What a step reads: a name for it, and the step that makes it."""
    stage, i = step
    if stage == "reserve_vocab":
        return {}
    if stage == "warm_start":
        return {"model": ("reserve_vocab", 0)}
    if stage == "evaluate":
        return {"policy": policy_maker(i, facts.warm_start)}
    if stage == EXPORT:
        return {"policy": policy_maker(facts.iterations, facts.warm_start)}
    makers = {"policy": policy_maker(i - 1, facts.warm_start)}
    if stage in ("compute_advantages", "optimize"):
        makers["rollouts"] = ("collect_rollouts", i)
    if stage == "compute_advantages" and facts.reference:
        makers["reference"] = policy_maker(0, facts.warm_start)
    if stage == "optimize":
        makers["advantages"] = ("compute_advantages", i)
    return makers


def input_digests(step: Name, facts: Facts, manifests: Manifests) -> dict[str, str]:
    """What a step that runs now reads, for its manifest. Every input must have been made."""
    digests = {name: manifests[maker].digest for name, maker in input_makers(step, facts).items()}
    if step[0] == "evaluate":
        digests["sweep"] = sweep(step[1], facts)
    return digests


def sweep(iteration: int, facts: Facts) -> str:
    """Before training and at the end every held-out game is played, on the way a sample."""
    return FULL if iteration in (0, facts.iterations) else SAMPLE


def plan(facts: Facts, manifests: Manifests) -> list[Step]:
    """Every step of the run with what is to be done about it.

    A step behind the newest policy is never done again: it could only make what nothing reads any more.
    """
    newest = max((i for stage, i in manifests if stage == "optimize"), default=0)
    return [_judge(step, facts, manifests, newest) for step in sequence(facts)]


def next_step(steps: list[Step]) -> Step | None:
    """The first step that is to be done."""
    return next((step for step in steps if step.action == "run"), None)


def _judge(step: Name, facts: Facts, manifests: Manifests, newest: int) -> Step:
    stage, iteration = step
    manifest = manifests.get(step)
    if manifest is None:
        return _judge_missing(step, facts, manifests, newest)
    if manifest.config != facts.config:
        return Step(stage, iteration, "stale", OTHER_SETTINGS)
    for name, maker in input_makers(step, facts).items():
        made = manifests.get(maker)
        if stage == EXPORT and (made is None or manifest.inputs.get(name) != made.digest):
            return _judge_missing(step, facts, manifests, newest)
        if made is None:
            if iteration <= newest or name == "policy":
                # Old rollouts may be deleted by hand: nothing reads them. What a policy did is judged once that has
                # been made again: from stored rollouts the same to the bit, or another.
                continue
            return Step(stage, iteration, "stale", f"the {name} it was made from ({_shown(maker)}) is gone")
        if manifest.inputs.get(name) != made.digest:
            return Step(stage, iteration, "stale", f"it was made from another {name} than {_shown(maker)} made")
    if stage == "evaluate" and sweep(iteration, facts) == FULL and manifest.inputs.get("sweep") == SAMPLE:
        return _judge_missing(step, facts, manifests, newest)
    return Step(stage, iteration, "skip", "complete")


def _judge_missing(step: Name, facts: Facts, manifests: Manifests, newest: int) -> Step:
    stage, iteration = step
    if stage in ("reserve_vocab", "warm_start"):
        if len(manifests) > (stage == "warm_start"):
            return Step(stage, iteration, "stale", "it has no manifest though later steps are complete")
        return Step(stage, iteration, "run", "not done yet")
    if stage in ("evaluate", EXPORT):
        maker = input_makers(step, facts)["policy"]
        policy = manifests.get(maker)
        gone = POLICY in policy.removed if policy is not None else maker[1] < newest
        if gone and stage == EXPORT:
            return Step(
                stage, iteration, "stale", f"policy {maker[1]} was removed by retention (the newest is policy {newest})"
            )
        if gone:
            return Step(stage, iteration, "skip", "its policy was removed by retention")
    elif iteration <= newest:
        return Step(stage, iteration, "skip", f"not needed: policy {newest} is there")
    return Step(stage, iteration, "run", "not done yet")


def _shown(step: Name) -> str:
    return f"{step[0]} {step[1]}" if step[1] else step[0]
