"""The two generation backends on the same requests, in one process: ours on transformers, and vLLM's engine.

    python -m benchmarks.generation_vllm [--model 21m] [--requests 128] [--slots 32] [--episodes 32] [--turns 6]

In the environment of docs/generation.md. The kinds of work are those of benchmarks/generation.py: independent prompts,
and episodes whose turns add to what was said before (we keep an episode's row, vLLM has its prefix cache). Both sides
run once to warm up, greedily, which shows whether they say the same, then `--times` times, turn about and with another
seed each time (they sample different responses: over the seeds neither side's are longer); medians. vLLM's start is not
counted, and its prefix cache is emptied before each time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.generation import MAX_RESPONSE, Episode, Ids, make_episodes
from benchmarks.measuring import machine, median_clock, timed, write
from benchmarks.models import SHAPES, make_model
from runtime.generation import TransformersGenerator
from runtime.generator import Generator, Request
from runtime.seeding import uniforms
from runtime.vllm_generation import VllmEngine, VllmGenerator

TARGET = 1.0


def play(generator: Generator, episodes: Sequence[Episode], seed: int = 0) -> list[list[Ids]]:
    """The responses of each episode; a turn follows as soon as the one before it has ended."""
    said: list[list[Ids]] = [[] for _ in episodes]
    contexts: list[Ids] = [() for _ in episodes]

    def ask(key: int) -> None:
        turn, parts = len(said[key]), episodes[key].parts
        contexts[key] += parts[turn]
        numbers = uniforms(seed, 1, f"task-{key}", 0, turn, MAX_RESPONSE)
        generator.submit(Request(key, contexts[key], numbers, key if len(parts) > 1 else None))

    for key in range(len(episodes)):
        ask(key)
    while not generator.idle:
        for one in generator.step():
            said[one.key].append(one.response_ids)
            contexts[one.key] += one.response_ids
            if len(said[one.key]) < len(episodes[one.key].parts):
                ask(one.key)
            else:
                generator.forget(one.key)
    return said


def compare(makers: dict[str, Callable[[float], Generator]], episodes: Sequence[Episode], times: int) -> dict[str, Any]:
    """Medians of both sides and ours over vLLM's in response tokens a second."""
    greedy = [play(make(0.0), episodes) for make in makers.values()]  # and a warm-up
    clocks: dict[str, list] = {name: [] for name in makers}
    tokens, prompts = dict.fromkeys(makers, 0), dict.fromkeys(makers, 0)
    for seed in range(times):
        for name, make in makers.items():
            generator = make(1.0)
            clock, said = timed(lambda generator=generator, seed=seed: play(generator, episodes, seed))
            clocks[name].append(clock)
            tokens[name] += sum(len(response) for one in said for response in one)
            prompts[name] += generator.num_prompt_tokens
    sides = {}
    for name, found in clocks.items():
        clock, mean = median_clock(found), tokens[name] / times
        sides[name] = {"wall_s": clock.wall_s, "cpu_s": clock.cpu_s, "response_tokens": mean}
        sides[name] |= {"prompt_tokens": prompts[name] / times}
        sides[name] |= {"tokens_per_s": mean / clock.wall_s, "tokens_per_cpu_s": mean / clock.cpu_s}
    ratios = {key: sides["ours"][key] / sides["vllm"][key] for key in ("tokens_per_s", "tokens_per_cpu_s")}
    same = sum(a == b for one, other in zip(*greedy, strict=True) for a, b in zip(one, other, strict=True))
    return {"sides": sides, "times_faster": ratios, "greedy_equal": same / sum(map(len, greedy[0]))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="21m")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path, help="add the numbers to this json, under the model's name")
    options = parser.parse_args()
    shape = SHAPES[options.model]
    stops = list(range(1, 1 + shape.vocabulary // 9))
    model = make_model(shape, stops=stops)
    parameters = sum(weight.numel() for weight in model.parameters())
    result: dict[str, Any] = {"machine": machine(), "parameters": parameters, "slots": options.slots}
    counts = {"requests": (options.requests, 1), "episodes": (options.episodes, options.turns)}
    works = {name: make_episodes(shape, len(stops) + 1, *count) for name, count in counts.items()}
    longest = max(
        sum(map(len, one.parts)) + (len(one.parts) - 1) * MAX_RESPONSE for work in works.values() for one in work
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        (engine, start) = _started(Path(folder), options.slots, longest)
    result["vllm_start_s"] = start

    def on_vllm(temperature: float) -> VllmGenerator:
        engine.llm.reset_prefix_cache()  # as after an optimizer step: else it would find the prompts of the run before
        return VllmGenerator(engine, options.slots, temperature, shape.value_ids, stops)

    makers: dict[str, Callable[[float], Generator]] = {
        "ours": lambda temperature: TransformersGenerator(
            model, options.slots, longest, MAX_RESPONSE, temperature, shape.value_ids, stops
        ),
        "vllm": on_vllm,
    }
    print(f"{options.model}: {parameters:,} parameters, {options.slots} slots, medians of {options.times}")
    print(f"{'':10}{'':10}{'wall s':>8}{'CPU s':>8}{'tokens/s':>10}{'tokens/CPU s':>14}{'read':>10}")
    for name, work in works.items():
        found = result[name] = {"count": counts[name][0], "turns": counts[name][1]}
        found |= compare(makers, work, options.times)
        for side, one in found["sides"].items():
            print(f"{name:10}{side:10}{one['wall_s']:8.2f}{one['cpu_s']:8.2f}{one['tokens_per_s']:10.0f}"
                  f"{one['tokens_per_cpu_s']:14.0f}{one['prompt_tokens']:10.0f}")  # fmt: skip
        faster = found["times_faster"]
        print(
            f"{name}: ours {faster['tokens_per_s']:.2f} times as many tokens a second, "
            f"{faster['tokens_per_cpu_s']:.2f} a CPU second (target {TARGET:g}); "
            f"{100 * found['greedy_equal']:.1f} % of the greedy responses equal",
            flush=True,
        )
    write(options.out, options.model, result)


def _started(folder: Path, slots: int, longest: int) -> tuple[VllmEngine, float]:
    """vLLM's engine, and the seconds until it has answered once (its first tokens compile something)."""

    def work() -> VllmEngine:
        engine = VllmEngine(
            folder, "random", dtype="float32", slots=slots, max_prompt=longest, max_response=MAX_RESPONSE
        )
        play(VllmGenerator(engine, slots, 1.0, (), (1,)), [Episode(((2, 3),))])
        return engine

    clock, engine = timed(work)
    return engine, clock.wall_s


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
