"""Our decode loop against a loop over transformers' `generate` with left padding, on the same requests.

    python -m benchmarks.generation [--model tiny] [--requests 256] [--slots 64] [--episodes 64] [--turns 10] [--out X]

Two kinds of work, random weights, responses of about 9 tokens (a ninth of the vocabulary ends one, 16 at most):

    requests   independent prompts of 110 to 180 tokens, as the history form has them
    episodes   so many turns each: a prompt of 110 to 180 tokens, then 25 tokens behind each response, as a transcript
               has them. We keep the row of an episode in the cache; `generate` reads the whole episode again each turn

`generate` gets batches of `slots` prompts, the next batch when the last row of one has ended; it stops at the same
tokens and its sampling is as plain as ours (no top-k, no top-p). Both sides run once to warm up, greedily, which shows
whether they say the same, then `--times` times, turn about; medians. `--profile` prints where our loop spends its CPU
seconds on the episodes instead.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import machine, median_clock, timed, write
from benchmarks.models import SHAPES, Shape, add_device_flags, make_model
from runtime.generation import TransformersGenerator
from runtime.generator import Request
from runtime.seeding import uniforms

MAX_RESPONSE, FOLLOW_UP = 16, 25  # tokens
TARGET = 4.0
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Episode:
    """What is read before each of its turns; the first one begins it."""

    parts: tuple[Ids, ...]


class Work:
    """Episodes to play on a model; single requests are episodes of one turn."""

    def __init__(self, model: Any, shape: Shape, episodes: Sequence[Episode], slots: int, stops: list[int]) -> None:
        self.model, self.shape, self.episodes, self.slots = model, shape, episodes, slots
        self.stops, self.stop_set = stops, frozenset(stops)
        parts = max(sum(map(len, one.parts)) for one in episodes)
        self.turns = max(len(one.parts) for one in episodes)
        self.longest = parts + (self.turns - 1) * MAX_RESPONSE

    def ours(self, temperature: float) -> list[list[Ids]]:
        """The responses of each episode by our generator; a turn follows as soon as the one before it has ended."""
        generator = TransformersGenerator(
            self.model, self.slots, self.longest, MAX_RESPONSE, temperature, self.shape.value_ids, self.stops
        )
        said: list[list[Ids]] = [[] for _ in self.episodes]
        for key in range(len(self.episodes)):
            self._ask(generator, key, said[key])
        while not generator.idle:
            for one in generator.step():
                said[one.key].append(one.response_ids)
                if len(said[one.key]) < len(self.episodes[one.key].parts):
                    self._ask(generator, one.key, said[one.key])
                else:
                    generator.forget(one.key)
        return said

    def _ask(self, generator: TransformersGenerator, key: int, said: list[Ids]) -> None:
        numbers = uniforms(0, 1, f"task-{key}", 0, len(said), MAX_RESPONSE)
        kept = key if self.turns > 1 else None
        generator.submit(Request(key, self._context(key, said), numbers, kept))

    def _context(self, key: int, said: list[Ids]) -> Ids:
        first, *others = self.episodes[key].parts
        return first + sum((response + part for response, part in zip(said, others, strict=False)), ())

    def theirs(self, temperature: float) -> list[list[Ids]]:
        """The same by `generate`: a batch of `slots` episodes at a time, turn after turn."""
        said: list[list[Ids]] = [[] for _ in self.episodes]
        for first in range(0, len(self.episodes), self.slots):
            keys = range(first, min(first + self.slots, len(self.episodes)))
            for _ in range(self.turns):
                contexts = [self._context(key, said[key]) for key in keys]
                for key, response in zip(keys, self._generate(contexts, temperature), strict=True):
                    said[key].append(response)
        return said

    @torch.inference_mode()
    def _generate(self, contexts: list[Ids], temperature: float) -> list[Ids]:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        longest, device = max(map(len, contexts)), self.model.device
        ids = [(0,) * (longest - len(context)) + context for context in contexts]
        mask = [[0] * (longest - len(context)) + [1] * len(context) for context in contexts]
        out = self.model.generate(
            torch.tensor(ids, device=device),
            attention_mask=torch.tensor(mask, device=device),
            max_new_tokens=MAX_RESPONSE,
            suppress_tokens=list(self.shape.value_ids),
            pad_token_id=0,
            **(sampling if temperature else {"do_sample": False}),
        )
        return [self._until_stop(row) for row in out[:, longest:].tolist()]

    def _until_stop(self, ids: list[int]) -> Ids:
        end = next((i + 1 for i, token in enumerate(ids) if token in self.stop_set), len(ids))
        return tuple(ids[:end])


def make_episodes(shape: Shape, first_word: int, count: int, turns: int) -> list[Episode]:
    """Seeded; no word in them is a stop or a value token."""
    random = np.random.default_rng(0)

    def words(length: int) -> Ids:
        return tuple(random.integers(first_word, shape.vocabulary - 2, length).tolist())

    return [
        Episode((words(int(random.integers(110, 181))), *(words(FOLLOW_UP) for _ in range(turns - 1))))
        for _ in range(count)
    ]


def compare(work: Work, times: int, device: str) -> dict[str, Any]:
    """Medians of both sides and their ratio in response tokens a second."""
    equal = work.ours(0.0) == work.theirs(0.0)  # and a warm-up
    clocks: dict[str, list] = {"ours": [], "generate": []}
    tokens = dict.fromkeys(clocks, 0)
    for _ in range(times):
        for name, side in (("ours", work.ours), ("generate", work.theirs)):
            clock, said = timed(lambda side=side: side(1.0), device)
            clocks[name].append(clock)
            tokens[name] += sum(len(response) for one in said for response in one)
    sides = {}
    for name, found in clocks.items():
        clock, mean = median_clock(found), tokens[name] / times
        sides[name] = {"wall_s": clock.wall_s, "cpu_s": clock.cpu_s, "response_tokens": mean}
        sides[name] |= {"tokens_per_s": mean / clock.wall_s, "tokens_per_cpu_s": mean / clock.cpu_s}
    ours, theirs = sides["ours"], sides["generate"]
    ratios = {key: ours[key] / theirs[key] for key in ("tokens_per_s", "tokens_per_cpu_s")}
    return {"sides": sides, "times_faster": ratios, "greedy_equal": equal}


def profile(work: Work) -> None:
    work.ours(1.0)
    clock, _ = timed(lambda: work.ours(1.0))
    found = cProfile.Profile(time.process_time)
    found.runcall(work.ours, 1.0)
    print(f"{clock.cpu_s:.2f} CPU s without the profiler")
    pstats.Stats(found).sort_stats("tottime").print_stats(15)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="tiny")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path, help="add the numbers to this json, under the model's name")
    add_device_flags(parser)
    options = parser.parse_args()
    shape = SHAPES[options.model]
    stops = list(range(1, 1 + shape.vocabulary // 9))
    model = make_model(shape, options.device, options.dtype, stops)
    if options.profile:
        episodes = make_episodes(shape, len(stops) + 1, options.episodes, options.turns)
        return profile(Work(model, shape, episodes, options.slots, stops))
    result: dict[str, Any] = {"machine": machine(), "dtype": options.dtype, "slots": options.slots}
    result["parameters"] = sum(weight.numel() for weight in model.parameters())
    print(f"{options.model}: {result['parameters']:,} parameters, {options.slots} slots, medians of {options.times}")
    print(f"{'':10}{'':10}{'wall s':>8}{'CPU s':>8}{'tokens/s':>10}{'tokens/CPU s':>14}")
    for name, count, turns in (("requests", options.requests, 1), ("episodes", options.episodes, options.turns)):
        work = Work(model, shape, make_episodes(shape, len(stops) + 1, count, turns), options.slots, stops)
        found = result[name] = {"count": count, "turns": turns, **compare(work, options.times, options.device)}
        for side, one in found["sides"].items():
            print(f"{name:10}{side:10}{one['wall_s']:8.2f}{one['cpu_s']:8.2f}{one['tokens_per_s']:10.0f}"
                  f"{one['tokens_per_cpu_s']:14.0f}")  # fmt: skip
        faster = found["times_faster"]
        print(
            f"{name}: {faster['tokens_per_s']:.1f} times as many tokens a second, {faster['tokens_per_cpu_s']:.1f} a "
            f"CPU second (target {TARGET:g}); greedy {'equal' if found['greedy_equal'] else 'DIFFERENT'}",
            flush=True,
        )
    write(options.out, options.model, result)


if __name__ == "__main__":
    main()
