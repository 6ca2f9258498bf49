"""Seconds a trajectory of this pipeline against a GRPO loop of TRL 1.16: same model, tokenizer, texts, turns, threads.

    python3 -m venv trl && trl/bin/pip install -r benchmarks/requirements-trl.txt
    python -m benchmarks.trl_loop --trl-python trl/bin/python [--models 3m 21m] [--out benchmarks/results/trl_loop.json]

Both play 10 turns of 8 new tokens in `benchmarks.talk`, with one model folder (Qwen2 shapes, random weights, float32),
one thread, the same number of trajectories an iteration and one optimizer step on all of them, without a KL term. TRL
(benchmarks/trl_side.py) reads the transcript so far at every turn; the like-for-like is our transcript form, whose ids
are the same. The history form (two turns shown) is the paper's. A random model now and then says the end-of-turn
token before its eighth; the tokens that were sampled are counted.

Ours is the real driver with its files: a trajectory is collected, scored (old log-probs, V, Q) and trained on; "all" is
everything an iteration does besides (reading and writing shards, engine state and exported weights). TRL scores nothing
(its old log-probs are the new ones) and saves nothing. Sides run in turn, `--rounds` times, in processes of their own;
the first iteration of each is left out, of the others the medians count. CPU seconds are the process's, ours with its
environment worker.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.floors import forward_operations
from benchmarks.measuring import machine, write
from benchmarks.models import SHAPES, Shape, make_model
from benchmarks.stages import byte_pairs
from benchmarks.talk import TalkAdapter
from benchmarks.talk_runs import make_folder, run_talk
from pipeline.memory import shape_from_config

ROOT = Path(__file__).resolve().parents[1]
TARGET = 0.2
FORMS = ("transcript", "history")


def ours(form: str, model: Path, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """A run of the driver."""
    settings = {
        "run.iterations": options.iterations,
        "env.prompt_form": form,
        "env.max_turns": options.turns,
        "env.prompt_tokens": 1024,
        "env.response_tokens": options.response_tokens,
        "rollout.trajectories": options.trajectories,
        "rollout.slots": options.trajectories,
        "optimize.minibatch_size": options.turns * options.trajectories,
    }
    return run_talk(model, settings, scratch)


def theirs(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """TRL's trainer in its own interpreter."""
    line = [str(options.trl_python), "-m", "benchmarks.trl_side", "--model", str(model)]
    for name in ("trajectories", "turns", "response_tokens", "iterations"):
        line += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)}: exit code {done.returncode}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def least_operations(shape: Shape, final: float, options: argparse.Namespace) -> dict[str, float]:
    """Operations of a trajectory of `final` tokens, counted as in benchmarks/floors.py.

    Ours: one pass to collect, one to score, three to train, the head where a response token is predicted. TRL's: at
    each turn a pass over the transcript so far; three to train, the head at every token behind the first prompt.
    """
    adapter = TalkAdapter(TalkAdapter.Options())
    observation = adapter.make().reset(adapter.tasks("train")[0])
    tokenizer = byte_pairs(adapter.vocabulary(), shape.vocabulary - 2)
    first = len(tokenizer.encode(adapter.prompt(observation, [], 0)))
    turns, response = options.turns, options.response_tokens
    counts = shape_from_config(make_model(shape).config.to_dict())
    between = (final - first - turns * response) / (turns - 1)
    read = [round(first + turn * (response + between) + response) for turn in range(turns)]
    collect = sum(forward_operations(counts, [tokens], response, response) for tokens in read)
    tokens, sampled = round(final), turns * response
    generated = forward_operations(counts, [tokens], sampled, sampled)
    return {
        "transcript": generated + 4 * forward_operations(counts, [tokens], sampled, sampled + turns),
        "trl": collect + 3 * forward_operations(counts, [tokens], tokens - first, tokens - first),
    }


def summary(runs: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, float]:
    """Medians over the iterations that count; a trajectory, a turn, a response token."""
    measured = [one for run in runs for one in run["iterations"][1:]]
    result = {key: statistics.median(one[key] for one in measured) / options.trajectories for key in measured[0]}
    result["peak_mib"] = max(run["peak_mib"] for run in runs)
    result["measured_iterations"] = len(measured)
    for clock in ("wall_s", "cpu_s"):
        result[f"{clock}_a_turn"] = result[clock] / options.turns
        result[f"{clock}_a_token"] = result[clock] / result["response_tokens"]
    return result


def table(name: str, sides: dict[str, dict[str, float]]) -> str:
    keys = ("wall_s", "all_s", "cpu_s", "collect_cpu_s", "score_cpu_s", "update_cpu_s", "cpu_s_a_turn", "cpu_s_a_token",
            "response_tokens", "final_tokens", "peak_mib")  # fmt: skip
    lines = [f"{name + ', a trajectory':22}" + "".join(f"{side:>12}" for side in sides)]
    for key in keys:
        form = ".0f" if key in ("response_tokens", "final_tokens", "peak_mib") else ".4f"
        lines.append(
            f"{key:22}" + "".join(f"{one[key]:>12{form}}" if key in one else " " * 12 for one in sides.values())
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", type=Path, required=True, help="of the environment that has TRL")
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=["3m", "21m"])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--trajectories", type=int, default=16)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--response-tokens", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=6, help="of a process, the first one uncounted")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the numbers there, as JSON; another model's there stay")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in options.models:
        scratch = Path(tempfile.mkdtemp(prefix="sapo-trl-"))
        try:
            make_folder(scratch / "model", SHAPES[name])
            runs: dict[str, list[dict[str, Any]]] = {side: [] for side in (*options.forms, "trl")}
            for _ in range(options.rounds):
                for side in runs:
                    model = scratch / "model"
                    runs[side].append(theirs(model, options) if side == "trl" else ours(side, model, options, scratch))
                    print(f"{name}: {side} done", file=sys.stderr, flush=True)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        sides = {side: summary(found, options) for side, found in runs.items()}
        print(table(name, sides))
        ratios = {
            f"{form}, {clock}": sides[form][clock] / sides["trl"][clock]
            for form in options.forms
            for clock in ("wall_s", "cpu_s")
        }
        print(
            "\n".join(f"{what} over TRL's: {ratio:.3f} (target {TARGET})" for what, ratio in ratios.items()), flush=True
        )
        least = least_operations(SHAPES[name], sides["trl"]["final_tokens"], options)
        print("G operations at least: " + ", ".join(f"{side} {count / 1e9:.1f}" for side, count in least.items()))
        facts = {
            "machine": machine(),
            "least_operations": least,
            "trajectories": options.trajectories,
            "turns": options.turns,
        }
        write(options.out, name, {**facts, "sides": sides, "ratios": ratios, "runs": runs})


if __name__ == "__main__":
    main()
