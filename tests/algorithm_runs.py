"""A finished run of every algorithm in the corridor, all in one process: `algorithm_runs.py ROOT` writes ROOT/<name>.

The start of a process costs more than all of them together.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.config_loading import build_config, save_config
from tests.processes import ENVIRONMENT, ROOT
from tests.whole_run import SETTINGS

LIMIT_S = 600
GROUPS = {"group_size": 4}
RUNS: dict[str, dict[str, Any]] = {  # by name of the run: the algorithm's section
    "sapo": {},
    "sapo-tokens": {"sapo": {"normalise": "tokens", "advantage": "q_minus_v"}},
    "ppo": {"ppo": {"credit": "turn", "critic_learning_rate": 1e-2}},
    "ppo-token": {"ppo": {"credit": "token"}},
    "grpo": {"grpo": GROUPS},
    "rloo": {"rloo": {**GROUPS, "mean": "trajectory"}},
    "remax": {},
    "dapo": {"dapo": {**GROUPS, "overlong_buffer": 2, "overlong_coef": 0.5, "max_extra_rounds": 1}},
    "gigpo": {"gigpo": {**GROUPS, "use_std": False}},
    "vineppo": {"vineppo": {"continuations": 2}, "rollout": {"trajectories": 6}},
    "own": {"algorithm": {"name": "tests.own_algorithm:WinsOnly", "options": {"bonus": 0.5}}},
}
CHANGES = {
    "run": {"iterations": 2},
    "env": {"success_reward_scale": 5.0},
    "rollout": {"trajectories": 16, "slots": 16},
    "evaluate": {"every": 0, "final_tasks": 2},
}


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a run, as a tree for `build_config`."""
    tree = copy.deepcopy(SETTINGS) | {"algorithm": {"name": name.partition("-")[0]}}
    for changes in (CHANGES, RUNS[name]):
        for section, values in changes.items():
            tree[section] = {**tree.get(section, {}), **values}
    return tree


def make_algorithm_runs(root: Path) -> Path:
    """All of RUNS below `root`, by a process of its own."""
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, str(Path(__file__)), str(root)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return root


def main(root: Path, names: list[str]) -> None:
    from pipeline.driver import drive
    from pipeline.session import import_stages, open_session
    from runtime.distributed import leave

    seconds = {}
    for name in names or RUNS:
        started = time.monotonic()
        save_config(build_config(settings_of(name)), root / name / "config.yaml")
        session = open_session(root / name)
        import_stages(session)
        assert drive(session) == 0
        close(session)
        seconds[name] = round(time.monotonic() - started, 1)
    do_again_in_pieces(root / "ppo", root / "ppo-cut")
    leave()
    (root / "seconds.json").write_text(json.dumps(seconds))


def close(session: Any) -> None:
    for engine in (session.resident.engine, session.resident.critic_engine):
        if engine is not None:
            engine.close()
    session.close()


def do_again_in_pieces(source: Path, target: Path) -> None:
    """From the rollouts of a run all that follows anew, each stage as if in a process of its own."""
    from pipeline.plan import next_step
    from pipeline.session import do_step, open_session

    shutil.copytree(source, target)
    for made in ("checkpoints/0001", "checkpoints/0002", "iterations/0001/advantages", "iterations/0002/advantages"):
        shutil.rmtree(target / made)
    step = True
    while step:
        session = open_session(target)
        step = next_step(session.steps())
        if step:
            do_step(session, step.name)
        close(session)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
