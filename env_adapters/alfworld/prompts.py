"""What the agent reads: the published prompt, and a form of few words for very small models.

Published (the framework that SAPO's results follow, in our words): role, task, number of steps taken, the last
(observation, action) pairs, the current observation, the admissible actions quoted one a line, and the request
for `<think>…</think>` and `<action>…</action>`. Compact: the same facts without sentences, in lower case, with
every word, number and mark of punctuation set off by blanks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from env_adapters.base import Observation, PastTurn
from env_adapters.published import published_prompt

ROLE = "You are an expert agent operating in the ALFRED Embodied Environment."
REQUEST = (
    "Now it's your turn to take an action.\n"
    "First reason step by step about the current situation, inside <think> </think> tags.\n"
    "Then choose one admissible action for the current step and give it inside <action> </action> tags."
)
REMEMBERED = 1 << 14  # texts whose short form is kept: an observation is in the prompts of the next turns too

# Not shown in the compact form: they never bring a task forward in a tiny scene. (In a full one `examine` does, where
# receptacles share a standing point.)
IDLE = ("close ", "examine ", "inventory", "look")


def published(observation: Observation, history: Sequence[PastTurn], turns_taken: int) -> str:
    """The published form. About 250-400 words in a full scene."""
    actions = observation.admissible_actions
    return published_prompt(ROLE, observation.goal, observation.text, actions, history, turns_taken, REQUEST)


def compact(observation: Observation, history: Sequence[PastTurn], turns_taken: int) -> str:
    """The form of few words, e.g. `turn 2 ; saw room : desk 1 , shelf 1 ; did go to desk 1 ; now desk 1 : pan 1 ;
    can go to shelf 1 , take pan 1 from desk 1 ; task put a hot pan in shelf`.

    The task stands last, at a fixed distance from the response: a model of two or three layers finds it there.
    """
    parts = [f"turn {turns_taken + 1}"]
    for past in history:
        parts += [f"saw {brief(past.observation)}", f"did {plain(past.action) or 'nothing'}"]
    parts.append(f"now {brief(observation.text)}")
    if observation.admissible_actions is not None:
        useful = [action for action in observation.admissible_actions if not action.startswith(IDLE)]
        parts.append("can " + " , ".join(map(plain, useful)))
    parts.append(f"task {plain(observation.goal)}")
    return " ; ".join(parts)


def compact_follow_up(observation: Observation) -> str:
    """What a later turn adds to a transcript of few words: what is seen now, and the task again, near the response."""
    return f"now {brief(observation.text)} ; task {plain(observation.goal)}"


# Longest first: a later rule would eat the beginning of an earlier one.
_SHORTER = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"you are in the middle of a room\. looking quickly around you, you see (.*)", r"room : \1"),
        (r"you arrive at .+?\. (?=on the |the )", ""),
        (r"you open the .+?\. (?=the )", ""),
        (r"you are facing the (.+)\. next to it, you see (.*)", r"\1 : \2"),
        (r"the (.+?) is open\. in it, you see (.*)", r"\1 open : \2"),
        (r"on the (.+?), you see (.*)", r"\1 : \2"),
        (r"(?:you )?(?:the )?(.+?) is closed\.?", r"\1 closed"),
        (r"there's nothing special about (.*)", r"\1 nothing special"),
        (r"(?:this is|you are) (.*)", r"\1"),
        (r"this (.*)", r"\1"),
        (r"you (.*)", r"\1"),
    )
]
_ARTICLE = re.compile(r"\b(?:an?|the|and|in it|is) (?=\w)")


@lru_cache(maxsize=REMEMBERED)
def brief(text: str) -> str:
    """An observation in few words; text of no known form is kept whole, but plain."""
    text = " ".join(text.lower().split())
    for pattern, replacement in _SHORTER:
        text, _ = pattern.subn(replacement, text, count=1)
    return plain(_ARTICLE.sub("", text))


@lru_cache(maxsize=REMEMBERED)
def plain(text: str) -> str:
    """Lower case; words (`in/on` is one), numbers, ',' and ':' set off by blanks; other punctuation dropped."""
    return " ".join(re.findall(r"in/on|[a-z]+|\d+|[,:]", text.lower().replace("'", "")))
