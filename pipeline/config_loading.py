"""From presets, flags and `--set key=value` to one checked `Config`; and back to config.yaml.

Later sources win: the dataclasses' defaults, the preset, the preset's section for the environment,
flags, `--set`. Types are checked by jsonargparse, ranges by the dataclasses, names here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from pipeline import VERSION
from pipeline.algorithm_options import DEFAULT_ALGORITHM, check_groups, known_algorithm, move_options, option_section
from pipeline.config import AlgorithmConfig, Config, ConfigError, EnvConfig, did_you_mean
from runtime.files import atomic_write_text

PRESETS = Path(__file__).parent / "presets"
MODEL_PRESETS = {
    "tiny": "tiny",
    "Qwen2.5-1.5B": "paper-1.5b",
    "Qwen2.5-7B": "paper-7b",
    "smollm2-135m": "smollm2-135m",
}
OTHER_MODEL_PRESET = "paper-1.5b"
DEFAULT_PRESET = "tiny"
FORMAT = 1  # of config.yaml and of the run directory

# What a started run may change (keys or whole sections): every file that was written stays as valid as it was.
MAY_CHANGE = (
    "run.iterations",
    "run.ranks",
    "run.stage_timeout_s",
    "rollout.backend",
    "rollout.slots",
    "rollout.workers",
    "rollout.turn_timeout_s",
    "rollout.max_error_share",
    "advantage.score_tokens",
    "optimize.max_skipped_steps",
    "optimize.microbatch_tokens",
    "optimize.gradient_checkpointing",
    "evaluate.every",
    "checkpoint",
    "logging",
)

EXPONENT_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")  # YAML 1.1 reads 1e-6 as text

LARGEST = 1e15  # of any number: sums and products of settings stay exact enough, and finite in fp32

_MISSING = object()


def preset_names() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def preset_for_model(model: str | None) -> str:
    """The preset that goes with a model where none is named."""
    return DEFAULT_PRESET if model is None else MODEL_PRESETS.get(model, OTHER_MODEL_PRESET)


def load_preset(name: str, environment: str | None, algorithm: str | None = None) -> dict[str, Any]:
    """A preset's settings as a tree, its sections for the environment and the algorithm merged in.

    A preset may name another one as its `base`, above which it stands.

    Raises:
        ConfigError: no such preset.
    """
    if name not in preset_names():
        known = preset_names()
        raise ConfigError(f"unknown preset {name}{did_you_mean(name, known)}; there are {', '.join(known)}")
    tree = _read_preset(name)
    for_environments, for_algorithms = tree.pop("environments", {}), tree.pop("algorithms", {})
    tree["env"]["name"] = environment or tree["env"]["name"]
    tree = merge(tree, for_environments.get(tree["env"]["name"], {}))
    for_algorithms = merge(for_algorithms, tree.pop("algorithms", {}))  # an environment may have its own
    own = tree.setdefault("algorithm", {})
    own["name"] = algorithm or own.get("name", DEFAULT_ALGORITHM)
    return merge(tree, for_algorithms.get(own["name"], {}))


def _read_preset(name: str) -> dict[str, Any]:
    tree = yaml.safe_load((PRESETS / f"{name}.yaml").read_text(encoding="utf-8"))
    base = tree.pop("base", None)
    return merge(_read_preset(base), tree) if base else tree


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two trees in one; where both have a leaf, `above` wins."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def parse_setting(setting: str) -> tuple[str, Any]:
    """`optimize.learning_rate=1e-6` -> ("optimize.learning_rate", 1e-06).

    Raises:
        ConfigError: not of the form section.key=value.
    """
    key, equals, text = setting.partition("=")
    key = key.strip()
    if not equals or key.count(".") != 1 or not all(key.split(".")):
        raise ConfigError(f"--set {setting}: must be section.key=value, such as optimize.learning_rate=1e-6")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as fault:  # ValueError: thousands of digits, a month 13
        raise ConfigError(f"--set {setting[:100]}: the value is not YAML; put quotes around it") from fault
    if isinstance(value, str) and EXPONENT_NUMBER.fullmatch(value):
        value = float(value)
    return key, value


def apply_settings(tree: Mapping[str, Any], settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The tree with each ("section.key", value) put in, in order."""
    for key, value in settings:
        section, name = key.split(".")
        tree = merge(tree, {section: {name: value}})
    return dict(tree)


def build_config(tree: Mapping[str, Any]) -> Config:
    """Check names, types and ranges of a tree of settings and freeze it.

    Keys of `env` that are no field of EnvConfig are the adapter's options (checked by the adapter). The section of the
    algorithm's own name holds its options.

    Raises:
        ConfigError: names the key, the value and what is allowed.
    """

    tree = move_options(_move_adapter_options(tree))
    _check_names(tree)
    config = Config(**_typed(Config, tree))
    for key, value in config.env.options.items():
        _check_value(f"env.{key}", value, Any)
    return dataclasses.replace(config, algorithm=_with_all_options(config))


def _typed(kind: type, tree: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """The fields of a dataclass out of a tree, types checked."""
    import jsonargparse  # here: what only reads a run does without it

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parser = jsonargparse.ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(kind, section or None)
        try:
            found = parser.instantiate(parser.parse_object({section: tree} if section else tree))
        except ConfigError:
            raise
        except Exception as fault:  # argparse, jsonargparse and typing raise what they like for a wrong type
            sections = {section: kind} if section else get_type_hints(Config)
            raise ConfigError(_explain({section: tree} if section else tree, fault, sections)) from fault
    return vars(found[section]) if section else vars(found)


def _with_all_options(config: Config) -> AlgorithmConfig:
    """The algorithm with a value for each of its options.

    Raises:
        ConfigError: no such algorithm, a wrong option, or trajectories that do not divide into its groups.
    """
    kind = known_algorithm(config.algorithm.name)
    section = option_section(config.algorithm.name)
    hints = get_type_hints(kind.Options)
    for key, value in config.algorithm.options.items():
        if key not in hints:
            names = [f"{section}.{name}" for name in hints]
            near = did_you_mean(f"{section}.{key}", names) or f"; there are {', '.join(names) or 'none'}"
            raise ConfigError(f"unknown key {section}.{key}{near}")
        _check_value(f"{section}.{key}", value, hints[key])
    try:
        options = kind.Options(**_typed(kind.Options, config.algorithm.options, section))
    except ValueError as fault:
        raise ConfigError(f"{section}.{fault}") from fault
    algorithm = dataclasses.replace(config.algorithm, options=dataclasses.asdict(options))
    check_groups(dataclasses.replace(config, algorithm=algorithm))
    return algorithm


def _move_adapter_options(tree: Mapping[str, Any]) -> dict[str, Any]:
    env = tree.get("env", {})
    if not isinstance(env, Mapping):
        return dict(tree)
    fields = {field.name for field in dataclasses.fields(EnvConfig)}
    options = env.get("options") or {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"env.options = {options!r}: must be keys and values; set env.<key>=<value> one by one")
    options = dict(options)
    options.update({key: value for key, value in env.items() if key not in fields})
    known = {key: value for key, value in env.items() if key in fields}
    return {**tree, "env": {**known, "options": options}}


def _check_names(tree: Mapping[str, Any]) -> None:
    sections = get_type_hints(Config)
    every = [f"{name}.{field.name}" for name, kind in sections.items() for field in dataclasses.fields(kind)]
    for section, values in tree.items():
        if section not in sections:
            raise ConfigError(f"unknown section {section}{did_you_mean(section, sections)}")
        if not isinstance(values, Mapping):
            raise ConfigError(f"{section} = {values!r}: must be a section of keys, such as {section}.key: value")
        hints = get_type_hints(sections[section])
        for name, value in values.items():
            key = f"{section}.{name}"
            if key not in every:
                raise ConfigError(f"unknown key {key}{did_you_mean(key, every)}")
            _check_value(key, value, hints[name])


def _check_value(key: str, value: Any, kind: Any) -> None:
    """Refuse what no type check or range refuses in words: nothing at all, and numbers beyond all use."""
    if value is None and kind is not Any:
        raise ConfigError(f"{key} = null: must be {_type_name(kind)}")
    if isinstance(value, int | float) and not abs(value) < LARGEST:
        raise ConfigError(f"{key} = {str(value)[:24]}: must be finite and below {LARGEST:.0e}")


def _explain(tree: Mapping[str, Any], fault: Exception, sections: Mapping[str, type]) -> str:
    """One line for a type error: the key, the value, the type."""
    text = " ".join(str(fault).split())
    for section, kind in sections.items():
        hints = get_type_hints(kind)
        for name, value in tree.get(section, {}).items():
            if f'"{section}.{name}"' in text:
                return f"{section}.{name} = {value!r}: must be {_type_name(hints[name])}"
    return f"{next(iter(sections))}.{text}" if len(sections) == 1 else text


def _type_name(kind: Any) -> str:
    choices = getattr(kind, "__args__", None)
    if choices and "Literal" in str(kind):
        return "one of " + ", ".join(str(choice) for choice in choices)
    return {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}.get(
        getattr(kind, "__name__", ""), str(kind)
    )


def to_tree(config: Config) -> dict[str, Any]:
    """The inverse of `build_config`: plain dicts and scalars."""
    tree = dataclasses.asdict(config)
    tree["env"]["options"] = dict(config.env.options)
    tree["algorithm"]["options"] = dict(config.algorithm.options)
    return tree


def flatten(config: Config) -> dict[str, Any]:
    """Every setting under its dotted name; the adapter's options as env.<key>, the algorithm's as <algorithm>.<key>."""
    flat = {}
    for section, values in to_tree(config).items():
        for name, value in values.items():
            if (section, name) == ("env", "options"):
                flat.update({f"env.{key}": option for key, option in value.items()})
            elif (section, name) == ("algorithm", "options"):
                own = option_section(config.algorithm.name)
                flat.update({f"{own}.{key}": option for key, option in value.items()})
            else:
                flat[f"{section}.{name}"] = value
    return flat


def differences(old: Config, new: Config) -> list[str]:
    """What may not change in a started run but did, one `key: old -> new` each."""
    before, after = flatten(old), flatten(new)
    lines = []
    for key in sorted(before.keys() | after.keys()):
        old_value, new_value = before.get(key, _MISSING), after.get(key, _MISSING)
        if old_value != new_value and not _may_change(key):
            lines.append(f"{key}: {_shown(old_value)} -> {_shown(new_value)}")
    return lines


def _may_change(key: str) -> bool:
    return key in MAY_CHANGE or key.split(".")[0] in MAY_CHANGE


def _shown(value: Any) -> str:
    return "(not set)" if value is _MISSING else repr(value)


def fingerprint(config: Config) -> str:
    """16 hexadecimal digits over all settings that may not change in a started run."""
    fixed = {key: value for key, value in flatten(config).items() if not _may_change(key)}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True, default=str).encode()).hexdigest()[:16]


def save_config(config: Config, path: str | Path) -> None:
    """Write config.yaml, whole or not at all."""
    tree = {"format": FORMAT, "version": VERSION, **to_tree(config)}
    atomic_write_text(path, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def load_config(path: str | Path) -> Config:
    """Read a run's config.yaml.

    Raises:
        ConfigError: unreadable, of another version of the format, or with wrong settings.
    """
    path = Path(path)
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as fault:
        reason = " ".join(str(fault).split())
        raise ConfigError(f"{path}: cannot be read ({reason}); name a run directory that `bash run.sh` made") from fault
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        found = tree.get("format") if isinstance(tree, dict) else None
        raise ConfigError(
            f"{path}: run directory of format {found!r}, this version reads {FORMAT}; "
            "use the version that made it, or another --run-dir"
        )
    try:
        return build_config({key: value for key, value in tree.items() if key not in ("format", "version")})
    except ConfigError as fault:
        raise ConfigError(f"{path}: {fault}; use the version that made it, or another --run-dir") from fault
