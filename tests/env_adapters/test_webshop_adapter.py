"""The shop as the runtime uses it: contract, rewards, expert, prompts, vocabulary, shared memory."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from env_adapters.base import EnvironmentFault, Observation, PastTurn
from env_adapters.contract import HOSTILE, ContractBroken, check_adapter
from env_adapters.registry import make_adapter
from env_adapters.webshop.pages import Page
from env_adapters.webshop.products import Product
from env_adapters.webshop.prompts import brief_goal, brief_page, compact, plain, published, without_goal
from env_adapters.webshop.tagger import HeuristicTagger, make_tagger

ROOT = Path(__file__).resolve().parents[2]
TINY = {"catalogue": "tiny", "products": 200, "instructions": 30, "page_size": 5, "prompt": "compact"}
SMALL = {"products": 120}


@pytest.fixture(scope="module")
def tiny(shop_adapter):
    return shop_adapter(**TINY, validity="admissible")


@pytest.mark.parametrize(
    "options", [SMALL, {**SMALL, "observation": "text_rich"}, {**SMALL, "goals": "synthetic"}, TINY], ids=range(4)
)
def test_contract(shop_adapter, options):
    seen = check_adapter(shop_adapter(**options))
    assert seen["expert_games"] == 12 and seen["expert_wins"] >= 8
    assert all(seen["splits"].values())


def test_the_contract_test_notices(shop_adapter):
    adapter = shop_adapter(**SMALL)

    class Leaky(type(adapter)):
        def tasks(self, split):
            return super().tasks("train" if split == "test" else split)

    with pytest.raises(ContractBroken, match="says that it belongs"):
        check_adapter(Leaky(adapter.options), games=1)


def buy(adapter, task, *actions):
    environment = adapter.make()
    environment.reset(task)
    for action in actions:
        result = environment.step(adapter.response(action))
        assert result.valid
    return environment, result


def test_a_purchase_pays_ends_and_tells_its_parts(shop_adapter):
    adapter = shop_adapter(**SMALL, success_reward=2.5)
    task = adapter.tasks("train")[0]
    goal = adapter._load().goals.goal(task.payload["goal"])
    product = adapter._load().product(task.payload["product"])
    opening = (f"search[{product.title}]", f"click[{product.asin}]")
    environment, result = buy(adapter, task, *opening, *(f"click[{value}]" for value in goal.options), "click[buy now]")
    assert (result.reward, result.success, result.score, result.terminated) == (2.5, True, 1.0, True)
    assert {"r_type": 1.0, "attributes": len(goal.attributes), "options": len(goal.options), "price": True,
            "score": 1.0}.items() <= result.info.items()  # fmt: skip
    for response in (adapter.response("search[x]"), "", adapter.response("click[buy now]")):
        with pytest.raises(EnvironmentFault, match=r"the episode has ended; call reset\(task\)"):
            environment.step(response)
    assert environment.expert_action() is None


def test_a_purchase_of_part_of_the_score_pays_nothing(shop_adapter):
    adapter = shop_adapter(**SMALL)
    for task in adapter.tasks("train"):
        if (goal := adapter._load().goals.goal(task.payload["goal"])).options:
            break
    product = adapter._load().product(task.payload["product"])
    _, result = buy(adapter, task, f"search[{product.title}]", f"click[{product.asin}]", "click[buy now]")
    whole = len(goal.attributes) + len(goal.options) + 1
    assert (result.reward, result.success, result.terminated) == (0.0, False, True)
    assert result.score == pytest.approx((len(goal.attributes) + 1) / whole) and result.info["options"] == 0


@pytest.mark.parametrize("validity", ["format", "admissible"])
def test_what_counts_as_valid(shop_adapter, validity):
    adapter = shop_adapter(**SMALL, validity=validity)
    environment = adapter.make()
    start = environment.reset(adapter.tasks("train")[0])
    for response in ("click[buy now]", "<think></think><action>buy now</action>", "<action>search[x]</action>"):
        result = environment.step(response)
        assert (result.valid, result.action, result.observation) == (False, "", start)
    unlisted = environment.step(adapter.response("click[buy now]"))
    assert (unlisted.valid, unlisted.action) == (validity == "format", "click[buy now]")
    assert unlisted.observation == start and not unlisted.terminated
    shouted = environment.step("<THINK></THINK><ACTION>SEARCH[Soup]</ACTION>")  # lower-cased, as published
    assert (shouted.valid, shouted.action) == (True, "search[soup]")


def test_hostile_responses_do_nothing(shop_adapter):
    adapter = shop_adapter(**SMALL)
    environment = adapter.make()
    start = environment.reset(adapter.tasks("train")[0])
    for inner in ("search[" + "x" * 10_000 + "]", "click[" * 50, "[" * 500, "search[\x00]", "search", "]["):
        result = environment.step(f"<think></think><action>{inner}</action>")
        assert (result.valid, result.observation) == (False, start), inner[:40]
    for query in ("[SEP]", "'\"", "a] [b", "日本 \ud800 ü", "the of and", "w " * 400, "<r>"):
        result = environment.step(adapter.response(f"search[{query}]"))
        assert result.valid and result.observation.text.split(" [SEP] ")[3].startswith("Page 1 (Total results: ")
    assert len(HOSTILE) > 10  # played by the contract test


def test_steps_before_a_reset_and_tasks_of_other_goals_are_refused(shop_adapter):
    adapter = shop_adapter(**SMALL)
    with pytest.raises(EnvironmentFault, match="before the first reset"):
        adapter.make().step(adapter.response("search[x]"))
    task = replace(adapter.tasks("train")[0], payload={"goal": 10**6})
    with pytest.raises(EnvironmentFault, match="goal 1000000 of "):
        adapter.make().reset(task)


# ----------------------------------------------------------------------------------------------------------- options
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"products": 0}, ["products=0", "1 to"]),
        ({"page_size": 51}, ["page_size=51", "1 to 50"]),
        ({"catalogue": "tinny"}, ["catalogue='tinny'", "did you mean tiny?"]),
        ({"compat": "lax"}, ["compat='lax'", "upstream, strict"]),
        ({"success_reward": 0}, ["success_reward=0"]),
        ({"product": 5}, ["'product'", "did you mean products?"]),
    ],
)
def test_bad_options_are_refused_in_one_line(options, words):
    with pytest.raises(EnvironmentFault) as caught:
        make_adapter("webshop", options)
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value), str(caught.value)


def test_splits_and_facts(shop_adapter, tmp_path):
    adapter = shop_adapter(**SMALL)
    with pytest.raises(EnvironmentFault, match="webshop has train, warm_start, dev, test"):
        adapter.tasks("seen")
    facts = adapter.description()
    assert facts["tagger"] == "heuristic-1" and facts["compat"] == "upstream" and facts["products"] == 120
    assert len(facts["goals_sha256"]) == len(facts["catalogue_sha256"]) == 64
    assert sum(facts["counts"].values()) + facts["left_out"] == 720  # 120 products, six instructions each
    unprepared = make_adapter("webshop", {"cache_dir": str(tmp_path)})
    with pytest.raises(EnvironmentFault, match=r"prepare\(\) makes it again"):
        unprepared.tasks("train")


# ------------------------------------------------------------------------------------------------------------ expert
@pytest.mark.parametrize(("options", "least"), [({}, 0.75), (TINY, 0.95)], ids=["full", "tiny"])
def test_the_expert_shops_well_and_in_few_turns(shop_adapter, options, least):
    adapter = shop_adapter(**options)
    environment, won, turns = adapter.make(), 0, 0
    tasks = adapter.tasks("dev")[:150]
    for task in tasks:
        environment.reset(task)
        for _ in range(15):
            result = environment.step(adapter.response(environment.expert_action()))
            turns += 1
            if result.terminated:
                break
        won += result.success
    assert won / len(tasks) >= least and turns / len(tasks) <= 5


@pytest.mark.parametrize(
    "wrong", ["click[next >]", "click[{0}]", "click[{0}] click[description]", "search[nothing at all]"]
)
def test_the_expert_recovers_from_a_learners_mistakes(tiny, wrong):
    """Where it was lost: another page of results, another product, a sub-page, a search of no use."""
    environment, ended = tiny.make(), 0
    for task in tiny.tasks("dev")[:20]:
        environment.reset(task)
        page = environment.step(tiny.response(environment.expert_action())).observation
        last = [action for action in page.admissible_actions][-1][len("click[") : -1]
        for action in wrong.format(last).split("] "):
            environment.step(tiny.response(action if action.endswith("]") else f"{action}]"))
        for _ in range(12):
            action = environment.expert_action()
            if action is None:
                break
            result = environment.step(tiny.response(action))
            assert result.valid, action
            if result.terminated:
                ended += 1
                break
    assert ended == 20


# ----------------------------------------------------------------------------------------------------------- prompts
GOAL = "i need a soft shirt, and price lower than 40.00 dollars"
NOW = Observation(
    GOAL,
    f"Instruction: [SEP] {GOAL} [SEP] Back to Search [SEP] < Prev [SEP] Shirt",
    ("click[back to search]", "click[< prev]"),
)
PAST = (PastTurn(f"WebShop [SEP] Instruction: [SEP] {GOAL} [SEP] Search", "search[soft shirt]"),)


def test_published_prompt_golden():
    assert published(NOW, PAST, 3) == (
        "You are an expert agent operating in the WebShop e-commerce environment.\n"
        f"Your task is to: {GOAL}.\n"
        "Prior to this step, you have already taken 3 step(s). "
        "Below are the most recent 1 observations and the corresponding actions you took:\n"
        "[Observation 3: 'Search', Action 3: 'search[soft shirt]']\n"
        "You are now at step 4 and your current observation is: Back to Search [SEP] < Prev [SEP] Shirt\n"
        "Your admissible actions of the current situation are: [\n"
        "'click[back to search]'\n'click[< prev]'\n].\n\n"
        "Now it's your turn to take one action.\n"
        "First reason step by step about the current situation, inside <think> </think> tags.\n"
        "Then choose one admissible action for the current step and give it inside <action> </action> tags."
    )


def test_the_instruction_is_said_once():
    assert without_goal(f"Instruction:\n{GOAL}\n[button] Back to Search [button_]", GOAL).startswith("[button] Back")
    nasty = "a [SEP] Back to Search [SEP] b"
    assert without_goal(f"Instruction: [SEP] {nasty} [SEP] Back to Search", nasty) == "Back to Search"
    assert without_goal("another text", GOAL) == "another text"


def test_compact_prompt_golden(tiny):
    observation = Observation(GOAL, "page 1 : soft shirt 39 xbaba", ())
    past = (PastTurn("search", "search[soft shirt]"), PastTurn("page 1 : nothing", ""))
    assert compact(observation, past, 2) == (
        "want soft shirt under 40 ; did search soft shirt ; did nothing ; now page 1 : soft shirt 39 xbaba ; "
        "want soft shirt under 40"
    )
    assert brief_goal("i'm looking for a long-sleeve shirt in x | y") == "long-sleeve shirt x y"
    assert plain("Price: $18.99, «ü» 3!") == "price 18.99 ü 3"


@pytest.mark.parametrize(("price", "shown"), [(18.0, "18"), (18.01, "19"), (20.0, "20"), (20.01, "21")])
def test_prices_are_rounded_up_so_that_they_compare_with_a_limit_of_tens(price, shown):
    """20.00 is within a limit of 20 and shown as 20; 20.01 is not and shown as 21."""
    product = Product("B0X", "Linen Rug", "garden", "rugs", "", "", (), (price,))
    assert brief_page(Page("results", "", results=(product,))) == f"page 1 : linen rug {shown} b0x"


def test_compact_pages(tiny):
    environment, shown = tiny.make(), []
    for task in tiny.tasks("train"):
        observation = environment.reset(task)
        shown = [observation.text]
        while not (result := environment.step(tiny.response(environment.expert_action()))).terminated:
            shown.append(result.observation.text)
        if len(shown) == 5:  # two options
            break
    assert shown[0] == "search" and result.observation.text == "bought"
    assert re.fullmatch(r"page 1 : ([a-z ]+ \d+ x[a-z]+( , )?){1,5}", shown[1])
    assert re.fullmatch(r"item [a-z ]+ \d+ ; color [a-z , ]+ ; size [a-z , ]+", shown[2])
    assert shown[3].startswith(shown[2]) and re.search(r" ; chosen [a-z]+$", shown[3])
    assert re.search(r" ; chosen [a-z]+ , [a-z]+$", shown[4])


@pytest.mark.parametrize("options", [TINY, SMALL, {**SMALL, "observation": "text_rich"}], ids=range(3))
def test_vocabulary_holds_every_word(shop_adapter, options):
    from runtime.tiny_model import pieces

    adapter = shop_adapter(**options)
    known = {piece for text in adapter.vocabulary() for piece in pieces(text)}
    known |= set("0123456789") | {f"##{digit}" for digit in range(10)}
    environment, longest = adapter.make(), 0
    for task in (*adapter.tasks("train")[:15], *adapter.tasks("test")[:15]):
        observation, history = environment.reset(task), []
        for action in ("expert", "expert", "click[description]", "click[< prev]", "click[features]", *["expert"] * 5):
            action = environment.expert_action() if action == "expert" else action
            prompt = adapter.prompt(observation, history[-3:], len(history))
            needed = pieces(prompt)
            longest = max(longest, len(needed))
            assert not set(needed + pieces(adapter.response(action))) - known, prompt
            result = environment.step(adapter.response(action))
            history.append(PastTurn(observation.text, result.action))
            observation = result.observation
            if result.terminated:
                break
    if options == TINY:
        assert longest <= 140 and len(known) < 500


def test_interchangeable_words_are_single_words_of_the_tiny_catalogue(tiny):
    groups = tiny.interchangeable_words
    assert {"xbababa"} <= set(groups[0]) and "shirt" in groups[1] and "cotton" in groups[2]
    assert len(groups[0]) == 200 and all(len(group) == len(set(group)) for group in groups)


# ------------------------------------------------------------------------------------------------------------ tagger
@pytest.mark.parametrize(
    ("title", "nouns"),
    [
        ("Soft Cotton Shirt for Men", ("cotton", "shirt", "men")),
        ("The Best of 2 Worlds", ("worlds",)),
        ("Men's Non-Slip Washable Shoes, Black", ("men", "slip", "shoes")),
        ("Table Lamp, Lamp", ("table", "lamp", "lamp")),
        ("USB-C Cable 3ft", ("usb", "cable", "ft")),
        ("", ()),
        ("12 34 !!", ()),
        ("Very Beautiful and Quickly", ()),
    ],
)
def test_heuristic_nouns(title, nouns):
    assert HeuristicTagger().nouns(title) == nouns


def test_spacy_tags_where_it_is_chosen(shop_adapter, tmp_path):
    """A model made here, of rules alone: words of more than four letters are nouns."""
    spacy = pytest.importorskip("spacy")
    pipeline = spacy.blank("en")
    ruler = pipeline.add_pipe("attribute_ruler")
    ruler.add([[{"LENGTH": {">": 4}}]], {"POS": "NOUN"})
    pipeline.to_disk(tmp_path / "model")
    adapter = shop_adapter(**SMALL, tagger="spacy", spacy_model=str(tmp_path / "model"))
    tagger = adapter._load().tagger
    assert tagger.nouns("Soft Cotton Shirt, shirt for Men") == ("cotton", "shirt", "shirt")
    assert adapter.description()["tagger"] == tagger.name == f"spacy-{spacy.__version__}-en_pipeline-0.0.0"
    task = adapter.tasks("train")[0]
    product = adapter._load().product(task.payload["product"])
    _, result = buy(adapter, task, f"search[{product.title}]", f"click[{product.asin}]", "click[buy now]")
    assert result.info["title_score"] == 1.0


def test_a_spacy_model_that_is_missing_is_one_line():
    with pytest.raises(EnvironmentFault, match="tagger 'spacy': .*env.tagger=heuristic") as caught:
        make_tagger("spacy", "no_such_model")
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------------------ memory
def test_worker_processes_share_the_maps(shop_adapter):
    """Store, index and goals are file-backed maps in a worker, not copies."""
    adapter = shop_adapter(**SMALL)
    code = f"""
        from env_adapters.registry import make_adapter
        adapter = make_adapter("webshop", {dict(SMALL, cache_dir=str(adapter._cache_dir))!r})
        environment = adapter.make()
        environment.reset(adapter.tasks("train")[0])
        environment.step(adapter.response("search[soup]"))
        print(open("/proc/self/maps").read())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    for name in ("products.jsonl", "documents.npy", "denominators.npy", "goals.jsonl", "order.npy"):
        (line, *_) = [line for line in done.stdout.splitlines() if line.endswith(name)] or [done.stderr]
        assert line.split()[1] == "r--s" or line.split()[1] == "r--p", line


@pytest.mark.slow
def test_soak_no_growth(tiny):
    """100,000 episodes in one process: after the first tenth memory does not grow by more than 4 MiB."""
    environment, tasks = tiny.make(), [tiny.tasks("train")[i] for i in range(1000)]
    responses = [
        tiny.response(action) for action in ("search[red cotton shirt]", "click[next >]", "click[back to search]")
    ]
    start = 0
    for episode in range(100_000):
        environment.reset(tasks[episode % 1000])
        environment.step(tiny.response(f"search[cotton shirt {episode}]") if episode % 10 == 0 else responses[0])
        environment.step(responses[1 + episode % 2])
        if episode == 10_000:
            start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start <= 4096  # KiB
