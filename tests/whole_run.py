"""A small finished run, made by the real driver: for tests of what looks at runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pipeline.config_loading import build_config, save_config
from tests.processes import ENVIRONMENT, ROOT

SECRETS = {  # in the environment of the run: tests/test_safety.py looks for them in all that it wrote
    "HF_TOKEN": "hf_pQ7secretOfTheHub", "HUGGING_FACE_HUB_TOKEN": "hf_x9oldSecret", "WANDB_API_KEY": "8f3aOfWandb",
    "AWS_SECRET_ACCESS_KEY": "wJalrsecretOfTheCloud", "MY_OWN_VARIABLE": "correct-horse-battery-staple",
}  # fmt: skip
LIMIT_S = 900  # it takes half a minute where nobody else wants the cores
SETTINGS = {
    "run": {"iterations": 4, "ranks": 1},
    "model": {"name": "tiny", "dtype": "float32", "tiny_width": 16, "tiny_layers": 1, "tiny_heads": 2,
              "chat_template": False},
    "env": {"name": "tests.corridor:CorridorAdapter", "rooms": 3, "tasks": 24, "max_turns": 4, "prompt_tokens": 64,
            "response_tokens": 4},
    "warm_start": {"enabled": True, "demonstrations": 24, "epochs": 12.0, "batch_size": 16, "learning_rate": 1e-2,
                   "warmup_steps": 2, "error_rate": 0.4},
    "rollout": {"trajectories": 24, "slots": 12, "workers": 1},
    "optimize": {"minibatch_size": 16, "learning_rate": 3e-3, "kl_coef": 0.01},
    "evaluate": {"every": 2, "tasks": 6, "temperature": 1.0},
    "checkpoint": {"keep_last": 2},
    "logging": {"tensorboard": False, "progress": False},
}  # fmt: skip


def make_whole_run(run_dir: Path) -> Path:
    """Train in the corridor for four iterations, on one rank without a launcher."""
    save_config(build_config(SETTINGS), run_dir / "config.yaml")
    command = [sys.executable, "pipeline/driver.py", "--run-dir", str(run_dir)]
    environment = {**ENVIRONMENT, **SECRETS, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir.parent / "output.txt").write_text(done.stdout + done.stderr)
    return run_dir
