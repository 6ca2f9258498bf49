"""Does it learn? A whole run in the corridor, from hardly ever finding the door to nearly always."""

import json
import sys

import pytest

from pipeline.run_directory import RunPaths
from tests.test_end_to_end import run

pytestmark = pytest.mark.slow

SETTINGS = {
    "run.iterations": 25, "env.tasks": 64, "env.max_turns": 6, "env.prompt_tokens": 64, "env.response_tokens": 16,
    "model.tiny_width": 64, "model.tiny_layers": 2, "model.tiny_heads": 2, "value.temperature": 0.125,
    "warm_start.epochs": 0.5, "warm_start.batch_size": 32, "warm_start.learning_rate": 3e-3,
    "rollout.trajectories": 64, "optimize.learning_rate": 4e-4, "optimize.warmup_steps": 40,
    "optimize.minibatch_size": 256,
    "optimize.value_coef": 0.06, "optimize.q_coef": 0.06, "optimize.entropy_coef": 0.0, "optimize.kl_coef": 0.0,
    "evaluate.every": 0, "evaluate.temperature": 1.0, "logging.tensorboard": False,
}  # fmt: skip


def test_an_agent_learns_from_rewards(tmp_path):
    """A first run: 0.19 to 0.97 in `near`, 0.06 to 0.61 in `far`, which starts at the other end."""
    flags = [flag for key, value in SETTINGS.items() for flag in ("--set", f"{key}={json.dumps(value)}")]
    where = ["--env", "tests.corridor:CorridorAdapter", "--run-dir", str(tmp_path / "r")]
    done = run([sys.executable, "-m", "pipeline", *where, *flags])
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = (success(RunPaths(tmp_path / "r"), policy) for policy in (0, 25))
    assert before["near"] < 0.4 and after["near"] > 0.8
    assert after["far"] > before["far"] + 0.2


def success(paths: RunPaths, policy: int) -> dict[str, float]:
    results = json.loads((paths.evaluation(policy) / "results.json").read_text())
    return {sweep["split"]: sweep["all"]["success"] for sweep in results["sweeps"]}
