"""What the agent reads: the published prompt, and a form of few words for very small models.

Published (the framework that SAPO's results follow, in our words): role, task, number of steps taken, the last
(observation, action) pairs, the current observation without the instruction, the admissible actions quoted one a
line, and the request for `<think>…</think>` and `<action>…</action>`. Compact: what is wanted, what was done, the page
in few words, and again what is wanted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from env_adapters.base import Observation, PastTurn
from env_adapters.published import published_prompt
from env_adapters.webshop.instructions import price_limit, wanted_words
from env_adapters.webshop.pages import Page, visible
from env_adapters.webshop.products import Product

ROLE = "You are an expert agent operating in the WebShop e-commerce environment."
REQUEST = (
    "Now it's your turn to take one action.\n"
    "First reason step by step about the current situation, inside <think> </think> tags.\n"
    "Then choose one admissible action for the current step and give it inside <action> </action> tags."
)


def published(observation: Observation, history: Sequence[PastTurn], turns_taken: int) -> str:
    """The published form. About 300-1,500 words, by the page."""
    goal, actions = observation.goal, observation.admissible_actions
    past = [PastTurn(without_goal(turn.observation, goal), turn.action) for turn in history]
    now = without_goal(observation.text, goal)
    return published_prompt(ROLE, f"{goal}.", now, actions, past, turns_taken, REQUEST)


def without_goal(text: str, goal: str) -> str:
    """An observation without the instruction that it begins with: the prompt has said it."""
    for separator in (" [SEP] ", "\n"):
        lead = f"Instruction:{separator}{goal}{separator}"
        for start in (lead, f"WebShop{separator}{lead}"):
            if text.startswith(start):
                return text[len(start) :]
    return text


def compact(observation: Observation, history: Sequence[PastTurn], turns_taken: int) -> str:
    """The form of few words, e.g. `want vegan razor under 5 0 ; did search vegan razor ; now page 1 : herbal vegan
    razor 3 9 xbababa , glossy razor 4 2 xvepave ; want vegan razor under 5 0`.

    What is wanted stands before the page, so that a row of results can be compared with it as it is read, and again
    at the end, at a fixed distance from the response.
    """
    want = f"want {brief_goal(observation.goal)}"
    did = [f"did {plain(past.action) or 'nothing'}" for past in history]
    return " ; ".join([want, *did, f"now {observation.text}", want])


def brief_goal(instruction: str) -> str:
    """An instruction in few words: `vegan razor under 50`."""
    limit = price_limit(instruction)
    words = plain(" ".join(wanted_words(instruction))).split()
    return " ".join(words if limit is None else [*words, "under", str(math.floor(limit))])


def brief_page(page: Page) -> str:
    """A page in few words: titles, prices in dollars rounded up, ids; options and what was chosen of them."""
    if page.kind == "results":
        rows = (f"{_brief_product(product)} {plain(product.asin)}" for product in page.results)
        return f"page {page.number} : " + (" , ".join(rows) or "nothing")
    if page.kind == "item":
        options = (
            f"{plain(name)} {' , '.join(plain(value) for value in values)}"
            for name, values in page.product.options.items()
        )
        chosen = [f"chosen {' , '.join(plain(value) for value in page.chosen.values())}"] if page.chosen else []
        return " ; ".join([f"item {_brief_product(page.product)}", *options, *chosen])
    if page.kind == "description":
        return f"description {plain(page.product.description)}"
    if page.kind == "features":
        return " ; ".join(["features", *(plain(bullet) for bullet in page.product.bullets)])
    return {"index": "search", "done": "bought"}.get(page.kind, page.kind)


def _brief_product(product: Product) -> str:
    return f"{plain(product.title)} {math.ceil(product.pricing[0])}"


def plain(text: str) -> str:
    """Lower case; words and numbers set off by blanks; punctuation dropped."""
    return " ".join(re.findall(r"[^\W_]+(?:['\-.][^\W_]+)*", visible(text).lower()))
