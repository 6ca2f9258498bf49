"""From a sampled response to an action, as published results read it, and back.

A response is well-formed where it holds `<think>`, `</think>` and an action between the first `<action>` and the
first `</action>` after it. Everything is lower-cased. Text after `</action>` is ignored: it is neither played nor
an error. Whether the action is one that the environment lists is not asked here, as in the published code: an
engine answers a well-formed but inadmissible action in its own way.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_ACTION_CHARS = 300  # longer than those of most environments; keeps hostile text out of engines and logs


@dataclass(frozen=True)
class ParsedResponse:
    """Example: parse_response("<think>a mug!</think><action>Take mug 1 from desk 1</action>") gives
    ParsedResponse(action="take mug 1 from desk 1", valid=True)."""

    action: str  # "" where the response is not valid
    valid: bool


def parse_response(
    text: str, *, lower: bool = True, think_tags: bool = True, max_chars: int = MAX_ACTION_CHARS
) -> ParsedResponse:
    """The action of a response. Never raises on any text.

    `lower=False` keeps the case of the action (tags match in any case); `think_tags=False` does not ask for them;
    an action of more than `max_chars` characters is not valid.
    """
    folded = text.lower()
    if len(folded) != len(text):  # a few letters change length when lower-cased: positions would not match
        text = folded
    start = folded.find("<action>")
    end = folded.find("</action>", start + len("<action>")) if start >= 0 else -1
    if start < 0 or end < 0:
        return ParsedResponse("", False)
    action = " ".join((folded if lower else text)[start + len("<action>") : end].split())
    if not action or len(action) > max_chars or "\x00" in action:
        return ParsedResponse("", False)
    if think_tags and ("<think>" not in folded or "</think>" not in folded):
        return ParsedResponse("", False)
    return ParsedResponse(action, True)


def format_response(action: str, thought: str = "") -> str:
    """The response that plays `action`: `<think></think><action>go to shelf 1</action>`."""
    return f"<think>{thought}</think><action>{action}</action>"
