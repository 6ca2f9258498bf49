"""Text to search terms as Lucene's English analysis does it (Anserini's default, Lucene 8.11).

Four steps: words by the Unicode rules of word boundaries (UAX #29), possessive 's off, lower case, stop words out,
Porter's stemmer in Martin Porter's own variant. Compared with Lucene itself in tests/golden/webshop_lucene.json.
"""

from __future__ import annotations

import re
from functools import lru_cache

import regex
from nltk.stem.porter import PorterStemmer

# Lucene's EnglishAnalyzer leaves out these 33.
STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)
MAX_WORD = 255  # characters; longer ones are cut into pieces, as Lucene's tokenizer does by default

_STEMMER = PorterStemmer(mode=PorterStemmer.MARTIN_EXTENSIONS)


def _word(part: str, low_line: str) -> str:
    """A pattern for parts joined by low lines. No match of it can fail half-way, so any text takes linear time."""
    return f"(?:{part}|(?:{low_line})+(?:{part})?)(?:(?:{low_line})+(?:{part})?)*"


# Word boundaries for plain ASCII: letters are joined by : . ' and digits by , ; . '
_ASCII_WORD = re.compile(_word(r"(?:[A-Za-z]+(?:[:.'][A-Za-z]+)*|[0-9]+(?:[,;.'][0-9]+)*)+", "_"))


def _unicode_word() -> regex.Pattern:
    """The same for any text by Unicode's classes; ideographs, hiragana, emoji and © ® ™ are words of their own."""
    more = r"[[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]--\p{Emoji_Modifier}]*"  # belongs to whatever it follows
    letter = rf"(?:[[\p{{WB=ALetter}}\p{{WB=Hebrew_Letter}}]--\p{{Sk}}]{more})+"  # spacing accents were none in 2016
    digit = rf"(?:\p{{WB=Numeric}}{more})+"
    letters = rf"{letter}(?:[:\p{{WB=MidLetter}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}]{more}{letter})*"
    digits = rf"{digit}(?:[\p{{WB=MidNum}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}]{more}{digit})*"
    part = rf"(?:(?:\p{{WB=Katakana}}{more})+|(?:{letters}|{digits})+)"
    word = _word(part, rf"\p{{WB=ExtendNumLet}}{more}")
    south_east_asian = rf"(?:\p{{LB=SA}}{more})+"
    alone = rf"[\p{{Script=Han}}\p{{Script=Hiragana}}]{more}"
    # Lucene's emoji are those of 2016, which took in most dingbats; a skin tone belongs to what can have one.
    picture = r"[\p{Emoji}\p{Extended_Pictographic}\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712]"
    toned = rf"\p{{Emoji_Modifier_Base}}{more}\p{{Emoji_Modifier}}{more}"
    picture = rf"(?:{toned}|[{picture}--[0-9#*\p{{Regional_Indicator}}]]{more})"
    emoji = rf"{picture}(?:(?<=\u200d){picture})*"
    flag = rf"\p{{Regional_Indicator}}{more}\p{{Regional_Indicator}}{more}"
    return regex.compile(f"{word}|{south_east_asian}|{alone}|{emoji}|{flag}", regex.VERSION1)


_UNICODE_WORD = _unicode_word()
_LOW_LINES = regex.compile(r"\p{WB=ExtendNumLet}[\p{WB=ExtendNumLet}\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*\Z")


def words(text: str) -> list[str]:
    """The words of a text, case and all."""
    pattern = _ASCII_WORD if text.isascii() else _UNICODE_WORD
    found = pattern.findall(text)
    if found and max(map(len, found)) > MAX_WORD:
        found = [piece for word in found for piece in _cut(pattern, word)]
    return [word for word in found if not _LOW_LINES.match(word)]


def _cut(pattern: re.Pattern | regex.Pattern, word: str) -> list[str]:
    """The pieces of an over-long word: each the longest word within the next MAX_WORD characters."""
    pieces = []
    while word:
        match = pattern.search(word[:MAX_WORD])
        end = match.end() if match else MAX_WORD
        pieces += [match.group()] if match else []
        word = word[end:]
    return pieces


def term(word: str) -> str | None:
    """The term that a word is searched by, or None for a stop word."""
    if len(word) >= 2 and word[-1] in "sS" and word[-2] in "'\u2019\uff07":
        word = word[:-2]
    # Character by character, as Java does: Python's lower() treats a final sigma and a dotted I by their place.
    word = word.lower() if word.isascii() else "".join(letter.lower()[0] for letter in word)
    return None if word in STOP_WORDS else _STEMMER.stem(word, to_lowercase=False)


_term = lru_cache(maxsize=1 << 15)(term)  # bounded: queries are whatever a model makes up


def analyze(text: str) -> list[str]:
    """The terms of a text in order, repeated ones repeated.

    Example:
        analyze("The women's Running-Shoes, 2.5in") == ["women", "run", "shoe", "2.5in"]
    """
    return [found for word in words(text) if (found := _term(word)) is not None]
