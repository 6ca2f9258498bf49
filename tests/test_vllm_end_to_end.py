"""A whole run with rollout.backend=vllm by the real launcher: two ranks, each with an engine, in one process group."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from pipeline.manifests import read_manifests
from pipeline.run_directory import RunPaths
from tests.processes import ENVIRONMENT, ROOT

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (requirements-vllm.txt)"),
]

SETTINGS = {
    "env.tasks": 12, "env.max_turns": 4, "env.prompt_form": "transcript", "env.prompt_tokens": 64,
    "env.response_tokens": 4, "model.tiny_width": 64, "model.tiny_layers": 1, "model.tiny_heads": 2,
    "warm_start.demonstrations": 12, "warm_start.batch_size": 8, "rollout.backend": "vllm", "rollout.slots": 4,
    "rollout.trajectories": 8, "optimize.minibatch_size": 8, "optimize.learning_rate": 1e-2,
    "optimize.warmup_steps": 0, "evaluate.every": 0,
    "evaluate.final_tasks": 6, "logging.tensorboard": False,
}  # fmt: skip
FLAGS = [flag for key, value in SETTINGS.items() for flag in ("--set", f"{key}={json.dumps(value)}")]
LIMIT_S = 900


def test_each_policy_is_sampled_from_with_its_own_weights(tmp_path):
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "pipeline", "--env", "tests.corridor:SpokenCorridorAdapter",
               "--run-dir", str(run_dir), "--iterations", "2", "--ranks", "2", *FLAGS]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"}, capture_output=True,
                          text=True, timeout=LIMIT_S, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    paths = RunPaths(run_dir)
    manifests = read_manifests(paths)
    assert manifests["collect_rollouts", 2].ranks == 2
    lines = [json.loads(line) for line in paths.metrics.read_text().splitlines()]
    gaps = [line["step0/logprob_gap_max"] for line in lines if line["stage"] == "compute_advantages"]
    assert len(gaps) == 2 and max(gaps) < 1e-4  # the scoring pass reads policy 1 from its files
    moved = [line["sapo/approx_kl"] for line in lines if line["stage"] == "optimize"]
    assert moved[0] > 1e-3, moved  # so policy 1 is another than policy 0, or the gap says nothing
