"""The records that travel through the pipeline: rollouts on disk, scores, targets, training rows.

A **turn** keeps the token ids that were sampled, verbatim: nothing downstream encodes text again.
Rows that are trained are made from these ids alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

SCHEMA_VERSION = 1

STATUSES = ("terminated", "truncated", "error")


class RecordError(Exception):
    """A record does not have the documented shape. The message names object, fact and remedy."""


@dataclass(frozen=True)
class Turn:
    """One observation -> response -> environment step.

    Example (a turn of two sampled tokens, the second the end-of-turn token):
        Turn(observation="You see a mug 1.", admissible_actions=("take mug 1",), prompt_ids=(5, 9, 11),
             response="take mug 1", response_ids=(42, 2), sampling_logprobs=(-0.1, -0.02),
             action="take mug 1", valid=True, reward=0.0, generation_s=0.01, environment_s=0.002,
             terminated=False, truncated=False)
    """

    observation: str
    admissible_actions: tuple[str, ...] | None
    prompt_ids: tuple[int, ...]
    response: str
    response_ids: tuple[int, ...]  # as sampled, the end-of-turn token included
    sampling_logprobs: tuple[float, ...]  # over W_act, at the rollout's temperature; one per response id
    action: str
    valid: bool
    reward: float  # what the environment paid, before any penalty
    generation_s: float
    environment_s: float
    terminated: bool = False  # the episode ended by itself after this turn: the last one's alone can be
    truncated: bool = False  # it was cut after this turn, which was the last one allowed
    continues: bool = False  # the turn before and its response were read before it: prompt_ids are what is new


@dataclass(frozen=True)
class Trajectory:
    """The one episode sampled for (task, sample index): one line of a rollout shard.

    `status` is "terminated" (the episode ended by itself), "truncated" (turn limit; counts as terminal in
    the targets) or "error" (environment lost; excluded from training and counted, never scored).
    `sample` numbers the trajectories of one task; SAPO samples only number 0. `task` is the payload of the task, as
    the environment was given it: for ALFWorld the game's file, and where in it a packed game lies.
    """

    task_id: str
    sample: int
    split: str
    task_type: str
    goal: str
    iteration: int
    seed: int
    policy: str  # fingerprint of the weights that sampled it
    temperature: float
    status: str
    success: bool
    score: float
    turns: tuple[Turn, ...]
    error: str | None = None
    task: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA_VERSION

    @property
    def key(self) -> str:
        """The name of this trajectory within its iteration."""
        return f"{self.task_id}#{self.sample}"

    @property
    def return_undiscounted(self) -> float:
        return sum(turn.reward for turn in self.turns)


def to_json(trajectory: Trajectory) -> dict[str, Any]:
    """A plain dict, keys in the order of the fields."""
    return {**vars(trajectory), "turns": [dict(vars(turn)) for turn in trajectory.turns]}


def from_json(data: Any, where: str) -> Trajectory:
    """The inverse of `to_json`, checked.

    Args:
        data: what the json line held.
        where: file and line, for the error message.

    Raises:
        RecordError: wrong type, missing or unknown fields, another schema, lengths that disagree.
    """
    if not isinstance(data, dict):
        raise RecordError(f"{where}: expected a JSON object, found {type(data).__name__}; delete the line to replay it")
    if data.get("schema") != SCHEMA_VERSION:
        raise RecordError(
            f"{where}: trajectory schema {data.get('schema')!r}, this version reads {SCHEMA_VERSION}; "
            "use the version that wrote it, or start a new run"
        )
    try:
        turns = tuple(_turn_from_json(turn) for turn in data["turns"])
        trajectory = Trajectory(**{**data, "turns": turns})
    except (KeyError, TypeError, ValueError) as fault:
        raise RecordError(f"{where}: not a trajectory ({fault}); delete the line to replay it") from fault
    _check(trajectory, where)
    return trajectory


def _turn_from_json(data: dict[str, Any]) -> Turn:
    actions = data["admissible_actions"]
    if actions is not None and (type(actions) is not list or not set(map(type, actions)) <= {str}):
        raise TypeError("admissible_actions is no list of texts")
    return Turn(
        **{
            **data,
            "admissible_actions": None if actions is None else tuple(actions),
            "prompt_ids": tuple(data["prompt_ids"]),
            "response_ids": tuple(data["response_ids"]),
            "sampling_logprobs": tuple(data["sampling_logprobs"]),
        }
    )


_TYPES = {"str": (str,), "int": (int,), "bool": (bool,), "float": (float, int)}  # by annotation
_SCALARS = {
    kind: tuple((item.name, item.type, _TYPES[item.type]) for item in fields(kind) if item.type in _TYPES)
    for kind in (Trajectory, Turn)
}


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _check_scalars(record: Trajectory | Turn, where: str) -> None:
    for name, annotation, types in _SCALARS[type(record)]:
        value = getattr(record, name)
        if type(value) not in types or (annotation == "float" and not _is_finite(value)):
            raise RecordError(
                f"{where}: {name} is {str(value)[:40]!r}, expected {annotation}; delete the line to replay it"
            )


def _check(trajectory: Trajectory, where: str) -> None:
    _check_scalars(trajectory, where)
    if type(trajectory.task) is not dict or not isinstance(trajectory.error, str | None):
        raise RecordError(f"{where}: task is no object, or error no text; delete the line to replay it")
    if trajectory.status not in STATUSES:
        known = ", ".join(STATUSES)
        raise RecordError(f"{where}: status {trajectory.status!r} is none of {known}; delete the line to replay it")
    if trajectory.status != "error" and not trajectory.turns:
        raise RecordError(f"{where}: a {trajectory.status} trajectory without turns; delete the line to replay it")
    for index, turn in enumerate(trajectory.turns):
        _check_scalars(turn, f"{where}: turn {index}")
        ids = turn.prompt_ids + turn.response_ids
        if turn.continues and index == 0:
            raise RecordError(f"{where}: turn 0 continues a turn before it; delete the line to replay it")
        if not turn.prompt_ids or not turn.response_ids or set(map(type, ids)) != {int} or min(ids) < 0:
            raise RecordError(f"{where}: turn {index}: prompt_ids and response_ids must be non-empty lists of ids")
        if len(turn.sampling_logprobs) != len(turn.response_ids):
            raise RecordError(
                f"{where}: turn {index}: {len(turn.response_ids)} response_ids but "
                f"{len(turn.sampling_logprobs)} sampling_logprobs; delete the line to replay it"
            )
        if not set(map(type, turn.sampling_logprobs)) <= {int, float} or not all(
            map(_is_finite, turn.sampling_logprobs)
        ):
            raise RecordError(f"{where}: turn {index}: sampling_logprobs must be finite; delete the line to replay it")
        for end in ("terminated", "truncated"):
            is_last = index == len(trajectory.turns) - 1
            if getattr(turn, end) and not (is_last and trajectory.status == end):
                raise RecordError(
                    f"{where}: turn {index} of {len(trajectory.turns)} says {end}, the trajectory {trajectory.status}; "
                    "delete the line to replay it"
                )


@dataclass(frozen=True)
class Scores:
    """What the frozen rollout-time policy says of one trajectory: one scoring pass.

    `values` and `q_values` are in reward units (V = r_max * p), one per turn. The log-probs and entropies are flat
    over the turns' response ids, in order: N = sum of len(response_ids).
    """

    key: str
    old_logprobs: tuple[float, ...]  # [N]
    ref_logprobs: tuple[float, ...] | None  # [N]; None where the KL coefficient is 0
    values: tuple[float, ...]  # [K]
    q_values: tuple[float, ...]  # [K]
    entropies: tuple[float, ...] | None = None  # [N], nats over W_act; nothing is trained on them
    critic_values: tuple[float, ...] | None = None  # [N], a critic's before each response token; None without a critic


@dataclass(frozen=True)
class Targets:
    """Training targets of one trajectory, one entry per turn (Eq. 4-7); one line of targets.jsonl.

    Values, returns and q_targets are in reward units; `advantages` are normalised as the algorithm does it,
    `raw_advantages` what they were before. What an algorithm does not have is empty: without values of any kind the
    series of V and Q, with advantages that are equal over a turn the series over tokens.
    """

    key: str
    values: tuple[float, ...] = ()  # V of the policy's readout, or the critic's
    q_values: tuple[float, ...] = ()
    raw_advantages: tuple[float, ...] = ()
    advantages: tuple[float, ...] = ()
    returns: tuple[float, ...] = ()
    q_targets: tuple[float, ...] = ()
    token_advantages: tuple[float, ...] = ()  # [N], over the response ids of all turns; `advantages` are their means
    token_values: tuple[float, ...] = ()  # [N], where a critic is read before every token
    token_returns: tuple[float, ...] = ()  # [N]
    weight: float = 1.0  # of each of the trajectory's tokens in the loss


@dataclass(frozen=True)
class Row:
    """One training row: a token sequence with the responses of one or more turns in it.

    In the history form a row is one turn (prompt, response). `spans` are half-open intervals of
    `input_ids` that hold the responses; the response mask is their union. All per-token tuples run over
    the tokens of the spans in order, all per-turn tuples over the spans. What the algorithm does not have is empty.

    Example (prompt 7 8, response 3 2):
        Row(key="task#0", turn_index=0, input_ids=(7, 8, 3, 2), spans=((2, 4),), old_logprobs=(-0.1, -0.3), ...)
    """

    key: str
    turn_index: int  # of the first span
    input_ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    old_logprobs: tuple[float, ...] = ()
    ref_logprobs: tuple[float, ...] | None = None
    advantages: tuple[float, ...] = ()  # per token
    old_values: tuple[float, ...] = ()  # per turn, normalised to [-1, 1]
    old_q_values: tuple[float, ...] = ()  # per turn, normalised
    returns: tuple[float, ...] = ()  # per turn, normalised
    q_targets: tuple[float, ...] = ()  # per turn, normalised
    token_values: tuple[float, ...] = ()  # per token, normalised: a critic's
    token_returns: tuple[float, ...] = ()  # per token, normalised
    weight: float = 1.0  # of its tokens in the loss

    @property
    def num_response_tokens(self) -> int:
        return sum(end - start for start, end in self.spans)
