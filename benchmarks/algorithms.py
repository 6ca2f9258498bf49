"""What the algorithms cost: seconds of each part of an iteration, and the peak memory of the optimize stage.

    python -m benchmarks.algorithms [time] [memory] [--out benchmarks/results/algorithms.json]

`time`: the tiny preset on generated ALFWorld games, 32 trajectories an iteration, with a reference. All start from the
policy of one short warm start and learn at a rate of 1e-9, so that they play alike and the parts compare. Seconds are
the mean of the iterations after the first, which builds the engines; CPU seconds are those of compute_advantages and
optimize as their manifests count them, and do not depend on who else uses the machine.

`memory`: a model of 20 million parameters, 8 short trajectories, one rank, ZeRO-3, one iteration. The peak is that of
the whole run's process by the end of the optimize stage, replicas included; the baseline that of the same process
before any model was in it. Beside it stands what `--dry-run` would have said.

Every run is the real driver in a process of its own, in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.stages import MIB_A_GIB, machine, make_run, run_child
from pipeline.config import Config
from pipeline.launch import launch_environment
from pipeline.manifests import Manifest, read_manifests
from pipeline.memory import model_shape, stage_memory
from pipeline.run_directory import RunPaths

RUNS: dict[str, dict[str, Any]] = {
    "sapo": {"algorithm.name": "sapo"},
    "ppo (turn)": {"algorithm.name": "ppo", "ppo.credit": "turn"},
    "ppo (token)": {"algorithm.name": "ppo", "ppo.credit": "token"},
    "grpo": {"algorithm.name": "grpo", "grpo.group_size": 8},
}
GAMES = {"env.train_games": 32, "env.dev_games": 4, "env.held_out_games": 4}
SETTINGS: dict[str, dict[str, Any]] = {
    "time": {**GAMES, "run.iterations": 3, "rollout.trajectories": 32, "rollout.slots": 32,
             "env.warm_start_games": 100, "warm_start.demonstrations": 100, "optimize.learning_rate": 1e-9,
             "optimize.kl_coef": 0.01, "evaluate.every": 0, "evaluate.final_tasks": 1},
    "memory": {**GAMES, "env.warm_start_games": 1, "warm_start.enabled": False, "run.iterations": 1,
               "rollout.trajectories": 8, "rollout.slots": 8, "env.max_turns": 3,
               "model.tiny_width": 512, "model.tiny_layers": 6, "model.tiny_heads": 8,
               "optimize.kl_coef": 0.01, "optimize.microbatch_tokens": 512, "advantage.score_tokens": 512,
               "evaluate.every": 0, "evaluate.final_tasks": 1},
}  # fmt: skip
PARTS = {  # of an iteration: the stage, and its parts of a manifest's seconds
    "generation": ("collect_rollouts", ("generation_s",)),
    "environment": ("collect_rollouts", ("environment_wait_s",)),
    "old log-probs, values": ("compute_advantages", ("old_logprobs_s", "critic_values_s")),
    "reference": ("compute_advantages", ("ref_logprobs_s",)),
    "policy update": ("optimize", ("steps_s",)),
    "critic update": ("optimize", ("critic_s",)),
}
OUTSIDE = tuple(PARTS)[2:]  # of generation and environment
TARGETS = {"time": 0.55, "memory": 0.6}  # SAPO's over PPO's


def measure(profile: str, scratch: Path) -> dict[str, dict[str, float]]:
    """One run of each algorithm; its numbers by name."""
    results, start = {}, None
    for name, own in RUNS.items():
        settings = {**SETTINGS[profile], **own, "env.cache_dir": str(scratch / "games")}
        if start is not None:
            settings |= {"model.name": str(start), "warm_start.enabled": False}
        paths = RunPaths(scratch / f"{profile}-{len(results)}")
        config = make_run(paths.root, "alfworld", settings)
        run_child(["pipeline/driver.py", "--run-dir", str(paths.root)], launch_environment(config))
        manifests = read_manifests(paths)
        results[name] = costs(manifests) if profile == "time" else memory(manifests, config)
        if config.warm_start.enabled:
            start = paths.policy(0)
        print(f"{profile}: {name} done", file=sys.stderr, flush=True)
    return results


def costs(manifests: Mapping[tuple[str, int], Manifest]) -> dict[str, float]:
    """Seconds an iteration by part, over those after the first; and what else makes them comparable."""
    iterations = [i for stage, i in manifests if stage == "optimize" and i > 1]
    found = {
        part: fmean(sum(manifests[stage, i].seconds.get(key, 0.0) for key in keys) for i in iterations)
        for part, (stage, keys) in PARTS.items()
    }
    found["outside"] = sum(found[part] for part in OUTSIDE)
    training = ("compute_advantages", "optimize")
    found["outside_cpu"] = fmean(sum(manifests[stage, i].cpu_s or 0.0 for stage in training) for i in iterations)
    found["trained_tokens"] = fmean(manifests["optimize", i].counts["trained_tokens"] for i in iterations)
    return found


def memory(manifests: Mapping[tuple[str, int], Manifest], config: Config) -> dict[str, float]:
    """GiB of the process by the end of the optimize stage, before there was a model, and as estimated."""
    estimate = stage_memory(config, model_shape(config), 1)["optimize"]
    return {
        "peak": manifests["optimize", 1].peak_memory_mib["cpu"] / MIB_A_GIB,
        "baseline": manifests["reserve_vocab", 0].peak_memory_mib["cpu"] / MIB_A_GIB,
        "estimate": sum(estimate.values()) / 2**30,
    }


def ratios(profile: str, results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """SAPO's over PPO's with each credit."""
    found = {}
    for name in RUNS:
        if not name.startswith("ppo"):
            continue
        ours, other = results["sapo"], results[name]
        if profile == "time":
            found[f"seconds outside generation and environment, over {name}"] = ours["outside"] / other["outside"]
            found[f"CPU seconds of scoring and optimizing, over {name}"] = ours["outside_cpu"] / other["outside_cpu"]
        else:
            above = [one["peak"] - one["baseline"] for one in (ours, other)]
            found[f"peak above the process's baseline, over {name}"] = above[0] / above[1]
            found[f"whole peak, over {name}"] = ours["peak"] / other["peak"]
    return found


def table(results: Mapping[str, Mapping[str, float]]) -> str:
    """A row for each number, a column for each run."""
    rows = [f"{'':<24}" + "".join(f"{name:>14}" for name in results)]
    for key in next(iter(results.values())):
        form = ".0f" if key == "trained_tokens" else ".3f"
        rows.append(f"{key:<24}" + "".join(f"{one[key]:>14{form}}" for one in results.values()))
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", nargs="*", metavar="PROFILE", help=f"of {', '.join(SETTINGS)}; default: both")
    parser.add_argument("--out", type=Path, help="write the numbers there, as JSON; another profile's there stay")
    options = parser.parse_args()
    unknown = set(options.profiles) - set(SETTINGS)
    if unknown:
        parser.error(f"no profile {min(unknown)!r}; there are {', '.join(SETTINGS)}")
    written = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    for profile in options.profiles or SETTINGS:
        facts, scratch = machine(), Path(tempfile.mkdtemp(prefix="sapo-algorithms-"))
        try:
            results = measure(profile, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        found = ratios(profile, results)
        print(f"{profile} ({'seconds an iteration' if profile == 'time' else 'GiB'})\n{table(results)}")
        print("\n".join(f"SAPO's {what}: {ratio:.3f} (target {TARGETS[profile]})" for what, ratio in found.items()))
        written[profile] = {"machine": facts, "settings": SETTINGS[profile], "runs": results, "ratios": found}
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
