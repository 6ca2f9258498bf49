"""Which runs a comparison consists of. Pure, but for `state`, which looks at a run's folder."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.algorithm_options import DEFAULT_ALGORITHM
from pipeline.command_line import parser, resolve
from pipeline.config import ConfigError
from pipeline.config_loading import differences, load_config, preset_for_model
from pipeline.manifests import read_manifests
from pipeline.plan import Facts, plan
from pipeline.run_directory import EXPORT, RunError, RunPaths

ALGORITHM = "algorithm.name"
RUNS = "runs"  # below the comparison's folder
NEW, BEGUN, FINISHED, REFUSED = "new", "begun", "finished", "refused"  # states of a run's folder
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
WARM_START = "warm-start"  # the name of the runs that make first policies
# Settings that the first policy of another run may not fit.
OWN_START = ("model.", "value.initial_rows", "value.r_max", "value.temperature", "warm_start.", "env.")
SEED_ENDING = re.compile(r"-seed\d+$")


@dataclass(frozen=True)
class Variant:
    """What is compared: an algorithm, perhaps with settings of its own.

    Example: Variant("no-q", "sapo", ("optimize.q_coef=0",))
    """

    name: str
    algorithm: str
    settings: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("--algorithm", self.algorithm, *(part for setting in self.settings for part in ("--set", setting)))


@dataclass(frozen=True)
class PlannedRun:
    """One run: where it is and what `bash run.sh` is called with."""

    variant: str
    seed: int
    folder: Path
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.name}.log")


def parse_variant(text: str) -> Variant:
    """`NAME:KEY=VALUE,KEY=VALUE`; `algorithm.name=...` chooses another algorithm than SAPO.

    Raises:
        ConfigError: not of this form.
    """
    name, colon, rest = text.partition(":")
    pairs = [part.partition("=") for part in rest.split(",")]
    if not colon or not NAME.fullmatch(name) or not all(key and equals for key, equals, _ in pairs):
        raise ConfigError(f"--variant {text}: must be NAME:KEY=VALUE,..., such as no-q:optimize.q_coef=0")
    algorithm = next((value for key, _, value in pairs if key == ALGORITHM), DEFAULT_ALGORITHM)
    return Variant(name, algorithm, tuple(f"{key}={value}" for key, _, value in pairs if key != ALGORITHM))


def parse_seeds(text: str) -> list[int]:
    """`5`: the seeds 0 to 4; `3,7`: these two; `3,`: this one.

    Raises:
        ConfigError: not of this form, or none.
    """
    try:
        seeds = [int(part) for part in text.split(",") if part.strip()] if "," in text else list(range(int(text)))
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {text}: must be a number of seeds, or different seeds with commas (0,3 or 3,)")
    return seeds


def parse_run(text: str) -> tuple[str, Path]:
    """`[NAME:]DIR` -> name and folder; without a name that of the folder, less `-seed<k>`."""
    name, colon, path = text.partition(":")
    if colon and NAME.fullmatch(name):
        return name, Path(path)
    return SEED_ENDING.sub("", Path(text).resolve().name), Path(text)


def variants_of(algorithms: Sequence[str], own: Sequence[Variant]) -> list[Variant]:
    """Each algorithm under its name (one of the user's own under its class's), then the variants with settings.

    Raises:
        ConfigError: two of one name.
    """
    found = [Variant(name.rpartition(":")[2], name) for name in algorithms] + list(own)
    names = [one.name for one in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{twice}: named twice; give each variant a name of its own")
    return found


def plan_runs(
    variants: Sequence[Variant], seeds: Sequence[int], base: Sequence[str], out: Path, share_start: bool = False
) -> list[PlannedRun]:
    """All runs, seed by seed, so that a comparison that is cut has as many of each variant.

    Args:
        share_start: they begin with what `plan_starts` makes, but for variants with settings of OWN_START.
    """
    runs = []
    for seed in seeds:
        export = _folder(out, WARM_START, seed) / EXPORT
        shared = ("--model", str(export), "--set", "warm_start.enabled=false")
        for variant in variants:
            own = not share_start or any(setting.startswith(OWN_START) for setting in variant.settings)
            arguments = (*base, *(() if own else shared), *variant.arguments)
            runs.append(_planned(variant.name, seed, arguments, out))
    return runs


def plan_starts(seeds: Sequence[int], base: Sequence[str], out: Path) -> list[PlannedRun]:
    """A run a seed that ends with policy 0, for the others to begin with."""
    no_more = ("--set", "run.iterations=0", "--set", "evaluate.final_tasks=1")
    return [_planned(WARM_START, seed, (*base, *no_more), out) for seed in seeds]


def _folder(out: Path, name: str, seed: int) -> Path:
    return out / RUNS / f"{name}-seed{seed}"


def _planned(name: str, seed: int, arguments: Sequence[str], out: Path) -> PlannedRun:
    folder = _folder(out, name, seed)
    return PlannedRun(name, seed, folder, (*arguments, "--seed", str(seed), "--run-dir", str(folder)))


def shared_arguments(flags: argparse.Namespace) -> list[str]:
    """The flags of `bash run.sh` that all runs of the comparison get."""
    found = []
    for name in ("preset", "model", "env", "iterations", "ranks"):
        if (value := getattr(flags, name)) is not None:
            found += [f"--{name}", str(value)]
    if flags.share_start and flags.preset is None:  # without a name, a run's export would bring its run's settings
        found += ["--preset", preset_for_model(flags.model)]
    return found + [part for setting in flags.set for part in ("--set", setting)]


def state(run: PlannedRun) -> str:
    """NEW, BEGUN or FINISHED; manifests decide.

    Raises:
        ConfigError: a setting is wrong.
        RunError: the folder holds a run with other settings, or damaged manifests.
        EnvironmentFault: the environment refuses its options.
    """
    config = resolve(parser().parse_args(run.arguments)).config
    paths = RunPaths(run.folder)
    if not paths.config.exists():
        return NEW
    if changed := differences(load_config(paths.config), config):
        raise RunError(f"{run.folder}: made with other settings ({'; '.join(changed)}); choose another --out")
    steps = plan(Facts.of(config), read_manifests(paths))  # of what is stale the run itself says what to do
    return FINISHED if all(step.action == "skip" for step in steps) else BEGUN
