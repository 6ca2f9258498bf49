"""How much memory a rank needs in each stage, and how much disk: estimates from a model's shape, before any start.

The activation count is that of a pre-norm decoder with a gated MLP and fused attention: no [T, T] matrix is kept.
The parts of a stage are added up although some follow each other (the backward pass, the optimizer's step): on a CPU
the C library keeps most of what was freed, and the measured peaks are those sums (benchmarks/results/stages.json).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.config import Config
from runtime.algorithms import algorithm_class
from runtime.deepspeed_settings import deepspeed_config
from runtime.files import GIB, gib
from runtime.logprobs import chunk_size

FP32 = 4  # bytes
PROCESS = GIB // 2  # Python, torch, transformers and DeepSpeed, before anything of a model (measured)
LOGIT_BUFFERS = 3  # a chunk's logits, their log-softmax and its gradient
EMBEDDING_GRADIENTS = 3  # whole ones: the head's, the embedding's, and their sum or the copy that is reduced (measured)
SUB_GROUP = 10**9  # elements; DeepSpeed's stage 3 steps over so many at a time (sub_group_size)
LIVE_WEIGHTS = 10**9  # elements that stage 3 leaves gathered (stage3_max_live_parameters)
JSON_BYTES_A_TOKEN = 12  # a token id and its log-prob in a rollout line, text included


@dataclass(frozen=True)
class ModelShape:
    """What of a config.json decides memory."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    mlp_width: int
    vocabulary: int
    tied: bool
    qkv_bias: bool = False

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_width

    @property
    def layer_parameters(self) -> int:
        q_and_out = 2 * self.width * self.attention_width
        k_and_v = 2 * self.width * self.kv_width
        biases = self.attention_width + 2 * self.kv_width if self.qkv_bias else 0
        return q_and_out + k_and_v + biases + self.mlp_parameters + 2 * self.width

    @property
    def mlp_parameters(self) -> int:
        return 3 * self.width * self.mlp_width

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        matrices = 1 if self.tied else 2
        return matrices * self.embedding_parameters + self.layers * self.layer_parameters + self.width

    @property
    def layer_activations(self) -> int:
        """Elements a token that one layer keeps for its backward pass.

        Two norms with their inputs (4 D), q and the attention's output, k and v, and of the gated MLP the gate,
        its activation, the other branch and the product.
        """
        return 4 * self.width + 2 * self.attention_width + 2 * self.kv_width + 4 * self.mlp_width


# From the public config.json files, so that a dry run needs no download.
KNOWN_SHAPES = {
    "Qwen2.5-0.5B": ModelShape(24, 896, 14, 2, 64, 4864, 151936, True, True),
    "Qwen2.5-1.5B": ModelShape(28, 1536, 12, 2, 128, 8960, 151936, True, True),
    "Qwen2.5-7B": ModelShape(28, 3584, 28, 4, 128, 18944, 152064, False, True),
    "smollm2-135m": ModelShape(30, 576, 9, 3, 64, 1536, 49152, True),
}
TINY_VOCABULARY = 512  # at most: the words of the environment


def shape_from_config(data: Mapping) -> ModelShape:
    """A shape from a config.json's fields (Llama and Qwen2 families)."""
    heads, width = data["num_attention_heads"], data["hidden_size"]
    return ModelShape(
        layers=data["num_hidden_layers"],
        width=width,
        heads=heads,
        kv_heads=data.get("num_key_value_heads") or heads,
        head_width=data.get("head_dim") or width // heads,
        mlp_width=data["intermediate_size"],
        vocabulary=data["vocab_size"],
        tied=data.get("tie_word_embeddings", False),
        qkv_bias=data.get("model_type") == "qwen2",
    )


def model_shape(config: Config) -> ModelShape | None:
    """The shape of `model.name` where it is known without a download, else None."""
    name = config.model.name
    if name == "tiny":
        width, heads = config.model.tiny_width, config.model.tiny_heads
        head_width = width // heads
        return ModelShape(config.model.tiny_layers, width, heads, heads, head_width, 4 * width, TINY_VOCABULARY, True)
    short = name.removeprefix("Qwen/").removesuffix("-Instruct")
    if short in KNOWN_SHAPES:
        return KNOWN_SHAPES[short]
    try:
        return shape_from_config(json.loads((Path(name) / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def bytes_of(dtype: str) -> int:
    return {"float32": 4, "bfloat16": 2}[dtype]


def stage_memory(config: Config, shape: ModelShape, ranks: int, device: str = "cpu") -> dict[str, dict[str, int]]:
    """Bytes a rank, by stage and part, in an iteration after the first: engine and replica stay between the stages.

    Parts named "host ..." are in CPU memory, on a GPU machine too.

    Args:
        device: "cuda": under ZeRO-3 the engine moves to CPU memory between the stages that train.
    """
    critic = critic_memory(config, shape, ranks)
    idle = idle_engine(config, {**engine_memory(config, shape, ranks), **critic}, device)
    size = bytes_of(config.model.dtype)
    longest = config.env.prompt_tokens + config.env.response_tokens
    replica = {"replica": size * shape.parameters}
    if critic:
        replica["critic's replica"] = size * critic_shape(shape).parameters
    training = training_memory(config, shape, ranks, device)
    cache = {"KV cache": config.rollout.slots * longest * 2 * shape.layers * shape.kv_width * size}
    if config.rollout.backend == "vllm":  # weights of its own, and both stay
        replica |= {"vLLM's weights": size * shape.parameters, "vLLM's KV cache": cache.pop("KV cache")}
    playing = {
        **idle,
        **replica,
        **cache,
        "logits": config.rollout.slots * shape.vocabulary * FP32 * LOGIT_BUFFERS,
    }
    scoring = {
        **idle,
        **replica,
        "activations": size * max(config.advantage.score_tokens, longest) * shape.layer_activations,
        "logits": logit_bytes(shape, response_positions(config, config.advantage.score_tokens)),
    }
    stages: dict[str, dict[str, int]] = {"reserve_vocab": {}}  # weights pass through as a stream
    if config.warm_start.enabled:
        stages["warm_start"] = training  # nothing has been played yet, so there is no replica
    stages |= {"collect_rollouts": playing, "compute_advantages": scoring}
    stages |= {"optimize": {**training, **critic, **replica}, "evaluate": playing}
    process = "process" if device == "cpu" else "host process"
    return {stage: {**parts, process: PROCESS} for stage, parts in stages.items()}


def critic_shape(shape: ModelShape) -> ModelShape:
    """A critic of the policy's size: the same decoder, without an output matrix (its head is one row)."""
    return replace(shape, tied=True)


def critic_memory(config: Config, shape: ModelShape, ranks: int) -> dict[str, int]:
    """Bytes a rank of a critic's engine, its gradients included, which stay between its steps; {} without a critic.

    What a micro-batch needs beside it is not counted: the policy's comes after it, and is larger.
    """
    if not algorithm_class(config.algorithm.name).critic:
        return {}
    own = critic_shape(shape)
    optimize = config.optimize
    engine = engine_memory(config, own, ranks)
    gradients = FP32 * own.parameters // (ranks if optimize.zero_stage >= 2 else 1)
    engine["host gradients" if optimize.offload_optimizer else "gradients"] = gradients
    return {
        f"host critic's {part.removeprefix('host ')}" if part.startswith("host ") else f"critic's {part}": size
        for part, size in engine.items()
    }


def training_memory(config: Config, shape: ModelShape, ranks: int, device: str) -> dict[str, int]:
    """Bytes a rank while it trains: the engine and what a micro-batch and an optimizer step need beside it."""
    optimize, env, size = config.optimize, config.env, bytes_of(config.model.dtype)
    tokens = max(optimize.microbatch_tokens, env.prompt_tokens + env.response_tokens)
    own = shape.parameters // (ranks if optimize.zero_stage >= 1 else 1)
    host = "host " if optimize.offload_optimizer else ""
    parts = {
        **engine_memory(config, shape, ranks),
        f"{host}gradients": FP32 * (own if optimize.zero_stage >= 2 else shape.parameters),
        "embedding gradients": EMBEDDING_GRADIENTS * size * shape.embedding_parameters,
        "activations": size * activation_elements(shape, tokens, optimize.gradient_checkpointing == "always"),
        "logits": logit_bytes(shape, response_positions(config, optimize.microbatch_tokens)),
    }
    if optimize.zero_stage >= 1:
        parts[f"{host}gradients of the step"] = FP32 * (min(own, SUB_GROUP) if optimize.zero_stage == 3 else own)
        zero = deepspeed_config(
            zero_stage=optimize.zero_stage,
            dtype=config.model.dtype,
            max_grad_norm=optimize.max_grad_norm,
            device=device,
        )["zero_optimization"]
        buckets = 2 if zero["overlap_comm"] and optimize.zero_stage < 3 else 1
        parts["reduce buckets"] = size * buckets * min(zero["reduce_bucket_size"], shape.parameters)
    if optimize.zero_stage == 3 and ranks > 1:
        parts["gathered weights"] = size * min(shape.parameters, LIVE_WEIGHTS)
    return parts


def engine_memory(config: Config, shape: ModelShape, ranks: int) -> dict[str, int]:
    """Weights, fp32 masters and the two Adam moments of one rank under ZeRO."""
    optimize, count = config.optimize, shape.parameters
    weights = bytes_of(config.model.dtype) * count // (ranks if optimize.zero_stage == 3 else 1)
    shared = ranks if optimize.zero_stage >= 1 else 1
    return {
        ("host weights" if optimize.offload_parameters else "weights"): weights,
        ("host fp32 masters" if optimize.offload_optimizer else "fp32 masters"): FP32 * count // shared,
        ("host Adam moments" if optimize.offload_optimizer else "Adam moments"): 2 * FP32 * count // shared,
    }


def idle_engine(config: Config, engine: Mapping[str, int], device: str) -> dict[str, int]:
    """The engine's parts while another stage has the device; the rule is TrainingEngine's."""
    moves = device == "cuda" and config.optimize.zero_stage == 3 and not config.optimize.offload_parameters
    return {part if part.startswith("host ") or not moves else f"host {part}": size for part, size in engine.items()}


def activation_elements(shape: ModelShape, tokens: int, checkpointing: bool) -> int:
    """Elements kept for a micro-batch's backward pass; with checkpointing each layer's input and one whole layer."""
    if checkpointing:
        return tokens * (shape.layers * shape.width + shape.layer_activations)
    return tokens * shape.layers * shape.layer_activations


def response_positions(config: Config, tokens: int) -> int:
    """Response positions of a micro-batch of the longest rows; one row where not even that one fits."""
    env = config.env
    return max(1, tokens // (env.prompt_tokens + env.response_tokens)) * env.response_tokens


def logit_bytes(shape: ModelShape, positions: int) -> int:
    """Logits exist for one chunk of response positions at a time."""
    return min(chunk_size(shape.vocabulary), positions) * shape.vocabulary * FP32 * LOGIT_BUFFERS


def disk_gib(config: Config, stage: str, policy: Path | None) -> float:
    """What a stage may write before anything older is removed.

    Args:
        policy: the folder of the policy that the stage starts from, where there is one.
    """
    weights = 0
    if policy is not None and policy.is_dir():
        weights = sum(path.stat().st_size for path in policy.glob("*.safetensors"))
    elif (shape := model_shape(config)) is not None:
        weights = bytes_of(config.model.dtype) * shape.parameters
    state = weights + weights // bytes_of(config.model.dtype) * 3 * FP32  # weights, masters, two moments
    critics = int(algorithm_class(config.algorithm.name).critic)
    tokens = config.env.max_turns * (config.env.prompt_tokens + config.env.response_tokens)
    games = max(config.rollout.trajectories, config.evaluate.tasks)
    written = {
        "reserve_vocab": weights,
        "warm_start": weights + state,
        "optimize": (1 + critics) * (weights + state),
        "collect_rollouts": config.rollout.trajectories * tokens * JSON_BYTES_A_TOKEN,
        "compute_advantages": config.rollout.trajectories
        * config.env.max_turns
        * config.env.response_tokens
        * (4 + critics)
        * FP32
        + critics * weights,  # the first critic
        "evaluate": games * tokens * JSON_BYTES_A_TOKEN,
        "export": weights,
    }
    return written[stage] / GIB


def table(memory: Mapping[str, Mapping[str, int]]) -> str:
    """One line a stage: the total and its parts in GiB."""
    lines = []
    for stage, parts in memory.items():
        device = sum(size for part, size in parts.items() if not part.startswith("host"))
        host = sum(parts.values()) - device
        shown = ", ".join(f"{part} {gib(size)}" for part, size in parts.items())
        total = f"{gib(device)}" + (f" + {gib(host)} host" if host else "")
        lines.append(f"  {stage:<20}{total:<24}{shown}")
    return "\n".join(lines)
