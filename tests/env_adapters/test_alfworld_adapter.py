"""The adapter as the runtime uses it: contract, latched wins, expert, prompts, vocabulary."""

import random
import re

import pytest

from env_adapters.alfworld.prompts import brief, compact, plain, published
from env_adapters.base import EnvironmentFault, Observation, PastTurn
from env_adapters.contract import ContractBroken, check_adapter

FEW = {"train_games": 6, "warm_start_games": 6, "dev_games": 6, "held_out_games": 6}
SMALL = {"scene": "small", **FEW}
FULL = {"scene": "full", **FEW}


@pytest.mark.parametrize("options", [{}, {"grammar": "put"}, SMALL, FULL])
def test_contract(make, options):
    seen = check_adapter(make(**options), games=2, turns=60)
    assert seen["expert_wins"] == seen["expert_games"] == 10


def test_the_contract_test_notices(tiny):
    """Break one promise at a time."""

    class Leaky(type(tiny)):
        def tasks(self, split):
            return super().tasks("train" if split == "seen" else split)

    class Forgetful(type(tiny)):
        def response(self, action):
            return f"<action>{action}</action>"

    class Moody(type(tiny)):
        def prompt(self, observation, history, turns_taken):
            return super().prompt(observation, history, turns_taken) + str(random.random())

    class Unlatched(type(tiny)):
        def make(self):
            environment = super().make()
            step = environment.step

            def careless(response):
                environment._ended = False
                return step(response)

            environment.step = careless
            return environment

    for broken, message in ((Leaky, "says that it belongs"), (Forgetful, "parses back"), (Moody, "is pure"),
                            (Unlatched, "after the end")):  # fmt: skip
        with pytest.raises(ContractBroken, match=message):
            check_adapter(broken(tiny.options), games=1)


def win(adapter, environment, task):
    environment.reset(task)
    for turn in range(60):
        result = environment.step(adapter.response(environment.expert_action()))
        if result.terminated:
            return result, turn + 1
    raise AssertionError(f"{task.task_id}: not won in 60 turns")


def test_a_win_pays_once_and_ends_the_episode(make):
    adapter = make(success_reward=2.5)
    environment = adapter.make()
    result, _ = win(adapter, environment, adapter.tasks("train")[0])
    assert (result.reward, result.success, result.score, result.terminated) == (2.5, True, 1.0, True)
    # the engine would let us take the object back, and un-win
    assert any(a.startswith("take ") for a in result.observation.admissible_actions)
    for response in (adapter.response("look"), "", adapter.response("take it back")):
        with pytest.raises(EnvironmentFault, match=r"the episode has ended; call reset\(task\)"):
            environment.step(response)
    assert environment.expert_action() is None
    environment.reset(adapter.tasks("train")[0])
    environment.step(adapter.response("look"))


def test_a_step_before_any_reset_is_refused(tiny):
    with pytest.raises(EnvironmentFault, match="before the first reset"):
        tiny.make().step(tiny.response("look"))


def test_nothing_but_a_win_is_success(tiny):
    """Row 17: done for won. Fifty turns of wandering end without success, reward or termination."""
    environment = tiny.make()
    rng, observation = random.Random(0), environment.reset(tiny.tasks("train")[2])
    for _ in range(50):
        moves = [a for a in observation.admissible_actions if a.split()[0] in ("go", "look", "inventory", "examine")]
        result = environment.step(tiny.response(rng.choice(moves)))
        assert (result.reward, result.terminated, result.success, result.score) == (0.0, False, False, 0.0)
        observation = result.observation


def test_inadmissible_and_invalid_are_different(tiny):
    environment = tiny.make()
    start = environment.reset(tiny.tasks("train")[0])
    result = environment.step(tiny.response("fly to the moon"))
    assert (result.valid, result.action, result.observation.text) == (True, "fly to the moon", "Nothing happens.")
    result = environment.step("I think I will fly to the moon.")
    assert (result.valid, result.action, result.observation.text) == (False, "", "Nothing happens.")
    assert result.observation.admissible_actions == start.admissible_actions


def test_validity_can_mean_admissible(make):
    environment = make(validity="admissible").make()
    start = environment.reset(make().tasks("train")[0])
    unlisted = environment.step("<think></think><action>fly to the moon</action>")
    assert (unlisted.valid, unlisted.action) == (False, "fly to the moon")
    assert unlisted.observation.text == "Nothing happens."
    listed = environment.step(f"<think></think><action>{start.admissible_actions[0]}</action>")
    assert (listed.valid, listed.action) == (True, start.admissible_actions[0])


@pytest.mark.parametrize("grammar", ["move", "put"])
def test_text_of_both_generations(make, grammar):
    adapter = make(grammar=grammar)
    environment = adapter.make()
    task = next(t for t in adapter.tasks("train") if t.task_type == "pick_and_place_simple")
    observation = environment.reset(task)
    assert observation.text.startswith("You are in the middle of a room. Looking quickly around you, you see a ")
    assert "Welcome" not in observation.text and "Your task" not in observation.text
    assert "help" not in observation.admissible_actions
    result, _ = win(adapter, environment, task)
    verb, joint = {"move": ("move", "to"), "put": ("put", "in/on")}[grammar]
    assert result.action.startswith(verb) and f" {joint} " in result.action
    assert result.observation.text.startswith(f"You {verb} the ")
    environment.reset(task)
    help_text = environment.step(adapter.response("help")).observation.text
    assert ("Available commands" in help_text) == (grammar == "move")


# ------------------------------------------------------------------------------------------------------- expert
def test_the_searcher_wins_within_twenty_turns_by_what_it_saw(make):
    adapter = make(train_games=60)
    environment = adapter.make()
    turns = [win(adapter, environment, task)[1] for task in adapter.tasks("train")]
    assert sum(t <= 20 for t in turns) >= 0.95 * len(turns)
    assert 6 <= sum(turns) / len(turns) <= 18


@pytest.mark.parametrize("scene", ["tiny", "full"])
def test_the_searcher_recovers_from_a_learners_mistakes(make, scene):
    adapter = make(**(FULL if scene == "full" else {}))
    environment = adapter.make()
    won = played = 0
    for task in (*adapter.tasks("train")[:12], *adapter.tasks("unseen")[:12]):
        for seed in range(2):
            rng, observation = random.Random(seed), environment.reset(task)
            played += 1
            for turn in range(100):
                expert = environment.expert_action()
                assert expert in observation.admissible_actions
                wrong = rng.choice(observation.admissible_actions)
                result = environment.step(adapter.response(wrong if turn < 20 and rng.random() < 0.6 else expert))
                observation = result.observation
                if result.terminated:
                    won += 1
                    break
    assert won == played


def test_the_expert_does_not_know_what_it_has_not_seen(make):
    """Where the object is hidden must not change its moves before it has looked there."""
    adapter = make()
    environment = adapter.make()
    for task in adapter.tasks("train")[:6]:
        observation, seen = environment.reset(task), []
        wanted = environment._searcher._wanted.object
        while not any(f"{wanted} " in text for text in seen[1:]):
            action = environment.expert_action()
            assert action.split()[0] in ("go", "open", "examine"), action  # searching
            assert wanted not in action
            result = environment.step(adapter.response(action))
            seen.append(observation.text)
            observation = result.observation
            seen[-1:] = [seen[-1], observation.text]


# ------------------------------------------------------------------------------------------------------ prompts
NOW = Observation(
    "put a hot mug in shelf.",
    "You open the fridge 1. The fridge 1 is open. In it, you see a mug 1, and a pan 2.",
    ("close fridge 1", "go to shelf 1", "take mug 1 from fridge 1"),
)
PAST = (
    PastTurn("You are in the middle of a room. Looking quickly around you, you see a fridge 1, and a shelf 1.", "look"),
    PastTurn("You arrive at fridge 1. The fridge 1 is closed.", "open fridge 1"),
)


def test_compact_prompt_golden():
    assert compact(NOW, PAST, 2) == (
        "turn 3 ; saw room : fridge 1 , shelf 1 ; did look ; saw fridge 1 closed ; "
        "did open fridge 1 ; now fridge 1 open : mug 1 , pan 2 ; "
        "can go to shelf 1 , take mug 1 from fridge 1 ; task put a hot mug in shelf"
    )


def test_published_prompt_golden():
    assert published(NOW, PAST, 7) == (
        "You are an expert agent operating in the ALFRED Embodied Environment.\n"
        "Your task is to: put a hot mug in shelf.\n"
        "Prior to this step, you have already taken 7 step(s). "
        "Below are the most recent 2 observations and the corresponding actions you took:\n"
        "[Observation 6: 'You are in the middle of a room. Looking quickly around you, you see a fridge 1, "
        "and a shelf 1.', Action 6: 'look']\n"
        "[Observation 7: 'You arrive at fridge 1. The fridge 1 is closed.', Action 7: 'open fridge 1']\n"
        "You are now at step 8 and your current observation is: "
        "You open the fridge 1. The fridge 1 is open. In it, you see a mug 1, and a pan 2.\n"
        "Your admissible actions of the current situation are: [\n"
        "'close fridge 1'\n'go to shelf 1'\n'take mug 1 from fridge 1'\n].\n\n"
        "Now it's your turn to take an action.\n"
        "First reason step by step about the current situation, inside <think> </think> tags.\n"
        "Then choose one admissible action for the current step and give it inside <action> </action> tags."
    )


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("On the shelf 1, you see nothing.", "shelf 1 : nothing"),
        ("You arrive at shelf 1. On the shelf 1, you see a mug 1.", "shelf 1 : mug 1"),
        ("The drawer 2 is closed.", "drawer 2 closed"),
        ("You close the drawer 2.", "close drawer 2"),
        ("You pick up the mug 1 from the shelf 1.", "pick up mug 1 from shelf 1"),
        ("You move the mug 1 to the shelf 1.", "move mug 1 to shelf 1"),
        ("You put the mug 1 in/on the shelf 1.", "put mug 1 in/on shelf 1"),
        ("You heat the mug 1 using the microwave 1.", "heat mug 1 using microwave 1"),
        ("You are carrying: a mug 1.", "carrying : mug 1"),
        ("You are facing the shelf 1. Next to it, you see nothing.", "shelf 1 : nothing"),
        ("This is a hot and clean mug 1.", "hot clean mug 1"),
        ("There's nothing special about mug 1.", "mug 1 nothing special"),
        ("Nothing happens.", "nothing happens"),
        ("Ünknown, «text»: 3!", "nknown , text : 3"),
    ],
)
def test_observations_in_few_words(text, short):
    assert brief(text) == short
    assert plain(short) == short


@pytest.mark.parametrize("grammar", ["move", "put"])
def test_actions_stand_in_the_compact_form_as_they_must_be_played(make, grammar):
    adapter = make(grammar=grammar)
    environment = adapter.make()
    for task in adapter.tasks("train")[:6]:
        observation = environment.reset(task)
        for _ in range(30):
            assert [plain(action) for action in observation.admissible_actions] == list(observation.admissible_actions)
            result = environment.step(adapter.response(environment.expert_action()))
            if result.terminated:
                break
            observation = result.observation


@pytest.mark.parametrize("options", [{}, {"grammar": "put"}, {"prompt": "published"}, FULL])
def test_vocabulary_holds_every_word_and_prompts_stay_short(make, options):
    adapter = make(**options)
    known = set(re.findall(r"[a-z]+|\d+|[^\sa-z\d]", " ".join(adapter.vocabulary()).lower()))
    environment, rng, longest = adapter.make(), random.Random(0), 0
    for task in (*adapter.tasks("train")[:6], *adapter.tasks("unseen")[:6]):
        observation, history = environment.reset(task), []
        for turn in range(40):
            prompt = adapter.prompt(observation, history[-2:], turn)
            longest = max(longest, len(prompt.split()))
            text = f"{prompt} {observation.text} {' '.join(observation.admissible_actions)} {adapter.response('look')}"
            missing = set(re.findall(r"[a-z]+|\d+|[^\sa-z\d]", text.lower())) - known
            assert not missing, (missing, prompt)
            expert = environment.expert_action()
            action = expert if rng.random() < 0.5 else rng.choice(observation.admissible_actions)
            result = environment.step(adapter.response(action))
            history.append(PastTurn(observation.text, result.action))
            observation = result.observation
            if result.terminated:
                break
    if not options:
        assert longest <= 150
        assert len({word for word in known if not word.isdigit()}) + 10 <= 160  # numbers are spelled in digits
