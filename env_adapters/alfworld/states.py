"""What was learnt of each game: its states, the transitions between them, and what its operators say."""

from __future__ import annotations

import functools
import re
import zlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from env_adapters.alfworld.grammar import QUERY_IN_TEMPLATE, Grammar, load_logic, queried_predicates, visible_names
from env_adapters.alfworld.translation import Translation

MAX_CACHED_GAMES = 512  # a process; about 0.1 MB each in tiny scenes, 0.5 MB in full ones
MAX_CACHED_STATES = 20_000  # over all these games; about 5 kB each with the operators that lead there
MAX_MEMENTOS = 100_000  # TextWorld keeps every proposition ever made, for ever: about 1 kB each


@dataclass(eq=False)
class Node:
    """One state of one game, up to facts that nothing asks about."""

    admissible: tuple[str, ...]
    commands: Mapping[str, str]  # command -> operator name
    won: bool
    edges: dict[str, Edge] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Edge:
    feedback: str
    node: Node
    operator: tuple[int, int]  # the library's number of it, and how many facts it sets


@dataclass(eq=False)
class Operator:
    """An operator of a game: what its command says, and what its text may refer to."""

    feedback_rule: str
    mapping: Mapping[Any, Any]
    variables: Mapping[str, Any]
    template: str
    command: str | None  # None: must be derived in each state


class LoadedGame:
    """A translated game with everything that was learnt of it so far. `notes` are the caller's, kept beside it."""

    def __init__(self, data: Mapping[str, Any], translation: Translation, notes: Any) -> None:
        from textworld.generator.game import EntityInfo
        from textworld.logic import Type

        self.notes = notes
        self.parameters = translation.parameters
        self._sas = zlib.compress(translation.sas.encode("utf-8"), 1)  # read at misses only: 40 kB to 4
        self._initial: Any = None
        self._initial_facts = translation.facts
        self._facts_by_atom: dict[str, Any] = {}
        self.logic, rules = load_logic(data["pddl_domain"], data["grammar"])
        for name, supertypes in translation.types:
            if name not in self.logic.types._types:
                self.logic.types.add(Type(name, supertypes))
        self.grammar = Grammar(rules)
        self.name2type = dict(translation.objects)
        in_facts = sorted({argument for _, arguments in translation.facts for argument in arguments})
        self.entities = {}
        for identifier, name in visible_names(in_facts).items():
            info = EntityInfo(identifier, self.name2type[identifier])
            info.name, info.definite, info.indefinite = name, "the", "a"
            self.entities[identifier] = info
        self.operators: dict[str, Operator] = {}
        self.nodes: dict[int, Node] = {}
        self.fact_bits: dict[Any, int] = {}
        self.intro = ""
        self.kept = False  # whether a cache counts its states
        self.root: Node | None = None
        templates = [action.template for action in self.logic.actions.values()]
        conditions = [rule.condition for group in rules.values() for rule in group if rule.condition]
        conditions += QUERY_IN_TEMPLATE.findall(data["grammar"])
        # Facts outside these can change no text, no admissible command and no goal.
        self.asked = translation.conditions | queried_predicates(conditions)
        self.template_queries = {t: queried_predicates(QUERY_IN_TEMPLATE.findall(t)) for t in templates}

    @property
    def sas(self) -> bytes:
        return zlib.decompress(self._sas)

    def fact(self, atom: Any) -> Any:
        """TextWorld's proposition for an atom of the library."""
        name = atom.name
        found = self._facts_by_atom.get(name)
        if found is None:
            found = self._facts_by_atom[name] = atom.get_fact(self.name2type)
        return found

    def initial_state(self, atoms: Callable[[], Iterable[Any]]) -> Any:
        """A fresh copy of TextWorld's state at the start; `atoms` asks the library, the first time only."""
        if self._initial is None:
            self._initial = _new_state(self, self._initial_facts, atoms())
            self._initial_facts = ()
        return _copy_state(self._initial)


class GameCache:
    """Games known in this process, the least recently played forgotten first. Slots share it."""

    def __init__(self) -> None:
        self._games: OrderedDict[str, LoadedGame] = OrderedDict()
        self.num_states = 0

    def get(self, key: str) -> LoadedGame | None:
        if key in self._games:
            self._games.move_to_end(key)
        return self._games.get(key)

    def add(self, key: str, game: LoadedGame) -> None:
        from mementos import core as mementos

        while self._games and (len(self._games) >= MAX_CACHED_GAMES or self.num_states > MAX_CACHED_STATES):
            _, dropped = self._games.popitem(last=False)
            dropped.kept = False
            self.num_states -= len(dropped.nodes)
        if len(mementos._memento_cache) > MAX_MEMENTOS:
            mementos._memento_cache.clear()  # they compare by value: what is still in use stays right
        self._games[key] = game
        game.kept = True

    def clear(self) -> None:
        self._games.clear()
        self.num_states = 0


@functools.lru_cache(maxsize=8)
def changing_predicates(domain: str) -> frozenset[str]:
    """Predicates that stand in any action's effect (read generously: every name after an `:effect`)."""
    text = re.sub(r";[^\n]*", "", domain.lower())
    effects = [part.split("(:action")[0] for part in text.split(":effect")[1:]]
    return frozenset(name for effect in effects for name in re.findall(r"\(\s*([\w-]+)", effect))


def _new_state(game: LoadedGame, facts: Iterable[tuple[str, tuple[str, ...]]], atoms: Iterable[Any]) -> Any:
    """TextWorld's PddlState at the start of an episode, made from a kept translation instead of a new one."""
    from textworld.logic import Proposition, Variable

    state = _empty_state(game)
    for predicate, arguments in facts:
        state.add_fact(Proposition(predicate, [Variable(a, game.name2type[a]) for a in arguments]))
    for atom in atoms:
        fact = game.fact(atom)
        if not fact.is_negation:
            state.add_fact(fact)
    return state


def _empty_state(game: LoadedGame) -> Any:
    from textworld.envs.pddl.logic import PddlState

    # Its constructor would translate; these are the fields that it sets for the facts.
    state = PddlState.__new__(PddlState)
    state._facts = defaultdict(set)
    state._vars_by_name = {}
    state._vars_by_type = defaultdict(set)
    state._var_counts = Counter()
    state._logic = game.logic
    state.name2type = game.name2type
    return state


def _copy_state(state: Any) -> Any:
    copy = type(state).__new__(type(state))
    copy._facts = defaultdict(set, {signature: set(facts) for signature, facts in state._facts.items()})
    copy._vars_by_name = dict(state._vars_by_name)
    copy._vars_by_type = defaultdict(set, {kind: set(found) for kind, found in state._vars_by_type.items()})
    copy._var_counts = Counter(state._var_counts)
    copy._logic, copy.name2type = state._logic, state.name2type
    return copy
