"""From presets, flags and `--set key=value` to one checked `Config`; and back to config.yaml.

Later sources win: the dataclasses' defaults, the preset, the preset's section for the environment,
flags, `--set`. Types are checked by jsonargparse, ranges by the dataclasses, names here.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from pipeline import VERSION
from pipeline.config import Config, ConfigError, EnvConfig
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


def load_preset(name: str, environment: str | None) -> dict[str, Any]:
    """A preset's settings as a tree, its section for the environment merged in.

    Raises:
        ConfigError: no such preset.
    """
    if name not in preset_names():
        known = preset_names()
        raise ConfigError(f"unknown preset {name}{did_you_mean(name, known)}; there are {', '.join(known)}")
    tree = yaml.safe_load((PRESETS / f"{name}.yaml").read_text(encoding="utf-8"))
    sections = tree.pop("environments", {})
    environment = environment or tree["env"]["name"]
    tree["env"]["name"] = environment
    return merge(tree, sections.get(environment, {}))


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
    except (yaml.YAMLError, ValueError) as fault:  # ValueError: a number of thousands of digits, a date of month 13
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

    Keys of `env` that are no field of EnvConfig are the adapter's options (checked by the adapter).

    Raises:
        ConfigError: names the key, the value and what is allowed.
    """
    import jsonargparse  # here: what only reads a run does without it

    tree = _move_adapter_options(tree)
    _check_names(tree)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parser = jsonargparse.ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(Config, None)
        try:
            config = Config(**vars(parser.instantiate(parser.parse_object(tree))))
        except ConfigError:
            raise
        except Exception as fault:  # argparse, jsonargparse and typing raise what they like for a wrong type
            raise ConfigError(_explain(tree, fault)) from fault
    for key, value in config.env.options.items():
        _check_value(f"env.{key}", value, Any)
    return config


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


def _explain(tree: Mapping[str, Any], fault: Exception) -> str:
    """One line for a type error: the key, the value, the type."""
    text = " ".join(str(fault).split())
    for section, kind in get_type_hints(Config).items():
        hints = get_type_hints(kind)
        for name, value in tree.get(section, {}).items():
            if f'"{section}.{name}"' in text:
                return f"{section}.{name} = {value!r}: must be {_type_name(hints[name])}"
    return text


def _type_name(kind: Any) -> str:
    choices = getattr(kind, "__args__", None)
    if choices and "Literal" in str(kind):
        return "one of " + ", ".join(str(choice) for choice in choices)
    return {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}.get(
        getattr(kind, "__name__", ""), str(kind)
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean optimize.learning_rate?`, or nothing where no name is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def to_tree(config: Config) -> dict[str, Any]:
    """The inverse of `build_config`: plain dicts and scalars."""
    tree = dataclasses.asdict(config)
    tree["env"]["options"] = dict(config.env.options)
    return tree


def flatten(config: Config) -> dict[str, Any]:
    """Every setting under its dotted name; the adapter's options as env.<key>."""
    flat = {}
    for section, values in to_tree(config).items():
        for name, value in values.items():
            if (section, name) == ("env", "options"):
                flat.update({f"env.{key}": option for key, option in value.items()})
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
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as fault:
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
