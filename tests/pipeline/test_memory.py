"""Memory and disk estimates against arithmetic done by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config_loading import apply_settings, build_config, load_preset, parse_setting
from pipeline.memory import (
    KNOWN_SHAPES,
    PROCESS,
    ModelShape,
    disk_gib,
    model_shape,
    shape_from_config,
    stage_memory,
)

ROOT = Path(__file__).resolve().parents[2]
#                  layers width heads kv head mlp vocabulary tied
SMALL = ModelShape(2, 8, 2, 1, 4, 16, 10, True)


def configured(*settings: str, preset: str = "paper-1.5b"):
    return build_config(apply_settings(load_preset(preset, None), [parse_setting(one) for one in settings]))


def test_parameters_by_hand():
    # a layer: q and out 2*8*8 = 128, k and v 2*8*4 = 64, MLP 3*8*16 = 384, norms 2*8 = 16: 592
    assert SMALL.layer_parameters == 592
    # embedding 10*8 = 80, two layers 1184, last norm 8
    assert SMALL.parameters == 1272


@pytest.mark.parametrize(
    ("name", "published"),
    [("Qwen2.5-0.5B", 494_032_768), ("Qwen2.5-1.5B", 1_543_714_304), ("Qwen2.5-7B", 7_615_616_512),
     ("smollm2-135m", 134_515_008)],
)  # fmt: skip
def test_known_shapes_have_the_published_number_of_parameters(name, published):
    assert KNOWN_SHAPES[name].parameters == published


def test_a_shape_agrees_with_transformers(tmp_path):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
                         num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)  # fmt: skip
    model = Qwen2ForCausalLM(config)
    config.save_pretrained(tmp_path)
    shape = shape_from_config(json.loads((tmp_path / "config.json").read_text()))
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert model_shape(configured(f"model.name={tmp_path}")) == shape


def test_an_unknown_model_has_no_shape(tmp_path):
    assert model_shape(configured("model.name=someone/some-model")) is None
    (tmp_path / "config.json").write_text("{}")
    assert model_shape(configured(f"model.name={tmp_path}")) is None


def test_stage_memory_by_hand():
    config = configured(
        "model.dtype=bfloat16", "optimize.zero_stage=3", "optimize.gradient_checkpointing=never",
        "optimize.microbatch_tokens=100", "advantage.score_tokens=50", "rollout.slots=6",
        "env.prompt_tokens=20", "env.response_tokens=10",
    )  # fmt: skip
    memory = stage_memory(config, SMALL, ranks=2)
    engine = {
        "weights": 1272 * 2 // 2,
        "fp32 masters": 1272 * 4 // 2,
        "Adam moments": 1272 * 8 // 2,
    }
    # a token keeps in a layer: 4*8 + 2*8 + 2*4 + 4*16 = 120 elements; logits: 3 buffers in fp32 for the 10 response
    # positions of each row of 30 tokens, 3 rows of which fit into 100 tokens
    logits = 3 * 4 * 3 * 10 * 10
    assert memory["optimize"] == {
        **engine,
        "gradients": 1272 * 4 // 2,
        "gradients of the step": 1272 * 4 // 2,  # flattened for Adam, beside those that were accumulated
        "embedding gradients": 3 * 2 * 80,
        "reduce buckets": 2 * 1272,  # smaller than DeepSpeed's bucket
        "activations": 2 * 100 * 2 * 120,
        "logits": logits,
        "gathered weights": 2 * 1272,  # fewer than 10^9 elements: they stay gathered
        "replica": 1272 * 2,
        "process": PROCESS,
    }
    # keys and values: 6 slots of 30 tokens, 2 layers, 2 tensors of 4 elements of 2 bytes
    cache = 6 * 30 * 2 * 2 * 4 * 2
    played = {**engine, "replica": 1272 * 2, "KV cache": cache, "logits": 6 * 10 * 4 * 3, "process": PROCESS}
    assert memory["collect_rollouts"] == memory["evaluate"] == played
    assert memory["compute_advantages"] == {
        **engine, "replica": 1272 * 2, "activations": 2 * 50 * 120, "logits": 3 * 4 * 1 * 10 * 10, "process": PROCESS,
    }  # fmt: skip
    assert memory["reserve_vocab"] == {"process": PROCESS}
    assert "warm_start" not in memory


def test_on_a_gpu_the_engine_of_zero_3_is_in_host_memory_while_others_work():
    config = configured("optimize.zero_stage=3", "optimize.offload_optimizer=true", "model.dtype=bfloat16")
    memory = stage_memory(config, SMALL, 1, "cuda")
    for stage in ("collect_rollouts", "compute_advantages", "evaluate"):
        host = {part: size for part, size in memory[stage].items() if part.startswith("host")}
        assert host == {
            "host weights": 2 * 1272,
            "host fp32 masters": 4 * 1272,
            "host Adam moments": 8 * 1272,
            "host process": PROCESS,
        }
        assert memory[stage]["replica"] == 2 * 1272 and "weights" not in memory[stage]
    assert memory["optimize"]["weights"] == 2 * 1272  # back on the GPU, and the replica is still there
    assert memory["optimize"]["replica"] == 2 * 1272
    for stays in ("optimize.zero_stage=2", "optimize.offload_parameters=true"):
        config = configured(stays, "model.dtype=bfloat16")
        on_gpu, on_cpu = (stage_memory(config, SMALL, 1, device)["evaluate"].keys() for device in ("cuda", "cpu"))
        assert on_gpu - {"host process"} == on_cpu - {"process"}


def test_a_critic_by_hand():
    """The decoder without an output matrix (SMALL is tied: 1272 weights): its engine, gradients and replica."""
    small = ("model.dtype=bfloat16", "optimize.zero_stage=3", "algorithm.name=ppo")
    memory = stage_memory(configured(*small), SMALL, ranks=2)
    engine = {
        "critic's weights": 2 * 1272 // 2,
        "critic's fp32 masters": 4 * 1272 // 2,
        "critic's Adam moments": 8 * 1272 // 2,
        "critic's gradients": 4 * 1272 // 2,
    }
    for stage in ("collect_rollouts", "compute_advantages", "optimize", "evaluate"):
        found = {part: size for part, size in memory[stage].items() if "critic" in part}
        assert found == {**engine, "critic's replica": 2 * 1272}
    # untied: the policy has 80 more weights in its head, the critic has not
    untied = stage_memory(configured(*small), replace(SMALL, tied=False), 2)["optimize"]
    assert untied["replica"] == 2 * 1352 and untied["critic's replica"] == 2 * 1272
    on_gpu = stage_memory(configured(*small), SMALL, 2, "cuda")
    assert on_gpu["evaluate"]["host critic's weights"] == 1272 and "critic's weights" in on_gpu["optimize"]
    assert not any("critic" in part for part in stage_memory(configured("algorithm.name=grpo"), SMALL, 2)["optimize"])


def test_a_critic_doubles_what_the_optimize_stage_writes():
    sapo, ppo = (configured("model.name=Qwen2.5-0.5B", f"algorithm.name={name}") for name in ("sapo", "ppo"))
    assert disk_gib(ppo, "optimize", None) == 2 * disk_gib(sapo, "optimize", None)
    first = disk_gib(ppo, "compute_advantages", None) - disk_gib(sapo, "compute_advantages", None)
    assert first > 2 * 494_032_768 / 2**30  # the first critic in bf16, and one more number a token


def test_the_buckets_and_subgroups_of_a_large_model():
    """A bucket on the CPU has 5e7 elements, on a GPU 2e8, twice where stage 2 overlaps; a step takes 1e9 at a time."""
    wide = replace(SMALL, vocabulary=2**28)  # 2^31 weights in the embedding alone
    zero_3 = configured("optimize.zero_stage=3", "model.dtype=bfloat16")
    zero_2 = configured("optimize.zero_stage=2", "model.dtype=bfloat16")
    assert stage_memory(zero_3, wide, 4)["optimize"]["reduce buckets"] == 2 * 5 * 10**7
    assert stage_memory(zero_3, wide, 4, "cuda")["optimize"]["reduce buckets"] == 2 * 2 * 10**8
    assert stage_memory(zero_2, wide, 4, "cuda")["optimize"]["reduce buckets"] == 2 * 2 * 2 * 10**8
    assert stage_memory(zero_3, wide, 1)["optimize"]["gradients of the step"] == 4 * 10**9
    assert stage_memory(zero_2, wide, 1)["optimize"]["gradients of the step"] == 4 * wide.parameters
    assert stage_memory(zero_3, wide, 4)["optimize"]["gathered weights"] == 2 * 10**9
    offloaded = stage_memory(configured("optimize.offload_optimizer=true"), wide, 1)["optimize"]
    assert "host gradients" in offloaded and "gradients" not in offloaded
    none = stage_memory(configured("optimize.zero_stage=0"), wide, 1)["optimize"]
    assert "reduce buckets" not in none and "gradients of the step" not in none


def test_estimates_against_the_measured_peaks():
    """Qwen2.5-0.5B's shape in float32, each stage in a process of its own: no other stage's engine or replica."""
    measured = json.loads((ROOT / "benchmarks" / "results" / "stages.json").read_text())["qwen2.5-0.5b"]
    peaks = {line["stage"].split()[0]: line["peak_gib"] for line in measured["lines"]}
    tree = load_preset("tiny", "alfworld")
    config = build_config(apply_settings(tree, [*measured["settings"].items(), ("model.name", "Qwen2.5-0.5B")]))
    memory = stage_memory(config, KNOWN_SHAPES["Qwen2.5-0.5B"], 1)
    absent = {"optimize": {"replica"}} | dict.fromkeys(
        ("collect_rollouts", "compute_advantages"), {"weights", "fp32 masters", "Adam moments"}
    )
    for stage, peak in peaks.items():
        estimate = sum(size for part, size in memory[stage].items() if part not in absent.get(stage, ())) / 2**30
        assert peak / 1.1 < estimate < 1.1 * peak, (stage, estimate, peak)


def test_logits_of_many_positions_come_in_chunks():
    wide = replace(SMALL, vocabulary=2**18)  # a chunk is 2^24 / 2^18 = 64 positions
    config = configured("env.prompt_tokens=20", "env.response_tokens=10", "optimize.microbatch_tokens=3000")
    assert stage_memory(config, wide, 1)["optimize"]["logits"] == 3 * 4 * 64 * 2**18  # of 100 * 10 positions


def test_checkpointing_offload_and_stages_of_zero():
    base = ("optimize.microbatch_tokens=100", "env.prompt_tokens=20", "env.response_tokens=10", "model.dtype=bfloat16")
    checkpointed = stage_memory(configured(*base, "optimize.gradient_checkpointing=always"), SMALL, 1)["optimize"]
    # the inputs of two layers, 8 elements each, and one whole layer of 120
    assert checkpointed["activations"] == 2 * 100 * (2 * 8 + 120)
    assert "gathered weights" not in checkpointed
    offloaded = stage_memory(configured(*base, "optimize.offload_optimizer=true"), SMALL, 1)["optimize"]
    assert offloaded["host fp32 masters"] == 4 * 1272 and "fp32 masters" not in offloaded
    one = stage_memory(configured(*base, "optimize.zero_stage=1"), SMALL, 2)["optimize"]
    assert (one["weights"], one["gradients"], one["fp32 masters"]) == (2 * 1272, 4 * 1272, 2 * 1272)


def test_disk_by_hand(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"0" * 1000)  # 500 bf16 weights
    (tmp_path / "tokenizer.json").write_bytes(b"0" * 77)
    config = configured("rollout.trajectories=4", "env.max_turns=5", "env.prompt_tokens=20", "env.response_tokens=10")
    # policy 1000 bytes; engine: weights 1000, masters 2000, moments 4000
    assert disk_gib(config, "optimize", tmp_path) * 2**30 == pytest.approx(8000)
    assert disk_gib(config, "collect_rollouts", tmp_path) * 2**30 == pytest.approx(4 * 5 * 30 * 12)
    assert disk_gib(config, "export", tmp_path) * 2**30 == pytest.approx(1000)
    assert disk_gib(config, "reserve_vocab", None) * 2**30 == pytest.approx(2 * 1_543_714_304)


def test_vllm_keeps_weights_and_a_cache_of_its_own():
    plain = stage_memory(configured(), SMALL, 1)
    vllm = stage_memory(configured("rollout.backend=vllm"), SMALL, 1)
    # bf16: 2 * 1272 parameters; 128 slots of 2048 + 512 tokens, keys and values of 2 layers, 4 numbers each
    added = {"vLLM's weights": 2544, "vLLM's KV cache": 128 * 2560 * 2 * 2 * 4 * 2}
    for stage in ("compute_advantages", "optimize"):
        assert vllm[stage] == {**plain[stage], **added}
    assert plain["collect_rollouts"]["KV cache"] == added["vLLM's KV cache"]
    assert sum(vllm["collect_rollouts"].values()) == sum(plain["collect_rollouts"].values()) + 2544
