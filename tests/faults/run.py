"""The run that is tormented, how to start it, and what must hold of its files whatever happened."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config_loading import load_config
from pipeline.manifests import Manifest, check_outputs, read_manifests
from pipeline.plan import Facts, next_step, plan
from pipeline.run_directory import EXPORT, RunError, RunPaths
from runtime.distributed import free_port
from runtime.shards import read_jsonl

SETTINGS = {
    "env.rooms": 3, "env.tasks": 24, "env.max_turns": 4, "env.prompt_tokens": 64, "env.response_tokens": 4,
    "model.tiny_width": 16, "model.tiny_layers": 1, "model.tiny_heads": 2,
    "warm_start.demonstrations": 12, "warm_start.batch_size": 8, "warm_start.epochs": 1.0,
    "rollout.trajectories": 16, "rollout.slots": 4, "rollout.turn_timeout_s": 8.0,
    "optimize.minibatch_size": 8, "optimize.kl_coef": 0.01, "evaluate.every": 1, "evaluate.tasks": 6,
    "checkpoint.keep_last": 1,
    "run.stage_timeout_s": 120.0, "logging.tensorboard": False, "logging.progress": False,
}  # fmt: skip
FLAGS = [flag for key, value in SETTINGS.items() for flag in ("--set", f"{key}={json.dumps(value)}")]
# The launcher; one rank without it, as a new process or forked; the deepspeed launcher, stage by stage.
MODES = ("resident", "driver", "forked", "stages")
DEEPSPEED = str(Path(sys.executable).parent / "deepspeed")
COMPARED = ("reserve_vocab", "warm_start", "compute_advantages", "optimize")


def prepare_command(run_dir: Path, ranks: int, iterations: int) -> list[str]:
    """What a user types for the whole run."""
    return [sys.executable, "-m", "pipeline", "--env", "tests.corridor:CorridorAdapter", "--run-dir", str(run_dir),
            "--iterations", str(iterations), "--ranks", str(ranks), *FLAGS]  # fmt: skip


def command(mode: str, run_dir: Path, ranks: int, iterations: int) -> list[str] | None:
    """What is typed next, the same command again until its part is done; None: the run is complete.

    All but "resident" need a run directory that `prepare_command(...) --prepare-only` has made.
    """
    paths = RunPaths(run_dir)
    if mode == "resident":
        whole = prepare_command(run_dir, ranks, iterations)
        return None if paths.config.exists() and remaining(run_dir) is None else whole
    step = remaining(run_dir)
    if step is None:
        return None
    if mode in ("driver", "forked"):
        return [sys.executable, "pipeline/driver.py", "--run-dir", str(run_dir)]
    script = "pipeline/export.py" if step[0] == EXPORT else f"stages/{step[0]}.py"
    return [DEEPSPEED, "--num_accelerators", str(ranks), "--master_port", str(free_port()), script,
            "--run-dir", str(run_dir)]  # fmt: skip


def remaining(run_dir: Path) -> tuple[str, int] | None:
    """The next step of a run."""
    paths = RunPaths(run_dir)
    step = next_step(plan(Facts.of(load_config(paths.config)), read_manifests(paths)))
    return None if step is None else step.name


@dataclass
class Memory:
    """What a run directory has held so far: none of it may change or go."""

    trajectories: dict[Path, dict[tuple[str, int], bytes]] = field(default_factory=dict)
    outputs: dict[tuple[str, int], dict] = field(default_factory=dict)

    @property
    def num_trajectories(self) -> int:
        return sum(map(len, self.trajectories.values()))


def look(run_dir: Path, memory: Memory) -> tuple[int, list[str]]:
    """Compare a run directory with what it held before, and remember what is new.

    Returns:
        The number of lost or changed trajectories, and a sentence for everything that should not be.
    """
    paths, faults = RunPaths(run_dir), []
    lost = 0
    for folder in [*run_dir.glob("iterations/*/rollouts"), *run_dir.glob("evaluations/*")]:
        found, twice = finished(folder)
        faults += [f"{folder.name}: two records of {key}" for key in twice]
        known = memory.trajectories.setdefault(folder, {})
        changed = [key for key, line in known.items() if found.get(key) != line]
        lost += len(changed)
        faults += [f"{folder}: trajectory {key} is gone or another" for key in changed]
        known.update(found)
    try:
        manifests = read_manifests(paths)
    except RunError as fault:
        return lost, [*faults, str(fault)]
    for name, outputs in memory.outputs.items():
        if name not in manifests:
            faults.append(f"the manifest of {name} is gone")
        elif manifests[name].outputs != outputs:
            faults.append(f"{name} was made again, and differently")
    for name, manifest in manifests.items():
        memory.outputs[name] = dict(manifest.outputs)
        try:
            check_outputs(manifest, paths.stage(*name), hashes=True)
        except RunError as fault:
            faults.append(str(fault))
    return lost, faults + ([] if lock_is_free(paths.lock) else ["the lock of the run directory is taken"])


def finished(folder: Path) -> tuple[dict[tuple[str, int], bytes], list[str]]:
    """Complete trajectories of a folder, errors left out: the bytes of each line. And keys that stand there twice."""
    found: dict[tuple[str, int], bytes] = {}
    twice = []
    for path in sorted(folder.glob("*rank-*.jsonl")):
        prefix = path.name.partition("rank-")[0]
        for (_, record), line in zip(read_jsonl(path)[0], path.read_bytes().split(b"\n"), strict=False):
            if record["status"] == "error":
                continue
            key = (f"{prefix}{record['task_id']}", record["sample"])
            if key in found:
                twice.append(str(key))
            found[key] = line
    return found, twice


def lock_is_free(path: Path) -> bool:
    """Whether nobody holds a run's lock; takes it for no longer than that."""
    if not path.exists():
        return True
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def weights(manifest: Manifest) -> dict[str, str]:
    """Hashes of what a step computed; engine state has none, demonstrations hold no numbers of the model."""
    return {name: entry["sha256"] for name, entry in manifest.outputs.items() if not name.startswith("engine/")}


def unequal(run_dir: Path, reference: Path) -> list[str]:
    """Steps whose numbers are not to the bit those of an uncut run."""
    own, other = read_manifests(RunPaths(run_dir)), read_manifests(RunPaths(reference))
    compared = [name for name in own if name[0] in COMPARED]
    return [f"{stage} {i}" for stage, i in compared if weights(own[stage, i]) != weights(other[stage, i])]


def check_end(run_dir: Path, reference: Path) -> list[str]:
    """What must hold of a complete run beside `look`."""
    faults = [f"{name}: other numbers than an uncut run" for name in unequal(run_dir, reference)]
    lines = [(one["stage"], one["iteration"]) for one in _lines(run_dir / "metrics.jsonl")]
    if len(lines) != len(set(lines)) or set(lines) != set(read_manifests(RunPaths(run_dir))):
        faults.append(f"metrics.jsonl: {len(lines)} lines, of {len(set(lines))} steps")
    return faults


def _lines(path: Path) -> list[dict]:
    return [record for _, record in read_jsonl(path)[0]] if path.exists() else []
