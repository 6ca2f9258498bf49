"""A game's own grammar turns facts into text: parses kept for all games, contexts copied shallowly."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TASK_RULE = re.compile(r'("rhs": "Your task is to: )([A-Za-z0-9 ,.\'-]*)(")')


@functools.lru_cache(maxsize=8)
def _parse_logic(domain: str, grammar: str):
    from textworld.envs.pddl.logic import GameLogic

    return GameLogic(domain=domain, grammar=grammar)


def load_logic(domain: str, grammar: str) -> tuple[Any, dict[str, list]]:
    """(TextWorld's GameLogic, its grammar rules) of a game, parsed once for all games that differ by the task only.

    The task sentence stands in one rule of the grammar; where it is plain words, only that rule is parsed anew.
    """
    match = _TASK_RULE.search(grammar)
    if match is None or len(_TASK_RULE.findall(grammar)) > 1:
        logic = _parse_logic(domain, grammar)
        return logic, dict(logic.grammar._rules)
    logic = _parse_logic(domain, _TASK_RULE.sub(r"\1UNKNOWN GOAL.\3", grammar))
    rules = dict(logic.grammar._rules)
    stock = rules["task"][0]
    rules["task"] = [type(stock)("task", _parse_rule("Your task is to: " + match.group(2)), stock.weight, "")]
    return logic, rules


@functools.lru_cache(maxsize=4096)
def _parse_rule(text: str) -> list:
    from textworld.envs.pddl import textgen

    return textgen._parse_and_convert(text, rule_name="symbols")


@functools.lru_cache(maxsize=4096)
def _parse_query(text: str):
    from textworld.logic import Rule

    return Rule.parse_conjunctive_query(text)


@functools.lru_cache(maxsize=4096)
def _compile(expression: str):
    return compile(expression.strip(), "<grammar>", "eval")


@dataclass
class Context:
    """What a grammar symbol may refer to: the state, named entities, and which variable each placeholder means."""

    state: Any
    entities: Mapping[str, Any]
    variables: Mapping[str, Any]
    mapping: Mapping[Any, Any]


class Grammar:
    """TextWorld's context-sensitive grammar, evaluated recursively instead of on a stack of deep copies."""

    def __init__(self, rules: Mapping[str, list]) -> None:
        from textworld.envs.pddl import textgen

        self._rules = rules
        self._kinds = textgen

    def derive(self, text: str, context: Context) -> str:
        return "".join(self._expand(symbol, context) for symbol in _parse_rule(text))

    def _expand(self, symbol: Any, context: Context) -> str:
        kinds = self._kinds
        if isinstance(symbol, kinds.TerminalSymbol):
            return str(symbol.symbol)
        if isinstance(symbol, kinds.NonterminalSymbol):
            return self._apply_rule(str(symbol.symbol), context)
        if isinstance(symbol, kinds.ListSymbol):
            return self._list(symbol.symbol, context)
        if isinstance(symbol, kinds.ConditionalSymbol):
            return "".join(self._expand(symbol.expression, found) for found in self._matches(symbol.given, context))
        if isinstance(symbol, kinds.EvalSymbol):
            return str(eval(_compile(symbol.expression), {}, dict(context.variables)))  # the game's own grammar
        raise NotImplementedError(f"unknown grammar symbol: {type(symbol)}")

    def _apply_rule(self, name: str, context: Context) -> str:
        rules = self._rules.get(name)
        if not rules:
            raise self._kinds.CSGUnknownSymbolError(name)
        for rule in rules:
            if not rule.condition or self._holds(rule.condition, context):
                return "".join(self._expand(symbol, context) for symbol in rule.rhs)
        raise IndexError(f"no rule of {name!r} applies")

    def _list(self, symbol: Any, context: Context) -> str:
        items = [self._expand(symbol.expression, found) for found in self._matches(symbol.given, context)]
        if not items:
            return self._apply_rule("list_empty", context)
        if len(items) == 1:
            return items[0]
        separator = self._apply_rule("list_separator", context)
        return separator.join(items[:-1]) + self._apply_rule("list_last_separator", context) + items[-1]

    def _holds(self, condition: str, context: Context) -> bool:
        found = context.state.all_assignments(_parse_query(condition), context.mapping)
        return next(iter(found), None) is not None

    def _matches(self, given: str | None, context: Context) -> list[Context]:
        if not given:
            return [context]
        contexts = []
        for assignment in context.state.all_assignments(_parse_query(given), context.mapping):
            named = {placeholder.name: context.entities[var.name] for placeholder, var in assignment.items()}
            contexts.append(
                Context(
                    context.state,
                    context.entities,
                    {**context.variables, **named},
                    {**context.mapping, **assignment},
                )
            )
        return contexts


QUERY_IN_TEMPLATE = re.compile(r"\{[^{}|]*\|([^{}]*)\}")
_PREDICATE = re.compile(r"([\w@$-]+)\(")


def queried_predicates(texts: list[str]) -> set[str]:
    return {name for text in texts for name in _PREDICATE.findall(text)}


def visible_names(identifiers: list[str]) -> dict[str, str]:
    """Engine id -> name in the text, as alfworld's demangler gives it (the highest number to the first sorted id).

    Ids without coordinates (agent, types) keep a trailing blank, as they do there.
    """
    ids = sorted(identifiers)
    classes = {}
    for identifier in ids:
        head, bar, _ = identifier.partition("_bar_")
        classes[identifier] = (head + ("basin" if "basin" in identifier else "")) if bar else None
    left: dict[str, int] = {}
    for class_ in classes.values():
        if class_ is not None:
            left[class_] = left.get(class_, 0) + 1
    names = {}
    for identifier in ids:
        class_ = classes[identifier]
        if class_ is None:
            names[identifier] = identifier.replace("_minus_", "-").replace("_plus_", "+").replace("_dot_", ".") + " "
        else:
            text = class_
            for mangled, plain in (("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ",")):
                text = text.replace(mangled, plain)
            names[identifier] = f"{text} {left[class_]}"
            left[class_] -= 1
    return names
