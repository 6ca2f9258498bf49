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

from collections.abc import Iterable, Mapping
from typing import Any

from env_adapters.alfworld.grammar import Context
from env_adapters.alfworld.states import Edge, GameCache, LoadedGame, Node, Operator, changing_predicates
from env_adapters.alfworld.translation import Translation
from env_adapters.base import EnvironmentFault

TESTED_TEXTWORLD = "1.7.0"
INSTALL_HINT = "pip install 'textworld[pddl]==1.7.0' 'alfworld==0.4.2'"
NOTHING_HAPPENS = "Nothing happens."


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

    def _context(self, variables: Mapping[str, Any], mapping: Mapping[Any, Any]) -> Context:
        return Context(self._state, self._game.entities, variables, mapping)

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

    def _derive_command(self, known: Operator) -> str:
        text = self._game.grammar.derive(known.template, self._context(known.variables, known.mapping))
        return text.format(**{identifier: info.name for identifier, info in self._game.entities.items()})

    def _describe(self, name: str) -> Operator:
        from textworld.logic import Placeholder, Variable

        action, *arguments = name.split()
        parameters = self._game.parameters[action]
        mapping = {Placeholder(p, t): Variable(a, t) for (p, t), a in zip(parameters, arguments, strict=False)}
        variables = {p.name: self._game.entities[v.name] for p, v in mapping.items()}
        rules = self._game.logic.actions[action]
        known = Operator(rules.feedback_rule, mapping, variables, rules.template, None)
        if not self._game.template_queries[rules.template] & changing_predicates(self._game.logic.domain):
            known.command = self._derive_command(known)
        return known
