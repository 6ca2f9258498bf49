"""Tokens that scoring and optimising read of the same episodes in both prompt forms.

    python -m benchmarks.prompt_forms [--episodes 15] [--turns 15] [--out benchmarks/results/prompt_forms.json]

Episodes of exactly so many turns, half of the actions the expert's and half drawn from what is admissible, in generated
games and the invented catalogue; those that end earlier are left out. Each is written down as the history form has it
(a row a turn, `history_length` turns shown) and as a transcript (a row an episode), by the code of the rollouts. Every
token of a row is read once by a scoring pass and once an epoch by the optimiser. Scoring is timed, too: a model of the
tiny preset's shape, CPU seconds, medians of 5, turn about.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine, turn_about, write
from benchmarks.models import SHAPES, make_policy
from benchmarks.stages import QWEN_TOKENS, byte_pairs
from env_adapters.base import Adapter, Observation, PastTurn
from env_adapters.registry import make_adapter
from runtime.prompts import PromptRenderer
from runtime.records import Trajectory, Turn
from runtime.rows import plain_rows
from runtime.scoring import score_trajectories
from runtime.tiny_model import word_tokenizer

TARGET = 0.35
GAMES = {"train_games": 40, "warm_start_games": 1, "dev_games": 1, "held_out_games": 1}
FORMS = ("history", "transcript")


@dataclass(frozen=True)
class Case:
    """An environment as a preset has it; the tokens that limit a prompt, by form."""

    env: str
    options: dict[str, Any]
    history_length: int
    limits: tuple[int, int]


CASES = {
    "alfworld, tiny": Case("alfworld", {**GAMES, "prompt": "compact"}, 3, (256, 768)),
    "alfworld, published": Case("alfworld", {**GAMES, "scene": "full", "prompt": "published"}, 2, (2048, 8192)),
    "webshop, tiny": Case(
        "webshop",
        {"prompt": "compact", "catalogue": "tiny", "products": 200, "instructions": 30, "page_size": 5},
        3,
        (256, 1024),
    ),
    "webshop, published": Case("webshop", {"prompt": "published"}, 2, (4096, 16384)),
}


@dataclass(frozen=True)
class Seen:
    """One turn of an episode that was played."""

    observation: Observation
    response: str
    action: str


def play(adapter: Adapter, count: int, turns: int) -> list[list[Seen]]:
    """So many episodes of so many turns."""
    environment, found = adapter.make(), []
    for task in adapter.tasks(adapter.train_split):
        rng = random.Random(task.task_id)
        observation, episode = environment.reset(task), []
        while len(episode) < turns:
            listed = [action for action in observation.admissible_actions if "<" not in action]
            expert = environment.expert_action()
            action = expert if expert and (not listed or rng.random() < 0.5) else rng.choice(listed)
            result = environment.step(adapter.response(action))
            episode.append(Seen(observation, adapter.response(action), result.action))
            observation = result.observation
            if result.terminated:
                break
        if len(episode) == turns and not result.terminated:
            found.append(episode)
        if len(found) == count:
            break
    environment.close()
    return found


def write_down(episode: Sequence[Seen], key: str, prompts: PromptRenderer) -> Trajectory:
    """The trajectory that a rollout would have stored."""
    turns: list[Turn] = []
    history: list[PastTurn] = []
    eos = prompts.tokenizer.eos_token_id
    for number, seen in enumerate(episode):
        prompt = prompts.next_prompt(seen.observation, history, turns)
        ids = (*prompts.tokenizer.encode(seen.response, add_special_tokens=False), eos)
        turns.append(
            Turn(
                seen.observation.text, None, prompt.ids, seen.response, ids, (0.0,) * len(ids), seen.action, True, 0.0,
                0.0, 0.0, truncated=number + 1 == len(episode), continues=prompt.continues,
            )
        )  # fmt: skip
        history.append(PastTurn(seen.observation.text, seen.action))
    return Trajectory(key, 0, "train", "", "", 1, 0, "", 1.0, "truncated", False, 0.0, tuple(turns))


def measure(name: str, count: int, num_turns: int, cache: Path) -> dict[str, Any]:
    case = CASES[name]
    adapter = make_adapter(case.env, {**case.options, "cache_dir": str(cache / name)})
    adapter.prepare()
    episodes = play(adapter, count, num_turns)
    if case.options["prompt"] == "published":
        tokenizer = byte_pairs(adapter.vocabulary(), QWEN_TOKENS)
    else:
        tokenizer = word_tokenizer(adapter.vocabulary())
    written = {}
    for form, limit in zip(FORMS, case.limits, strict=True):
        prompts = PromptRenderer(tokenizer, adapter, case.history_length, limit, False, transcript=form == "transcript")
        written[form] = [write_down(one, f"episode-{index}", prompts) for index, one in enumerate(episodes)]
    rows = {form: [row for one in found for row in plain_rows(one)] for form, found in written.items()}
    result: dict[str, Any] = {"episodes": len(episodes), "turns": num_turns}
    for form in FORMS:
        result[form] = {
            "rows": len(rows[form]),
            "tokens_an_episode": sum(len(row.input_ids) for row in rows[form]) / len(episodes),
            "longest_row": max(len(row.input_ids) for row in rows[form]),
        }
    result["tokens"] = result["transcript"]["tokens_an_episode"] / result["history"]["tokens_an_episode"]
    if case.options["prompt"] == "compact":
        shape = replace(SHAPES["tiny"], vocabulary=len(tokenizer) + 2)
        policy = make_policy(shape)
        clocks = turn_about(
            {form: lambda form=form: score_trajectories(policy, written[form], 16384, "cpu") for form in FORMS}, 5
        )
        result["scoring_cpu_s"] = {form: clock.cpu_s for form, clock in clocks.items()}
        result["scoring_cpu"] = clocks["transcript"].cpu_s / clocks["history"].cpu_s
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=15)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--out", type=Path, help="write the numbers there, as JSON")
    options = parser.parse_args()
    print(
        f"{'tokens an episode':22}{'history':>9}{'transcript':>12}{'ratio':>8}{'longest row':>13}{'CPU of scoring':>16}"
    )
    with tempfile.TemporaryDirectory(prefix="sapo-forms-") as cache:
        for name in CASES:
            one = measure(name, options.episodes, options.turns, Path(cache))
            history, transcript = (one[form]["tokens_an_episode"] for form in FORMS)
            cpu = f"{one['scoring_cpu']:.2f}" if "scoring_cpu" in one else ""
            print(f"{name:22}{history:9.0f}{transcript:12.0f}{one['tokens']:8.3f}{one['transcript']['longest_row']:13}{cpu:>16}",
                  flush=True)  # fmt: skip
            write(options.out, name, one)
    write(options.out, "machine", machine())
    print(f"target: {TARGET}")


if __name__ == "__main__":
    main()
