"""Finds an adapter by name and builds it from plain options. Imports no engine.

A name is one of `BUILTIN`, an entry point of the group `sapo.env_adapters`, or a dotted path
`package.module:Class`. Options are checked against the adapter's frozen `Options` dataclass.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import types
import typing
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from env_adapters.base import Adapter, EnvironmentFault

ENTRY_POINT_GROUP = "sapo.env_adapters"
BUILTIN = {
    "alfworld": "env_adapters.alfworld:AlfworldAdapter",
    "webshop": "env_adapters.webshop.adapter:WebshopAdapter",
}


def adapter_names() -> list[str]:
    """Built-in names and those that installed packages register."""
    return sorted({*BUILTIN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def adapter_class(name: str) -> type[Adapter]:
    """The adapter class behind a name. Raises EnvironmentFault for an unknown one, with the nearest names."""
    if name in BUILTIN:
        return _load(name, BUILTIN[name])
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name == name:
            return _load(name, point.value)
    if ":" in name:
        return _load(name, name)
    near = difflib.get_close_matches(name, adapter_names(), n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(adapter_names())}."
    raise EnvironmentFault(f"environment {name!r}: no such name; {hint} Or give a dotted path, package.module:Class")


def make_adapter(name: str, options: Mapping[str, Any] | None = None) -> Adapter:
    """An adapter built from plain options (strings from a command line are converted where that is unambiguous)."""
    found = adapter_class(name)
    return found(parse_options(name, found.Options, options or {}))


def parse_options(name: str, cls: type, options: Mapping[str, Any]) -> Any:
    """An instance of the `Options` dataclass. Raises EnvironmentFault that names the key, the value and the remedy."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in options.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(fields))}"
            raise EnvironmentFault(f"environment {name!r}: unknown option {key!r}; {hint}")
        values[key] = _convert(name, key, value, hints[key])
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:
        raise EnvironmentFault(f"environment {name!r}: {error}") from error


def _load(name: str, path: str) -> type[Adapter]:
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module may raise anything while it is imported, and a name may be no name
        reason = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise EnvironmentFault(
            f"environment {name!r}: cannot import {module_name} ({reason}); install its package or mend the path"
        ) from error
    found = getattr(module, attribute, None)
    if not isinstance(found, type):
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"did you mean {near[0]}?" if near else "give package.module:Class"
        raise EnvironmentFault(f"environment {name!r}: {module_name} has no class {attribute!r}; {hint}")
    missing = [part for part in _PARTS if not hasattr(found, part)]
    if missing or not dataclasses.is_dataclass(found.Options):
        lack = ", ".join(missing) or "Options as a dataclass"
        raise EnvironmentFault(f"environment {name!r}: {path} is no adapter, it lacks {lack}; see env_adapters/base.py")
    return found


_PARTS = (
    "name", "Options", "train_split", "warm_start_split", "evaluation_splits", "prepare", "tasks", "make", "prompt",
    "response", "vocabulary", "description",
)  # fmt: skip


def _convert(name: str, key: str, value: Any, wanted: Any) -> Any:
    """`value` as the field's type. Accepts int for float, and the text of a number or truth value."""
    allowed = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if typing.get_origin(wanted) is typing.Union:
        allowed = typing.get_args(wanted)
    if value is None and type(None) in allowed:
        return None
    for type_ in allowed:
        if typing.get_origin(type_) is typing.Literal:
            if value in typing.get_args(type_):
                return value
            choices = ", ".join(map(str, typing.get_args(type_)))
            near = difflib.get_close_matches(str(value), [str(c) for c in typing.get_args(type_)], n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose one of {choices}"
            raise EnvironmentFault(f"environment {name!r}: option {key}={value!r} is not one of {choices}; {hint}")
        if type_ is float and type(value) in (int, float):
            return float(value)
        if type_ in (int, str, bool) and type(value) is type_:
            return value
        if isinstance(value, str) and type_ in (int, float):
            try:
                return type_(value)
            except ValueError:
                continue
        if isinstance(value, str) and type_ is bool and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if type_ not in (int, float, str, bool, type(None)):
            return value  # a type of the adapter's own: its __post_init__ checks it
    kinds = " or ".join(getattr(t, "__name__", str(t)) for t in allowed if t is not type(None))
    raise EnvironmentFault(f"environment {name!r}: option {key}={value!r} is {type(value).__name__}; give {kinds}")
