"""The fast slot against the stock engine: byte for byte."""

import random

import pytest

from env_adapters.alfworld import engine, states
from env_adapters.alfworld.games import installed_logic
from env_adapters.alfworld.generate import generate
from env_adapters.alfworld.stock import StockSlot
from env_adapters.alfworld.translation import translate
from env_adapters.base import EnvironmentFault

NONSENSE = ("xyzzy", "Go To shelf 1", " look ", "", "{o}", "help", "go to shelf", "take  mug 1 from desk 1")


@pytest.fixture(scope="module")
def slots():
    return engine.EngineSlot(states.GameCache()), StockSlot()


@pytest.mark.parametrize(("scene", "grammar", "games", "turns"), [
    ("tiny", "move", 6, 20), ("tiny", "put", 6, 12), ("full", "move", 2, 10), ("full", "put", 1, 10),
])  # fmt: skip
def test_transcripts_equal_the_stock_engine(slots, scene, grammar, games, turns):
    fast, stock = slots
    for game in generate("train", games, scene, 3, installed_logic(grammar), grammar, set()):
        key = f"{scene} {grammar} {game.task_id}"
        fast.load(key, game.data, translate(game.data["pddl_domain"], game.data["pddl_problem"]))
        stock.load(game.data)
        for episode in range(2):  # the second meets states of the first on other ways
            rng = random.Random(f"{key} {episode}")
            assert fast.reset(key) == stock.reset()
            plan = list(game.data["walkthrough"])
            for _ in range(turns):
                assert fast.admissible == stock.admissible
                assert fast.won == stock.won
                luck = rng.random()
                if luck < 0.1:
                    command = rng.choice(NONSENSE)
                elif luck < 0.55 or not plan or plan[0] not in fast.admissible:
                    command = rng.choice(fast.admissible)
                else:
                    command = plan.pop(0)
                assert fast.step(command) == stock.step(command), command
    assert fast.hits > 0
    assert fast.misses > 0


def test_kept_transitions_change_nothing(tiny):
    """Many episodes on one game: with kept transitions, and in a slot that forgets everything each time."""
    task = tiny.tasks("train")[5]
    games = tiny._load()
    stored = games.read(task)
    warm = engine.EngineSlot(states.GameCache())
    warm.load("game", stored.data, stored.translation)
    cold = engine.EngineSlot()
    for episode in range(12):
        cold.use(states.GameCache())
        cold.load("game", stored.data, stored.translation)
        assert warm.reset("game") == cold.reset("game")
        rng = random.Random(episode)
        for _ in range(25):
            assert (warm.admissible, warm.won) == (cold.admissible, cold.won)
            command = rng.choice(warm.admissible)
            assert warm.step(command) == cold.step(command)
    assert warm.hits > 50


def test_two_slots_interleaved_do_not_disturb_each_other(tiny):
    environments = [tiny.make(), tiny.make()]
    tasks = tiny.tasks("train")[:2]

    def transcript(environment, task, seed):
        rng, observation = random.Random(seed), environment.reset(task)
        yield observation
        for _ in range(15):
            result = environment.step(tiny.response(rng.choice(observation.admissible_actions)))
            yield result
            if result.terminated:
                return
            observation = result.observation

    alone = [list(transcript(environments[0], task, 7)) for task in tasks]
    engine._SHARED.clear()
    mixed = [[], []]
    running = [transcript(environments[i], tasks[i], 7) for i in range(2)]
    for _ in range(16):
        for i in range(2):
            mixed[i] += [item for item in [next(running[i], None)] if item is not None]
    assert mixed == alone


def test_the_cache_is_bounded(tiny, monkeypatch):
    monkeypatch.setattr(states, "MAX_CACHED_GAMES", 3)
    cache = states.GameCache()
    slot = engine.EngineSlot(cache)
    games = tiny._load()
    for number, task in enumerate(tiny.tasks("train")[:6]):
        stored = games.read(task)
        slot.load(str(number), stored.data, stored.translation)
        slot.reset(str(number))
        slot.step(slot.admissible[0])
    assert len(cache._games) == 3
    assert cache.num_states == sum(len(game.nodes) for game in cache._games.values())
    assert slot.known("0") is None
    with pytest.raises(EnvironmentFault, match="not loaded"):
        slot.reset("0")


def test_translation_leaves_argv_and_stdout_alone(capsys):
    import sys

    before = list(sys.argv), sys.stdout
    with pytest.raises(EnvironmentFault, match="does not translate"):
        translate("(define (domain x))", "(nonsense")
    assert (list(sys.argv), sys.stdout) == before
    assert capsys.readouterr().out == ""


def test_another_textworld_is_refused(monkeypatch):
    import textworld

    monkeypatch.setattr(textworld, "__version__", "1.8.0")
    with pytest.raises(EnvironmentFault, match="textworld 1.8.0 .* 1.7.0 only: pip install"):
        engine.require_engine()
