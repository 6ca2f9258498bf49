"""The translation of a game's PDDL problem to what the engine needs, as a value that is kept on disk."""

from __future__ import annotations

import functools
import io
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from env_adapters.base import EnvironmentFault


@dataclass(frozen=True)
class Translation:
    """What the engine needs of a translated problem; small, and JSON both ways.

    Example:
        Translation(sas="begin_version\\n3...", objects=(("agent1", "agent"), ("mug_bar__plus_...", "object")),
                    facts=(("openable", ("fridge_bar_...",)),), parameters={"openobject": (("a", "agent"), ...)},
                    types=(("object", ()), ("agent", ("object",))), conditions=frozenset({"opened", ...}))
    """

    sas: str
    objects: tuple[tuple[str, str], ...]  # (name, type)
    facts: tuple[tuple[str, tuple[str, ...]], ...]  # initial atoms as the problem states them
    parameters: Mapping[str, tuple[tuple[str, str], ...]]  # action -> its (parameter, type)
    types: tuple[tuple[str, tuple[str, ...]], ...]
    conditions: frozenset[str]  # predicates that any action, axiom or the goal asks about

    def to_json(self) -> dict[str, Any]:
        domain = {"parameters": dict(self.parameters), "types": self.types, "conditions": sorted(self.conditions)}
        # A text of its own: it is the same for all games of a domain, so that readers can share what they parse.
        return {"sas": self.sas, "objects": self.objects, "facts": self.facts, "domain": json.dumps(domain)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Translation:
        parameters, types, conditions = _domain_facts(value["domain"])
        return cls(
            sas=value["sas"],
            objects=tuple(map(tuple, value["objects"])),
            facts=tuple((name, tuple(args)) for name, args in value["facts"]),
            parameters=parameters,
            types=types,
            conditions=conditions,
        )


@functools.lru_cache(maxsize=64)
def _domain_facts(text: str) -> tuple[dict, tuple, frozenset]:
    value = json.loads(text)
    parameters = {name: tuple(map(tuple, found)) for name, found in value["parameters"].items()}
    types = tuple((name, tuple(supertypes)) for name, supertypes in value["types"])
    return parameters, types, frozenset(value["conditions"])


def translate(domain: str, problem: str) -> Translation:
    """Ground a PDDL problem. 20 ms for a tiny scene, up to a second for a full one.

    Raises EnvironmentFault where the text is not what fast-downward accepts.
    """
    import fast_downward

    # fast-downward's entry point overwrites sys.argv and swaps sys.stdout, also when it raises.
    argv, stdout = sys.argv, sys.stdout
    try:
        sys.stdout = io.StringIO()
        task, sas = fast_downward.pddl2sas(domain, problem)
    except (Exception, SystemExit) as error:
        raise EnvironmentFault(f"the PDDL problem does not translate: {type(error).__name__}: {error}") from error
    finally:
        sys.argv, sys.stdout = argv, stdout
    from fast_downward.translate import pddl

    facts = tuple((a.predicate, tuple(a.args)) for a in task.init if isinstance(a, pddl.Atom) and a.predicate != "=")
    conditions: set[str] = set()
    for action in task.actions:
        _collect_predicates(action.precondition, conditions)
        for effect in action.effects:
            _collect_predicates(effect.condition, conditions)
    for axiom in task.axioms:
        _collect_predicates(axiom.condition, conditions)
    _collect_predicates(task.goal, conditions)
    return Translation(
        sas=sas,
        objects=tuple((o.name, o.type_name) for o in task.objects),
        facts=facts,
        parameters={a.name: tuple((p.name.strip("?"), p.type_name) for p in a.parameters) for a in task.actions},
        types=tuple((t.name, tuple(t.supertype_names)) for t in task.types),
        conditions=frozenset(conditions),
    )


def _collect_predicates(condition: Any, found: set[str]) -> None:
    if hasattr(condition, "predicate"):
        found.add(condition.predicate)
    for part in getattr(condition, "parts", ()):
        _collect_predicates(part, found)
