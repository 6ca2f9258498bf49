"""The flags of `bash run.sh`, and the configuration and run directory that they ask for."""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path
from typing import Any

from env_adapters.registry import adapter_class, make_adapter
from pipeline.algorithm_options import DEFAULT_ALGORITHM
from pipeline.config import Config, ConfigError, EnvConfig, did_you_mean
from pipeline.config_loading import (
    apply_settings,
    build_config,
    load_config,
    load_preset,
    parse_setting,
    preset_for_model,
    preset_names,
    to_tree,
)

RUNS = Path("runs")
LOGS = ("tensorboard", "wandb", "trackio")
EXAMPLES = """examples:
  bash run.sh                                            the main job: model tiny, generated ALFWorld games
  bash run.sh --seed 1 --set optimize.learning_rate=3e-4 another seed and step size
  bash run.sh --model Qwen2.5-7B --env alfworld --dry-run  what would run on a GPU machine; starts nothing
  bash run.sh --algorithm ppo                            a baseline in the same pipeline
  bash run.sh --run-dir runs/X                           go on with a run that was started before
  bash run.sh --run-dir runs/X --prepare-only            make runs/X, to do its stages by hand
  bash run.sh test                                       the tests
Every setting with its meaning: pipeline/config.py."""


class Flags(argparse.ArgumentParser):
    """Says what is wrong in one line, with the nearest right name."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> argparse.Namespace:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flag = unknown[0].partition("=")[0]
            near = did_you_mean(flag, self._option_string_actions)
            hint = "; settings go through --set section.key=value" if not near and "--set" in self.format_help() else ""
            self.error(f"unknown argument {flag}{near}{hint}")
        return found

    def error(self, message: str) -> Any:
        raise ConfigError(f"{message[:300]} ({self.prog} --help)")


def parser() -> argparse.ArgumentParser:
    """The command line; its help is the user's first page."""
    flags = Flags(
        prog="bash run.sh",
        description="Single-Rollout Autoregressive Policy Optimization (arXiv 2608.19842), in stages.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    flags.add_argument("--preset", help=f"settings to start from: {', '.join(preset_names())}")
    flags.add_argument("--model", help="tiny, Qwen2.5-1.5B, Qwen2.5-7B, smollm2-135m, a hub id or a folder")
    flags.add_argument("--env", help="alfworld, webshop, a registered name or package.module:Class")
    flags.add_argument("--algorithm", help="sapo, ppo, grpo, rloo, remax, dapo, gigpo, vineppo or package.module:Class")
    flags.add_argument("--iterations", type=int, help="rounds of rollouts, advantages, optimisation")
    flags.add_argument("--ranks", type=int, help="processes, one a GPU")
    flags.add_argument("--seed", type=int, help="everything random derives from it")
    flags.add_argument("--run-dir", type=Path, help="default: runs/<preset>-<env>-seed<seed>")
    flags.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting; repeatable")
    flags.add_argument(
        "--log", action="append", default=[], choices=LOGS, help="send the numbers there too; repeatable"
    )
    flags.add_argument("--launcher", choices=("deepspeed", "openmpi"), default="deepspeed", help="how ranks start")
    flags.add_argument("--dry-run", action="store_true", help="print what would run and what it needs; start nothing")
    flags.add_argument(
        "--prepare-only", action="store_true", help="make the run directory and print the commands of its stages"
    )
    return flags


@dataclasses.dataclass(frozen=True)
class Request:
    """What the flags come to."""

    config: Config
    run_dir: Path
    source: str  # where the settings came from, for people
    launcher: str = "deepspeed"
    dry_run: bool = False
    prepare_only: bool = False


def resolve(arguments: argparse.Namespace) -> Request:
    """Flags -> checked configuration and run directory.

    Without --preset, --model and --env an existing --run-dir goes on with its own settings. A --model that is
    another run's export takes that run's settings, without a second warm start.

    Raises:
        ConfigError: a setting is wrong; EnvironmentFault: the environment refuses.
    """
    settings = _flag_settings(arguments) + [parse_setting(setting) for setting in arguments.set]
    named = dict(settings)
    for key in ("env.name", "model.name", "algorithm.name"):
        if not isinstance(named.get(key, ""), str):
            raise ConfigError(f"{key} = {named[key]!r}: must be text; put quotes around it")
    environment, model, algorithm = (named.get(f"{section}.name") for section in ("env", "model", "algorithm"))
    stored = arguments.run_dir / "config.yaml" if arguments.run_dir is not None else None
    if stored is not None and stored.exists() and not (arguments.preset or model or environment or algorithm):
        tree, source, name = to_tree(load_config(stored)), str(stored), ""
    elif arguments.preset is None and model and (Path(model).parent / "config.yaml").is_file():
        origin = Path(model).resolve().parent
        tree, source, name = to_tree(load_config(origin / "config.yaml")), f"run {origin.name}", f"from-{origin.name}"
        tree["warm_start"]["enabled"] = False
        if algorithm and algorithm != tree["algorithm"]["name"]:
            tree["algorithm"] = {}  # the options were those of another
    else:
        name = arguments.preset or preset_for_model(model)
        tree, source = load_preset(name, environment, algorithm), f"preset {name}"
        if model and model != tree["model"]["name"]:
            name = f"{name}-{_slug(model)}"
    from pipeline.machine import settle  # with torch: the answer to a wrong flag need not wait for it

    config = settle(build_config(apply_settings(tree, settings)))
    check_adapter_options(config)
    parts = [name, _slug(config.env.name), _slug(config.algorithm.name), f"seed{config.run.seed}"]
    if config.algorithm.name == DEFAULT_ALGORITHM:
        parts.remove(DEFAULT_ALGORITHM)
    run_dir = arguments.run_dir or RUNS / "-".join(parts)
    return Request(config, run_dir, source, arguments.launcher, arguments.dry_run, arguments.prepare_only)


def _flag_settings(arguments: argparse.Namespace) -> list[tuple[str, Any]]:
    flags = {
        "model.name": arguments.model,
        "env.name": arguments.env,
        "algorithm.name": arguments.algorithm,
        "run.iterations": arguments.iterations,
        "run.ranks": arguments.ranks,
        "run.seed": arguments.seed,
    }
    given = [(key, value) for key, value in flags.items() if value is not None]
    return given + [(f"logging.{name}", True) for name in arguments.log]


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "model"


def check_adapter_options(config: Config) -> None:
    """Let the adapter check its options; an unknown one gets the nearest name of both kinds of `env.` keys."""
    own = [field.name for field in dataclasses.fields(adapter_class(config.env.name).Options)]
    fields = [field.name for field in dataclasses.fields(EnvConfig) if field.name != "options"]
    known = [f"env.{name}" for name in own + fields]
    for key in config.env.options:
        if key not in own:
            near = did_you_mean(f"env.{key}", known) or f"; {config.env.name} has {', '.join(sorted(own))}"
            raise ConfigError(f"unknown key env.{key}{near}")
    make_adapter(config.env.name, config.env.options)
