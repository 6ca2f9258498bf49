"""One TextWorld engine slot, several times faster than the stock one and equal to it byte for byte.

What the engine is made of: fast-downward's library holds the state and its applicable operators, TextWorld's
`State` holds the facts, and the game's own grammar turns both into text. All three are used here as they are.
What is saved is work that stock TextWorld 1.7.0 repeats:

- the translation from PDDL to SAS (four times an episode) is done once and kept, on disk too;
- TatSu parses of grammar rules and of queries are memoised, and contexts are copied shallowly;
- commands whose template asks for unchanging facts only are derived once a game;
- transitions are kept: (game, facts that matter, command) -> (feedback, next state). An episode on beaten
  tracks never touches the library; at the first new transition the library is brought up to date by
  replaying the episode's operators.

`tests/env_adapters/test_alfworld_engine.py` compares transcripts with the stock engine, and `require_engine`
refuses any version of textworld that was not compared.
"""

from __future__ import annotations

import functools
import io
import json
import re
import sys
import zlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from env_adapters.base import EnvironmentFault

TESTED_TEXTWORLD = "1.7.0"
INSTALL_HINT = "pip install 'textworld[pddl]==1.7.0' 'alfworld==0.4.2'"
NOTHING_HAPPENS = "Nothing happens."

MAX_CACHED_GAMES = 512  # a process; about 0.1 MB each in tiny scenes, 0.5 MB in full ones
MAX_CACHED_STATES = 20_000  # over all these games; about 5 kB each with the operators that lead there
MAX_MEMENTOS = 100_000  # TextWorld keeps every proposition ever made, for ever: about 1 kB each


def require_engine() -> None:
    """Raise EnvironmentFault unless the engine is there in the version that this module was compared with."""
    try:
        import alfworld.gen.constants  # noqa: F401
        import fast_downward  # noqa: F401
        import textworld
    except ImportError as error:
        raise EnvironmentFault(
            f"environment 'alfworld' needs {error.name}, which is not installed: {INSTALL_HINT}"
        ) from error
    except OSError as error:  # alfworld makes its data folder when it is imported
        raise EnvironmentFault(
            f"alfworld cannot make its data folder ({error}); set ALFWORLD_DATA to a folder that can be written"
        ) from error
    if textworld.__version__ != TESTED_TEXTWORLD:
        raise EnvironmentFault(
            f"textworld {textworld.__version__} is installed; the engine's speed-up is checked against "
            f"{TESTED_TEXTWORLD} only: {INSTALL_HINT}"
        )


# ------------------------------------------------------------------------------------------------- translation
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


# ----------------------------------------------------------------------------------------------------- grammar
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
class _Context:
    """What a grammar symbol may refer to: the state, named entities, and which variable each placeholder means."""

    state: Any
    entities: Mapping[str, Any]
    variables: Mapping[str, Any]
    mapping: Mapping[Any, Any]


class _Grammar:
    """TextWorld's context-sensitive grammar, evaluated recursively instead of on a stack of deep copies."""

    def __init__(self, rules: Mapping[str, list]) -> None:
        from textworld.envs.pddl import textgen

        self._rules = rules
        self._kinds = textgen

    def derive(self, text: str, context: _Context) -> str:
        return "".join(self._expand(symbol, context) for symbol in _parse_rule(text))

    def _expand(self, symbol: Any, context: _Context) -> str:
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

    def _apply_rule(self, name: str, context: _Context) -> str:
        rules = self._rules.get(name)
        if not rules:
            raise self._kinds.CSGUnknownSymbolError(name)
        for rule in rules:
            if not rule.condition or self._holds(rule.condition, context):
                return "".join(self._expand(symbol, context) for symbol in rule.rhs)
        raise IndexError(f"no rule of {name!r} applies")

    def _list(self, symbol: Any, context: _Context) -> str:
        items = [self._expand(symbol.expression, found) for found in self._matches(symbol.given, context)]
        if not items:
            return self._apply_rule("list_empty", context)
        if len(items) == 1:
            return items[0]
        separator = self._apply_rule("list_separator", context)
        return separator.join(items[:-1]) + self._apply_rule("list_last_separator", context) + items[-1]

    def _holds(self, condition: str, context: _Context) -> bool:
        found = context.state.all_assignments(_parse_query(condition), context.mapping)
        return next(iter(found), None) is not None

    def _matches(self, given: str | None, context: _Context) -> list[_Context]:
        if not given:
            return [context]
        contexts = []
        for assignment in context.state.all_assignments(_parse_query(given), context.mapping):
            named = {placeholder.name: context.entities[var.name] for placeholder, var in assignment.items()}
            contexts.append(
                _Context(
                    context.state,
                    context.entities,
                    {**context.variables, **named},
                    {**context.mapping, **assignment},
                )
            )
        return contexts


_QUERY_IN_TEMPLATE = re.compile(r"\{[^{}|]*\|([^{}]*)\}")
_PREDICATE = re.compile(r"([\w@$-]+)\(")


def _queried_predicates(texts: list[str]) -> set[str]:
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


# ------------------------------------------------------------------------------------------ games and their states
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
class _Operator:
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
        self.grammar = _Grammar(rules)
        self.name2type = dict(translation.objects)
        in_facts = sorted({argument for _, arguments in translation.facts for argument in arguments})
        self.entities = {}
        for identifier, name in visible_names(in_facts).items():
            info = EntityInfo(identifier, self.name2type[identifier])
            info.name, info.definite, info.indefinite = name, "the", "a"
            self.entities[identifier] = info
        self.operators: dict[str, _Operator] = {}
        self.nodes: dict[int, Node] = {}
        self.fact_bits: dict[Any, int] = {}
        self.intro = ""
        self.kept = False  # whether a cache counts its states
        self.root: Node | None = None
        templates = [action.template for action in self.logic.actions.values()]
        conditions = [rule.condition for group in rules.values() for rule in group if rule.condition]
        conditions += _QUERY_IN_TEMPLATE.findall(data["grammar"])
        # Facts outside these can change no text, no admissible command and no goal.
        self.asked = translation.conditions | _queried_predicates(conditions)
        self.template_queries = {t: _queried_predicates(_QUERY_IN_TEMPLATE.findall(t)) for t in templates}

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


_SHARED = GameCache()


class EngineSlot:
    """A live engine: one fast-downward library, many games after each other. Not thread-safe.

    The library is a private 33 MB copy that stays mapped for life (the system shares what is not written, about
    1-3 MB a slot remain), so keep a slot and `load` games into it.
    """

    def __init__(self, cache: GameCache | None = None) -> None:
        require_engine()
        import fast_downward

        self._downward = fast_downward.load_lib()
        self._cache = _SHARED if cache is None else cache
        self._game: LoadedGame | None = None
        self._node: Node | None = None
        self._path: list[tuple[int, int]] = []  # operators since the start of the episode
        self._applied = -1  # how many of them the library has seen; -1: it holds another game or a past episode
        self._state: Any = None
        self.hits = 0
        self.misses = 0

    # -- episode ---------------------------------------------------------------------------------------------
    def load(self, key: str, data: Mapping[str, Any], translation: Translation, notes: Any = None) -> None:
        """Make a game known under `key`, which must name its content wherever it comes from."""
        if self._cache.get(key) is None:
            self._cache.add(key, LoadedGame(data, translation, notes))

    def use(self, cache: GameCache) -> None:
        """Take games from another cache from now on."""
        self._cache = cache

    def known(self, key: str) -> LoadedGame | None:
        """The game, if `reset(key)` needs neither file nor translation."""
        return self._cache.get(key)

    def reset(self, key: str) -> str:
        """Start an episode of a known game and return the stock engine's intro text."""
        self._game = self._cache.get(key)
        if self._game is None:
            raise EnvironmentFault(f"engine: game {key!r} is not loaded; call load first")
        self._path, self._applied = [], -1
        if self._game.root is None:
            self._synchronise()
            self._game.intro = self._game.grammar.derive("#intro#", self._context({}, {}))
            self._game.root = self._current_node()
        self._node = self._game.root
        return self._game.intro

    @property
    def admissible(self) -> tuple[str, ...]:
        return self._node.admissible

    @property
    def won(self) -> bool:
        """Whether the goal holds right now. A later action may undo it: the caller latches."""
        return self._node.won

    def step(self, command: str) -> str:
        """Play one command and return the stock engine's feedback; unknown commands change nothing."""
        command = command.strip()
        node = self._node
        if command not in node.commands:
            return NOTHING_HAPPENS
        edge = node.edges.get(command)
        if edge is None:
            self.misses += 1
            edge = node.edges[command] = self._play(command)
        else:
            self.hits += 1
            self._path.append(edge.operator)
        self._node = edge.node
        return edge.feedback

    def close(self) -> None:
        """End the episode. The library stays mapped: unmapping it crashes the process at exit."""
        self._game = self._node = self._state = None

    # -- the library -----------------------------------------------------------------------------------------
    def _synchronise(self) -> None:
        """Bring the library and the facts to the end of the path."""
        if self._applied < 0:
            self._downward.load_sas(self._game.sas)
            self._state = self._game.initial_state(self._atoms)
            self._applied = 0
        for operator in self._path[self._applied :]:
            self._apply(operator)
        self._applied = len(self._path)

    def _atoms(self) -> Iterable[Any]:
        from textworld.envs.pddl.logic import Atom

        atoms = (Atom * self._downward.get_state_size())()
        self._downward.get_state(atoms)
        return atoms

    def _apply(self, operator: tuple[int, int]) -> None:
        from textworld.envs.pddl.logic import Atom

        number, num_effects = operator
        effects = (Atom * num_effects)()
        self._downward.apply_operator(number, effects)
        for effect in effects:
            fact = self._game.fact(effect)
            self._state.remove_fact(fact.negate())
            self._state.add_fact(fact)

    def _applicable(self) -> list[Any]:
        import fast_downward

        operators = (fast_downward.Operator * self._downward.get_applicable_operators_count())()
        self._downward.get_applicable_operators(operators)
        return list(operators)

    def _play(self, command: str) -> Edge:
        self._synchronise()
        name = self._node.commands[command]
        operator = next((op.id, op.nb_effect_atoms) for op in self._applicable() if op.name == name)
        self._apply(operator)
        self._path.append(operator)
        self._applied = len(self._path)
        known = self._game.operators[name]
        feedback = self._game.grammar.derive(known.feedback_rule, self._context(known.variables, known.mapping))
        return Edge(feedback, self._current_node(), operator)

    def _context(self, variables: Mapping[str, Any], mapping: Mapping[Any, Any]) -> _Context:
        return _Context(self._state, self._game.entities, variables, mapping)

    # -- states ----------------------------------------------------------------------------------------------
    def _current_node(self) -> Node:
        key = self._state_key()
        node = self._game.nodes.get(key)
        if node is None:
            commands: dict[str, str] = {}
            for operator in self._applicable():
                # The stock engine plays the first operator of a command, so later ones of the same text are shadowed.
                commands.setdefault(self._command(operator.name), operator.name)
            node = Node(tuple(sorted(commands)), commands, bool(self._downward.check_goal()))
            self._game.nodes[key] = node
            self._cache.num_states += self._game.kept
        return node

    def _state_key(self) -> int:
        bits, key = self._game.fact_bits, 0
        for signature, facts in self._state._facts.items():
            if signature.name in self._game.asked:
                for fact in facts:
                    key |= 1 << bits.setdefault(fact, len(bits))
        return key

    def _command(self, name: str) -> str:
        known = self._game.operators.get(name)
        if known is None:
            known = self._game.operators[name] = self._describe(name)
        return self._derive_command(known) if known.command is None else known.command

    def _derive_command(self, known: _Operator) -> str:
        text = self._game.grammar.derive(known.template, self._context(known.variables, known.mapping))
        return text.format(**{identifier: info.name for identifier, info in self._game.entities.items()})

    def _describe(self, name: str) -> _Operator:
        from textworld.logic import Placeholder, Variable

        action, *arguments = name.split()
        parameters = self._game.parameters[action]
        mapping = {Placeholder(p, t): Variable(a, t) for (p, t), a in zip(parameters, arguments, strict=False)}
        variables = {p.name: self._game.entities[v.name] for p, v in mapping.items()}
        rules = self._game.logic.actions[action]
        known = _Operator(rules.feedback_rule, mapping, variables, rules.template, None)
        if not self._game.template_queries[rules.template] & _changing_predicates(self._game.logic.domain):
            known.command = self._derive_command(known)
        return known


@functools.lru_cache(maxsize=8)
def _changing_predicates(domain: str) -> frozenset[str]:
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
