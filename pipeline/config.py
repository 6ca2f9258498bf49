"""Every setting of a run: one tree of frozen dataclasses, checked once at the door.

The fields' comments are their documentation: name, unit, range, and where the default comes from.
Published settings stand in the `paper-*` presets; what the paper leaves open is ours and is said so.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

LONGEST_S = 10_000_000  # of any timeout, 115 days: the system's own limits are not far above
SECONDS = f"seconds in (0, {LONGEST_S}]"


class ConfigError(Exception):
    """A setting is wrong. The message names the key, the value and what is allowed."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean optimize.learning_rate?`, or nothing where no name is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def _check(condition: bool, key: str, value: Any, allowed: str) -> None:
    if not condition:
        raise ConfigError(f"{key} = {value!r}: must be {allowed}")


@dataclass(frozen=True)
class RunConfig:
    seed: int = 0  # everything random derives from it
    iterations: int = 150  # rounds of collect, advantages, optimize (0: only the start); may change on resume
    ranks: int = 1  # processes of the launcher (0: two, or one where there is one GPU or core); may change on resume
    stage_timeout_s: float = 3600.0  # a collective that waits longer than this fails and names the stage

    def __post_init__(self) -> None:
        _check(self.seed >= 0, "run.seed", self.seed, ">= 0")
        _check(self.iterations >= 0, "run.iterations", self.iterations, ">= 0")
        _check(self.ranks >= 0, "run.ranks", self.ranks, ">= 0")
        _check(0 < self.stage_timeout_s <= LONGEST_S, "run.stage_timeout_s", self.stage_timeout_s, SECONDS)


@dataclass(frozen=True)
class ModelConfig:
    name: str = "tiny"  # "tiny", "Qwen2.5-1.5B", "Qwen2.5-7B", "smollm2-135m", a hub id or a local folder
    dtype: Literal["float32", "bfloat16"] = "bfloat16"  # compute and export; fp32 on CPU (bf16 is 5x slower on AVX2)
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"  # of scoring and training; sampling: sdpa
    chat_template: bool = True  # render prompts with the tokenizer's chat template; False: the plain prompt text
    tiny_width: int = 128  # hidden size of the random-weight `tiny` model
    tiny_layers: int = 4  # transformer blocks of `tiny`
    tiny_heads: int = 4  # attention heads of `tiny`

    def __post_init__(self) -> None:
        _check(bool(self.name), "model.name", self.name, "a name, a hub id or a folder")
        for name in ("tiny_width", "tiny_layers", "tiny_heads"):
            _check(getattr(self, name) >= 1, f"model.{name}", getattr(self, name), ">= 1")
        whole = self.tiny_width % self.tiny_heads == 0
        _check(whole, "model.tiny_width", self.tiny_width, "a multiple of model.tiny_heads")


@dataclass(frozen=True)
class AlgorithmConfig:
    """The section of the algorithm's own name, such as `grpo.group_size`, holds its options (kept in `options`)."""

    name: str = "sapo"  # sapo, ppo, grpo, rloo, remax, dapo, gigpo, vineppo or package.module:Class
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(bool(self.name), "algorithm.name", self.name, "a known algorithm or package.module:Class")
        _check(isinstance(self.options, Mapping), "algorithm.options", self.options, "a section of keys")


@dataclass(frozen=True)
class ValueConfig:
    """The readout of Eq. 1, 2. The paper leaves all of this open; the defaults are ours."""

    r_max: float = 10.0  # bound of the discounted return, reward units; 10 fits the reward of 10
    temperature: float = 1.0  # tau_v
    initial_rows: Literal["zero", "mean", "random"] = "zero"  # of w+ and w-: zero, the head's mean row, or small noise
    v_offset: int = 0  # V is read so many tokens before the end of the prompt

    def __post_init__(self) -> None:
        _check(self.r_max > 0, "value.r_max", self.r_max, "> 0")
        _check(self.temperature > 0, "value.temperature", self.temperature, "> 0")
        _check(self.v_offset >= 0, "value.v_offset", self.v_offset, ">= 0")


@dataclass(frozen=True)
class EnvConfig:
    """`env.<key>` is one of these fields, else an option of the adapter (kept in `options`, checked by the adapter)."""

    name: str = "alfworld"  # a registered adapter or a dotted path pkg.mod:Class
    max_turns: int = 50  # turn limit; a trajectory cut there counts as terminal
    # history: every turn's prompt is written anew with the last pairs (published). transcript: each turn adds its new
    # observation to what was said before, one training row an episode
    prompt_form: Literal["history", "transcript"] = "history"
    history_length: int = 2  # past (observation, action) pairs in a prompt of the history form
    prompt_tokens: int = 2048  # longest prompt; over it the oldest turns go first
    response_tokens: int = 512  # longest response, end-of-turn token included
    success_reward_scale: float = 1.0  # the adapter's rewards are multiplied by it
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(bool(self.name), "env.name", self.name, "a registered environment or pkg.mod:Class")
        _check(self.max_turns >= 1, "env.max_turns", self.max_turns, ">= 1")
        _check(self.history_length >= 0, "env.history_length", self.history_length, ">= 0")
        _check(self.prompt_tokens >= 8, "env.prompt_tokens", self.prompt_tokens, ">= 8")
        _check(self.response_tokens >= 2, "env.response_tokens", self.response_tokens, ">= 2")


@dataclass(frozen=True)
class WarmStartConfig:
    """Supervised start on expert episodes. On in `tiny`, off in the paper presets."""

    enabled: bool = False  # off: policy 0 is the base model itself
    demonstrations: int = 1000  # expert episodes (at most the adapter's warm_start split)
    epochs: float = 1.0  # passes over the demonstrations' turns
    batch_size: int = 256  # turns an optimizer step
    learning_rate: float = 1e-3  # the highest; a cosine then falls to a tenth of it
    warmup_steps: int = 20  # optimizer steps of linear learning-rate warm-up
    # share of turns at which the demonstrator is made to err; the error is not imitated, the way back from it is
    error_rate: float = 0.0
    stop_at_loss: float = 0.0  # held-out cross-entropy a token (nats) at which it ends before its epochs do; 0: never
    word_permutation: bool = False  # tiny model only: every demonstration with its content words renamed at random

    def __post_init__(self) -> None:
        _check(self.demonstrations >= 1, "warm_start.demonstrations", self.demonstrations, ">= 1")
        _check(0 <= self.error_rate <= 1, "warm_start.error_rate", self.error_rate, "in [0, 1]")
        _check(self.epochs > 0, "warm_start.epochs", self.epochs, "> 0")
        _check(self.batch_size >= 1, "warm_start.batch_size", self.batch_size, ">= 1")
        _check(self.stop_at_loss >= 0, "warm_start.stop_at_loss", self.stop_at_loss, ">= 0")
        _check(self.learning_rate > 0, "warm_start.learning_rate", self.learning_rate, "> 0")


@dataclass(frozen=True)
class RolloutConfig:
    trajectories: int = 128  # an iteration (published); one a task, or a group a task where the algorithm has groups
    temperature: float = 1.0  # sampling temperature; the log-probs carry it too (Eq. 3)
    # who generates: transformers, or vLLM where it is installed (docs/generation.md); may change on resume
    backend: Literal["transformers", "vllm"] = "transformers"
    slots: int = 128  # live episodes a rank, the batch of the decode loop
    workers: int = 0  # environment processes a rank; 0: one a core
    turn_timeout_s: float = 120.0  # an environment that does not answer is restarted
    max_error_share: float = 0.1  # more failed episodes than this stop the stage

    def __post_init__(self) -> None:
        _check(self.trajectories >= 1, "rollout.trajectories", self.trajectories, ">= 1")
        _check(self.temperature > 0, "rollout.temperature", self.temperature, "> 0")
        _check(self.slots >= 1, "rollout.slots", self.slots, ">= 1")
        _check(self.workers >= 0, "rollout.workers", self.workers, ">= 0")
        _check(0 < self.turn_timeout_s <= LONGEST_S, "rollout.turn_timeout_s", self.turn_timeout_s, SECONDS)
        _check(0 <= self.max_error_share <= 1, "rollout.max_error_share", self.max_error_share, "in [0, 1]")


@dataclass(frozen=True)
class AdvantageConfig:
    gamma: float = 0.95  # discount a turn (GiGPO's setting)
    gae_lambda: float = 0.95  # open in the paper; ours
    invalid_action_coef: float = 0.1  # c_inv, reward units (published 0.1)
    epsilon: float = 1e-6  # eps_adv of Eq. 7
    min_std: float = 0.0  # floor of sigma_B, reward units: a batch without variance has no signal to amplify
    score_tokens: int = 16384  # padded tokens a scoring micro-batch

    def __post_init__(self) -> None:
        _check(0 <= self.gamma <= 1, "advantage.gamma", self.gamma, "in [0, 1]")
        _check(0 <= self.gae_lambda <= 1, "advantage.gae_lambda", self.gae_lambda, "in [0, 1]")
        _check(self.invalid_action_coef >= 0, "advantage.invalid_action_coef", self.invalid_action_coef, ">= 0")
        _check(self.epsilon > 0, "advantage.epsilon", self.epsilon, "> 0")
        _check(self.min_std >= 0, "advantage.min_std", self.min_std, ">= 0")
        _check(self.score_tokens >= 1, "advantage.score_tokens", self.score_tokens, ">= 1")


@dataclass(frozen=True)
class OptimizeConfig:
    learning_rate: float = 1e-6  # published
    warmup_steps: int = 0  # optimizer steps of linear learning-rate warm-up
    decay_iterations: int = 0  # in so many iterations the learning rate falls linearly to a tenth; 0: constant
    weight_decay: float = 0.01  # published framework's
    adam_beta1: float = 0.9  # decay of AdamW's first moment
    adam_beta2: float = 0.999  # decay of its second moment
    adam_epsilon: float = 1e-8  # added to the root of the second moment
    max_grad_norm: float = 1.0  # global L2 norm at which gradients are clipped (published)
    epochs: int = 1  # passes over an iteration's turns (published)
    minibatch_size: int = 256  # turns an optimizer step, over all ranks (published: 256 ALFWorld, 64 WebShop)
    microbatch_tokens: int = 16384  # padded tokens a forward on one rank
    clip_low: float = 0.2  # eps below 1 of the ratio
    clip_high: float = 0.2  # eps above 1
    value_clip: float = 0.2  # eps_V in normalised space; open in the paper; ours
    q_clip: float = 0.2  # eps_Q, likewise
    value_coef: float = 0.5  # c_V; open in the paper; ours
    q_coef: float = 0.5  # c_Q, likewise
    kl_coef: float = 0.01  # beta, k3 estimator against the reference
    entropy_coef: float = 0.001  # c_H
    value_warmup_iterations: int = 0  # iterations that train V and Q, or the critic, only, before the policy moves
    value_warmup_kl_coef: float = 1.0  # in these, instead of kl_coef: k3 against the policy that sampled the rollouts
    max_skipped_steps: int = 3  # so many steps in a row whose loss or gradient is not finite stop the run
    zero_stage: Literal[0, 1, 2, 3] = 3  # DeepSpeed ZeRO: what is partitioned over ranks
    # Activations are computed again in the backward pass; auto: where they would not fit into memory.
    gradient_checkpointing: Literal["auto", "always", "never"] = "auto"
    offload_optimizer: bool = False  # fp32 masters and moments in CPU memory
    offload_parameters: bool = False  # partitioned weights in CPU memory (stage 3)

    def __post_init__(self) -> None:
        for name in ("learning_rate", "adam_epsilon", "max_grad_norm"):
            _check(getattr(self, name) > 0, f"optimize.{name}", getattr(self, name), "> 0")
        for name in ("epochs", "minibatch_size", "microbatch_tokens", "max_skipped_steps"):
            _check(getattr(self, name) >= 1, f"optimize.{name}", getattr(self, name), ">= 1")
        for name in ("weight_decay", "value_coef", "q_coef", "kl_coef", "entropy_coef", "value_warmup_kl_coef"):
            _check(getattr(self, name) >= 0, f"optimize.{name}", getattr(self, name), ">= 0")
        for name in ("warmup_steps", "decay_iterations", "value_warmup_iterations"):
            _check(getattr(self, name) >= 0, f"optimize.{name}", getattr(self, name), ">= 0")
        for name in ("adam_beta1", "adam_beta2"):
            _check(0 <= getattr(self, name) < 1, f"optimize.{name}", getattr(self, name), "in [0, 1)")
        _check(0 < self.clip_low < 1, "optimize.clip_low", self.clip_low, "in (0, 1)")
        for name in ("clip_high", "value_clip", "q_clip"):
            _check(getattr(self, name) > 0, f"optimize.{name}", getattr(self, name), "> 0")
        partitioned = not self.offload_parameters or self.zero_stage == 3
        _check(partitioned, "optimize.offload_parameters", True, "false unless optimize.zero_stage is 3")


@dataclass(frozen=True)
class EvaluateConfig:
    every: int = 5  # iterations between evaluations on the way; 0: only before training and at the end
    tasks: int = 128  # games a held-out split at the evaluations on the way (stratified); 0: all
    final_tasks: int = 0  # games a split before training and at the end; 0: all
    temperature: float = 0.4  # published; 0 is greedy
    greedy_too: bool = False  # a second sweep at temperature 0 before training and at the end

    def __post_init__(self) -> None:
        _check(self.every >= 0, "evaluate.every", self.every, ">= 0")
        _check(self.tasks >= 0, "evaluate.tasks", self.tasks, ">= 0")
        _check(self.final_tasks >= 0, "evaluate.final_tasks", self.final_tasks, ">= 0")
        _check(self.temperature >= 0, "evaluate.temperature", self.temperature, ">= 0")


@dataclass(frozen=True)
class CheckpointConfig:
    keep_last: int = 2  # newest policy versions kept with their engine state
    keep_every: int = 0  # besides, every n-th policy's weights are kept; 0: none
    min_free_gib: float = 1.0  # a stage does not start with less free disk than this plus its own estimate

    def __post_init__(self) -> None:
        _check(self.keep_last >= 1, "checkpoint.keep_last", self.keep_last, ">= 1")
        _check(self.keep_every >= 0, "checkpoint.keep_every", self.keep_every, ">= 0")
        _check(self.min_free_gib >= 0, "checkpoint.min_free_gib", self.min_free_gib, ">= 0")


@dataclass(frozen=True)
class LoggingConfig:
    tensorboard: bool = True  # write TensorBoard events beside metrics.jsonl
    wandb: bool = False  # send the same numbers to Weights & Biases (pip install wandb); never waited for
    trackio: bool = False  # or to Trackio (pip install trackio)
    progress: bool = True  # progress bars; plain lines where the output is no terminal


@dataclass(frozen=True)
class Config:
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    value: ValueConfig = field(default_factory=ValueConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    optimize: OptimizeConfig = field(default_factory=OptimizeConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
