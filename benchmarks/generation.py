"""The decode loop against transformers' `generate` on the same requests: seconds, tokens a second, and their ratio.

    python -m benchmarks.generation [--requests 256] [--slots 64] [--width 128] [--layers 4] [--out result.json]

Random weights of the tiny model's shape, prompts of 110 to 180 tokens, responses of about 9. `generate` gets batches
of `slots` left-padded prompts, the next batch when the last row of one has ended; it stops at the same tokens and its
sampling is as plain as ours (no top-k, no top-p). Both sides run three times, turn about; the medians count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from runtime.generation import TransformersGenerator
from runtime.generator import Request
from runtime.seeding import uniforms

VOCABULARY, MAX_RESPONSE, REPETITIONS = 256, 16, 3
PLUS, MINUS = 254, 255
STOPS = list(range(1, 28))  # 27 of 256 tokens end a response: about 9 tokens on random weights


def make_model(width: int, layers: int) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=True,
        pad_token_id=0, eos_token_id=STOPS, attn_implementation="sdpa",
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def continuous(model: Qwen2ForCausalLM, prompts: list[tuple[int, ...]], slots: int, temperature: float) -> list:
    generator = TransformersGenerator(model, slots, 200, MAX_RESPONSE, temperature, (PLUS, MINUS), STOPS)
    for key, prompt in enumerate(prompts):
        generator.submit(Request(key, prompt, uniforms(0, 1, f"task-{key}", 0, 0, MAX_RESPONSE)))
    done = {}
    while not generator.idle:
        done |= {one.key: one.response_ids for one in generator.step()}
    return [done[key] for key in range(len(prompts))]


@torch.inference_mode()
def batched(model: Qwen2ForCausalLM, prompts: list[tuple[int, ...]], slots: int, temperature: float) -> list:
    how = (
        {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        if temperature
        else {"do_sample": False}
    )
    responses = []
    for first in range(0, len(prompts), slots):
        batch = prompts[first : first + slots]
        longest = max(map(len, batch))
        ids = torch.tensor([(0,) * (longest - len(prompt)) + prompt for prompt in batch])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch])
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=MAX_RESPONSE, suppress_tokens=[PLUS, MINUS], pad_token_id=0, **how
        )
        responses += [until_stop(row) for row in out[:, longest:].tolist()]
    return responses


def until_stop(ids: list[int]) -> tuple[int, ...]:
    end = next((i + 1 for i, token in enumerate(ids) if token in STOPS), len(ids))
    return tuple(ids[:end])


def timed(work: Callable[[], list]) -> tuple[float, int]:
    start = time.perf_counter()
    responses = work()
    return time.perf_counter() - start, sum(map(len, responses))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = make_model(options.width, options.layers)
    random = np.random.default_rng(0)
    prompts = [tuple(random.integers(28, 254, random.integers(110, 181)).tolist()) for _ in range(options.requests)]
    few = prompts[: options.slots]
    equal = continuous(model, few, options.slots, 0.0) == batched(model, few, options.slots, 0.0)  # and a warm-up
    ours, theirs = [], []
    for _ in range(REPETITIONS):
        ours.append(timed(lambda: continuous(model, prompts, options.slots, 1.0)))
        theirs.append(timed(lambda: batched(model, prompts, options.slots, 1.0)))
    seconds = {name: statistics.median(run[0] for run in runs) for name, runs in (("ours", ours), ("generate", theirs))}
    tokens = {name: statistics.median(run[1] for run in runs) for name, runs in (("ours", ours), ("generate", theirs))}
    result = {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "requests": options.requests, "slots": options.slots, "threads": torch.get_num_threads(),
        "prompt_tokens": sum(map(len, prompts)) / len(prompts),
        "response_tokens": {name: count / len(prompts) for name, count in tokens.items()},
        "seconds": seconds,
        "milliseconds_a_request": {name: 1000 * value / len(prompts) for name, value in seconds.items()},
        "times_faster": seconds["generate"] / seconds["ours"],
        "greedy_equal": equal,
    }  # fmt: skip
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
