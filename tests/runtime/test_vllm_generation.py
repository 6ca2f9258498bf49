"""The backend on vLLM against the one on transformers and against the scoring pass, on the same random models."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from runtime.generation import TransformersGenerator
from runtime.generator import GenerationError, Request
from runtime.microbatches import token_batch
from runtime.model import load_policy
from runtime.rows import rows_of_turns
from runtime.seeding import uniforms
from runtime.vocabulary import ValueTokens, write_value_tokens
from runtime.weight_files import ModelFilesError, policy_fingerprint
from tests.trajectories import trajectory

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (requirements-vllm.txt)"),
]

VOCABULARY, EOS, PLUS, MINUS = 50, 1, 48, 49
BANNED, STOPS = (PLUS, MINUS), (EOS, 7)
MAX_PROMPT, MAX_RESPONSE, SLOTS = 200, 12, 32
TURN = trajectory("t", 1).turns[0]


def save_model(folder: Path, seed: int, tied: bool = True, **changes) -> Path:
    """A random Qwen2 with heads of 32, the least that vLLM knows on a CPU."""
    settings = dict(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256, bos_token_id=0, eos_token_id=EOS, pad_token_id=EOS,
        tie_word_embeddings=tied, initializer_range=0.08,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(Qwen2Config(**{**settings, **changes})).eval()
    with torch.no_grad():
        for weight in model.parameters():  # those that a fresh model has at 0 and 1
            if weight.ndim == 1:
                weight.add_(torch.randn(weight.shape) * 0.3)
        head = model.get_output_embeddings().weight
        head[PLUS] = 30 * head[5]  # huge logits: one of the two is far above everything, whatever the hidden state
        head[MINUS] = -30 * head[5]
    model.save_pretrained(folder)
    write_value_tokens(folder, ValueTokens(PLUS, MINUS, r_max=10.0, temperature=1.0, fingerprint="test"))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {(seed, tied): save_model(root / f"{seed}-{tied}", seed, tied) for seed in (0, 1) for tied in (True, False)}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def tied(request):
    return request.param


@pytest.fixture(scope="module")
def engine(folders, tied):
    from runtime.vllm_generation import VllmEngine

    folder = folders[0, tied]
    return VllmEngine(
        folder, policy_fingerprint(folder), dtype="float32", slots=SLOTS, max_prompt=MAX_PROMPT,
        max_response=MAX_RESPONSE,
    )  # fmt: skip


def on_vllm(engine, folder, temperature, slots=SLOTS, stops=STOPS):
    from runtime.vllm_generation import VllmGenerator

    engine.refresh(folder, policy_fingerprint(folder))
    return VllmGenerator(engine, slots, temperature, BANNED, stops)


def on_transformers(folder, temperature, stops=STOPS):
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return TransformersGenerator(model, SLOTS, MAX_PROMPT, MAX_RESPONSE, temperature, BANNED, stops)


def requests(n: int = 20, run_seed: int = 0) -> list[Request]:
    """Prompts of 1 to 198 tokens; every other one begins with the same 130: vLLM keeps blocks of 128."""
    random = np.random.default_rng(0)
    shared = tuple(random.integers(2, 48, 130).tolist())
    found = []
    for key in range(n):
        own = tuple(random.integers(2, 48, random.integers(1, 69)).tolist())
        numbers = uniforms(run_seed, 1, f"task-{key}", 0, 0, MAX_RESPONSE)
        found.append(Request(key, shared + own if key % 2 else own, numbers))
    return found


def finish(generator, asked=()) -> dict:
    done = {}
    for request in asked:
        generator.submit(request)
    while not generator.idle:
        for completion in generator.step():
            assert completion.key not in done
            done[completion.key] = completion
    return done


def responses(done) -> dict:
    return {key: (one.response_ids, one.stopped) for key, one in done.items()}


def check_scores(folder, temperature, asked, done) -> None:
    """Sampling log-probs are those of the scoring pass, which is the training's code."""
    policy = load_policy(folder, dtype="float32", temperature=temperature or 1.0).eval()
    for request in asked:
        one = done[request.key]
        turn = dataclasses.replace(TURN, prompt_ids=tuple(request.prompt_ids), response_ids=one.response_ids)
        with torch.no_grad():
            output = policy(token_batch(rows_of_turns("t", [turn])))
        assert one.sampling_logprobs == pytest.approx(output.logprobs.tolist(), abs=1e-4)


def test_more_prompts_at_once_than_one_step_takes(engine, folders, tied):
    """On a CPU vLLM 0.32 breaks where it prefills a prompt in parts and the request has a seed."""
    random, folder = np.random.default_rng(0), folders[0, tied]
    asked = [
        dataclasses.replace(request, prompt_ids=tuple(random.integers(2, 48, MAX_PROMPT).tolist()))
        for request in requests(2 * SLOTS)
    ]  # a full batch of 32 * 200 = 6,400 tokens
    done = finish(on_vllm(engine, folder, 1.0), asked)
    assert len(done) == 2 * SLOTS
    check_scores(folder, 1.0, asked[:5], done)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_log_probs_are_the_scoring_passs_and_value_tokens_never_come_out(engine, folders, tied, temperature):
    folder, asked = folders[0, tied], requests()
    done = finish(on_vllm(engine, folder, temperature), asked)
    assert sorted(done) == list(range(20))
    check_scores(folder, temperature, asked, done)
    sampled = [token for one in done.values() for token in one.response_ids]
    assert len(sampled) > 50 and not {PLUS, MINUS} & set(sampled)


def test_greedy_tokens_are_those_of_the_other_backend_before_and_after_other_weights(engine, folders, tied):
    asked, found, stops = requests(), {}, range(1, 12)
    for seed in (0, 1, 0):
        folder = folders[seed, tied]
        done = finish(on_vllm(engine, folder, 0.0, stops=stops), asked)
        assert responses(done) == responses(finish(on_transformers(folder, 0.0, stops), asked))
        check_scores(folder, 0.0, asked, done)
        assert responses(done) == found.setdefault(seed, responses(done))
    differ = [key for key in found[0] if found[0][key] != found[1][key]]
    assert len(differ) > 10
    assert len({len(ids) for ids, _ in found[0].values()}) > 1  # some stop early, or this test is blind


def test_a_response_depends_on_its_own_request_alone(engine, folders, tied):
    folder, asked = folders[0, tied], requests()
    together = responses(finish(on_vllm(engine, folder, 1.0), asked))
    assert responses(finish(on_vllm(engine, folder, 1.0), reversed(asked))) == together
    generator, apart = on_vllm(engine, folder, 1.0, slots=1), {}
    for request in asked[:6]:
        apart |= responses(finish(generator, [request]))
    assert apart == {key: together[key] for key in range(6)}
    others = responses(finish(on_vllm(engine, folder, 1.0), requests(run_seed=1)))
    assert sum(others[key] != together[key] for key in together) > 10


def test_requests_come_and_go_and_a_new_generator_forgets_what_an_old_one_left(engine, folders, tied):
    folder, asked = folders[0, tied], requests()
    together = responses(finish(on_vllm(engine, folder, 1.0), asked))
    generator, done = on_vllm(engine, folder, 1.0), {}
    assert generator.idle and generator.step() == []
    for request in asked:  # a new one at every step while others are in the middle
        generator.submit(request)
        done |= {one.key: one for one in generator.step()}
    assert done and len(done) < 20 and not generator.idle
    assert responses(done | finish(generator)) == together
    generator.submit(asked[0])
    generator.step()
    assert responses(finish(on_vllm(engine, folder, 1.0), asked[1:3])) == {key: together[key] for key in (1, 2)}


def test_stops_at_every_stop_token_and_at_the_length_limit(engine, folders, tied):
    folder, asked = folders[0, tied], requests(40)
    done = finish(on_vllm(engine, folder, 1.0), asked)
    assert {one.response_ids[-1] for one in done.values() if one.stopped} == set(STOPS)
    for one in done.values():
        assert not set(STOPS) & set(one.response_ids[:-1])
        assert one.stopped == (one.response_ids[-1] in STOPS)
        assert one.stopped or len(one.response_ids) == MAX_RESPONSE
    assert any(not one.stopped for one in done.values())
    longest = tuple(range(2, 46)) * 5
    (cut,) = finish(
        on_vllm(engine, folder, 1.0, stops=(46,)), [Request(0, longest[:MAX_PROMPT], asked[0].uniforms)]
    ).values()
    assert cut.stopped or len(cut.response_ids) == MAX_RESPONSE


def test_a_conversation_is_served_from_the_cache_of_prefixes(engine, folders, tied):
    folder = folders[0, tied]
    random = np.random.default_rng(3)
    new = [tuple(random.integers(2, 48, count).tolist()) for count in (65, 65, 40)]
    mine, theirs, found = on_vllm(engine, folder, 0.0), on_transformers(folder, 0.0), []
    engine.llm.reset_prefix_cache()
    lengths = [0, 0, 0]
    for generator in (mine, theirs):
        context, said = (), []
        for turn in range(3):
            context += new[turn]
            lengths[turn] = len(context)
            numbers = uniforms(0, 1, "talk", 0, turn, MAX_RESPONSE)
            (one,) = finish(generator, [Request("talk", context, numbers, conversation=0)]).values()
            context += one.response_ids
            said.append(one.response_ids)
        generator.forget(0)
        found.append(said)
    assert found[0] == found[1]
    assert mine.num_prompt_tokens == sum(lengths) - 128  # the one whole block that both turns have


def test_what_does_not_fit_is_refused(engine, folders, tied, tmp_path):
    folder, asked = folders[0, tied], requests(1)
    generator = on_vllm(engine, folder, 1.0)
    for prompt in ((), (2,) * (MAX_PROMPT + 1)):
        with pytest.raises(GenerationError, match="allowed are 1 to 200"):
            generator.submit(Request(0, prompt, asked[0].uniforms))
    with pytest.raises(GenerationError, match="uniform numbers"):
        generator.submit(Request(0, (3,), asked[0].uniforms[:5]))
    with pytest.raises(GenerationError, match="end-of-turn"):
        on_vllm(engine, folder, 1.0, stops=())
    other = save_model(tmp_path / "other", 0, tied, num_hidden_layers=1)
    with pytest.raises(ModelFilesError, match="layers.1.* is missing"):
        on_vllm(engine, other, 1.0)
    assert engine.policy == policy_fingerprint(folder)  # still whole
    assert finish(on_vllm(engine, folder, 1.0), asked)


def test_heads_that_a_cpu_cannot_are_one_line(tmp_path):
    from runtime.vllm_generation import VllmEngine

    if torch.cuda.is_available():
        pytest.skip("a GPU can")
    folder = save_model(tmp_path / "small", 0, hidden_size=16)
    with pytest.raises(GenerationError, match="attention heads of 8 numbers.*rollout.backend=transformers"):
        VllmEngine(folder, "x", dtype="float32", slots=2, max_prompt=20, max_response=4)


def test_logits_of_a_diverged_policy_are_one_line(engine, folders, tied, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = save_model(tmp_path / "diverged", 0, tied)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for temperature in (0.0, 1.0):
        generator = on_vllm(engine, folder, temperature)
        with pytest.raises(GenerationError, match="logits are not finite"):
            finish(generator, requests(2))
    done = finish(on_vllm(engine, folders[0, tied], 0.0), requests(2))
    assert responses(done) == responses(finish(on_transformers(folders[0, tied], 0.0), requests(2)))
