"""Which words of a title are nouns: by a heuristic without dependencies, or by spaCy as the original engine does.

The tagger decides a part of the reward (`title_score`), so its name is logged with every result.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from env_adapters.base import EnvironmentFault

KEPT_TITLES = 1 << 14  # whose nouns are remembered
NOUN_TAGS = ("NOUN", "PROPN")


class Tagger(Protocol):
    """Example: tagger.nouns("Soft Cotton Shirt for Men") == ("cotton", "shirt", "men")."""

    name: str

    def nouns(self, title: str) -> tuple[str, ...]:
        """Nouns and proper nouns in order, lower case, repeats kept."""


class HeuristicTagger:
    """Titles are lists of nouns and proper nouns: every word is one unless it is known or looks not to be."""

    name = "heuristic-1"

    def __init__(self) -> None:
        self.nouns: Callable[[str], tuple[str, ...]] = lru_cache(maxsize=KEPT_TITLES)(heuristic_nouns)


class SpacyTagger:
    """spaCy's part-of-speech tags; the original engine uses the model en_core_web_lg."""

    def __init__(self, model: str) -> None:
        remedy = "pip install spacy and the model, or take env.tagger=heuristic"
        try:
            import spacy
        except ImportError as error:
            raise EnvironmentFault(f"tagger 'spacy': spaCy is not installed; {remedy}") from error
        try:
            self._pipeline = spacy.load(model, disable=["parser", "ner", "lemmatizer"])
        except OSError as error:
            raise EnvironmentFault(f"tagger 'spacy': no model {model!r}; {remedy}") from error
        meta = self._pipeline.meta
        self.name = f"spacy-{spacy.__version__}-{meta['lang']}_{meta['name']}-{meta['version']}"
        self.nouns: Callable[[str], tuple[str, ...]] = lru_cache(maxsize=KEPT_TITLES)(self._nouns)

    def _nouns(self, title: str) -> tuple[str, ...]:
        return tuple(token.text.lower() for token in self._pipeline(title) if token.pos_ in NOUN_TAGS)


def make_tagger(name: str, model: str) -> Tagger:
    """The tagger of that name. Raises EnvironmentFault where spaCy or its model is not there."""
    return SpacyTagger(model) if name == "spacy" else HeuristicTagger()


_WORD = re.compile(r"[a-z][a-z0-9]*")  # "non-slip" is two words, as spaCy has it; "'s" and numbers are none
_CLITIC = re.compile(r"['’](?:s|t|re|ve|ll|d|m)\b")
# Words of the closed classes, and the adjectives, adverbs and participles that titles are full of.
_OTHER = frozenset(
    """
    a an the this that these those any all both each every some no not non many much more most other another such
    i you he she it we they me him her us them my your his its our their who which what
    of in on at by for with without from to into onto over under above below between through across against along
    around before after behind beside during inside outside off out up down near per plus than via within about as
    and or nor but so if when while because
    is are was were be been being am do does did has have had can could may might must shall should will would
    very too also just only even still ever never always easily highly fully extra ultra super pre re
    big small large mini little long short high low tall wide narrow deep thick thin heavy light full empty
    new old young good better best great fine nice perfect ideal soft hard smooth rough firm tight loose flat round
    square hot cold warm cool dry wet fresh clean raw pure real true fast quick slow easy simple strong tough safe
    quiet loud bright dark clear free cute pretty modern vintage classic rustic casual formal elegant fancy unique
    cheap rich sweet sour salty spicy crispy crunchy creamy healthy natural organic portable professional premium
    black white red blue green yellow pink purple brown grey gray beige golden
    adult single double triple dual multi first second third one two three four five six seven eight nine ten
    made used look fits fit get gives keeps let makes use wear comes includes including
    """.split()
)
_ENDINGS = ("able", "ible", "ful", "less", "ous", "ish", "proof", "ly", "ated", "ized", "ised")
_NOUNS_AFTER_ALL = frozenset("table cable vegetable jelly family supply assembly belly butterfly fly polish dish fish "
                             "relish".split())  # fmt: skip


def heuristic_nouns(title: str) -> tuple[str, ...]:
    """All words but those of closed classes, usual adjectives, and words that end like an adjective or adverb."""
    words = _WORD.findall(_CLITIC.sub(" ", title.lower()))
    return tuple(word for word in words if len(word) > 1 and _may_be_noun(word))


def _may_be_noun(word: str) -> bool:
    return word in _NOUNS_AFTER_ALL or not (word in _OTHER or word.endswith(_ENDINGS))
