"""From an observation to the prompt's token ids: the one place where text is encoded for the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from env_adapters.base import Adapter, Observation, PastTurn
from runtime.files import in_one_line
from runtime.records import Turn

PROBE, ANSWER = "probe", "an answer to look for"


class PromptTooLong(Exception):
    """A prompt does not fit even without any history. The message names object, fact and remedy."""


class TemplateError(Exception):
    """The tokenizer's chat template cannot render the prompt. The message names the remedy."""


@dataclass(frozen=True)
class Prompt:
    """What a turn adds to the context of the policy."""

    ids: tuple[int, ...]
    continues: bool  # the context is that of the turn before, its response, and `ids`; else `ids` alone


class PromptRenderer:
    """Renders the prompt of one turn.

    Args:
        tokenizer: a transformers tokenizer.
        adapter: writes the user messages.
        history_length: past turns shown at most, in the history form.
        prompt_tokens: longest prompt, in tokens, what the chat template adds included.
        chat_template: True: user messages through the tokenizer's template, ending where the assistant begins;
            False: the plain text.
        transcript: False: every turn's prompt is written anew (history form). True: each turn adds to the turns before.
    """

    def __init__(
        self,
        tokenizer: Any,
        adapter: Adapter,
        history_length: int,
        prompt_tokens: int,
        chat_template: bool,
        transcript: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.adapter = adapter
        self.history_length = history_length
        self.prompt_tokens = prompt_tokens
        self.chat_template = chat_template
        self.transcript = transcript

    def next_prompt(self, observation: Observation, history: Sequence[PastTurn], turns: Sequence[Turn]) -> Prompt:
        """The prompt of the turn after `turns`, in the form that is set.

        A transcript that would be longer than `prompt_tokens` begins anew: the first turn's prompt, then the newest
        turns that fit into half of the limit, then the new observation. So oldest turns go first, whole, and the next
        turns have room.

        Args:
            history: what the history form shows of the turns, oldest first.

        Raises:
            PromptTooLong: it does not fit even without any turn before it.
            TemplateError: the chat template fails.
        """
        if not self.transcript or not turns:
            return Prompt(self.render(observation, [] if self.transcript else history, len(turns)), False)
        new = self._behind(turns[-1], observation, len(turns))
        if len(context_ids(turns)) + len(new) <= self.prompt_tokens:
            return Prompt(new, True)
        opening = turns[0].prompt_ids
        kept: tuple[int, ...] = ()
        for index in range(len(turns) - 1, 0, -1):
            past = Observation(observation.goal, turns[index].observation, turns[index].admissible_actions)
            longer = self._behind(turns[index - 1], past, index) + turns[index].response_ids + kept
            if len(opening) + len(longer) + len(new) > self.prompt_tokens // 2:
                break
            kept = longer
        if len(opening) + len(kept) + len(new) > self.prompt_tokens:
            raise PromptTooLong(
                f"transcript after {len(turns)} turns, goal {observation.goal[:80]!r}: {len(opening) + len(new)} "
                f"tokens without any turn, env.prompt_tokens allows {self.prompt_tokens}; raise it"
            )
        return Prompt(opening + kept + new, False)

    def _behind(self, before: Turn, observation: Observation, turns_taken: int) -> tuple[int, ...]:
        """What follows a turn's response in a transcript: its end, where it was cut, and the next observation."""
        follow_up = getattr(self.adapter, "follow_up", None)
        text = follow_up(observation) if follow_up else self.adapter.prompt(observation, (), turns_taken)
        last = before.response_ids[-1]
        if not self.chat_template:
            end = () if last == self.tokenizer.eos_token_id else (self.tokenizer.eos_token_id,)
            return end + tuple(self.tokenizer.encode(text, add_special_tokens=False))
        messages = [("user", PROBE), ("assistant", ANSWER), ("user", text)]
        rendered = self._apply(messages, tokenize=False)
        start = rendered.find(ANSWER)
        if start < 0:
            raise TemplateError(
                f"tokenizer {getattr(self.tokenizer, 'name_or_path', '')!r}: its chat template leaves out what the "
                "assistant said; set env.prompt_form=history or use another model"
            )
        after = rendered[start + len(ANSWER) :].removeprefix(self.tokenizer.decode([last]))
        return tuple(self.tokenizer.encode(after, add_special_tokens=False))

    def render(self, observation: Observation, history: Sequence[PastTurn], turns_taken: int) -> tuple[int, ...]:
        """Token ids of the prompt: int [T], T <= prompt_tokens.

        `history` is oldest first. While the prompt is too long its oldest turn is left out; goal, observation and
        admissible actions are never cut.

        Raises:
            PromptTooLong: no history left and still more than `prompt_tokens`.
            TemplateError: the chat template fails.
        """
        shown = list(history[max(0, len(history) - self.history_length) :])
        while True:
            ids = self.encode(self.adapter.prompt(observation, shown, turns_taken))
            if len(ids) <= self.prompt_tokens:
                return ids
            if not shown:
                raise PromptTooLong(
                    f"prompt after {turns_taken} turns, goal {observation.goal[:80]!r}: {len(ids)} tokens without any "
                    f"history, env.prompt_tokens allows {self.prompt_tokens}; raise it to {len(ids)} or more"
                )
            del shown[0]

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of one user message, template included where it is on.

        Raises:
            TemplateError: the chat template fails, or nothing comes of the message.
        """
        ids = self._apply([("user", text)], tokenize=True) if self.chat_template else self.tokenizer.encode(text)
        if not ids:
            raise TemplateError(
                f"the prompt {text[:40]!r} has no tokens; look at the adapter's prompt() and at model.chat_template"
            )
        return tuple(ids)

    def check_template(self) -> None:
        """Render a word to see that the chat template, where it is on, shows the user's message.

        Raises:
            TemplateError: it fails, or leaves the message out.
        """
        if self.chat_template and PROBE not in self._apply([("user", PROBE)], tokenize=False):
            raise TemplateError(
                f"tokenizer {getattr(self.tokenizer, 'name_or_path', '')!r}: its chat template leaves the user's "
                "message out; set model.chat_template=false or use an instruct model"
            )

    def _apply(self, messages: Sequence[tuple[str, str]], tokenize: bool) -> Any:
        """(role, text) messages through the template, up to where the assistant begins: ids or text."""
        said = [{"role": role, "content": text} for role, text in messages]
        try:
            return self.tokenizer.apply_chat_template(
                said, add_generation_prompt=True, tokenize=tokenize, return_dict=False
            )
        except Exception as fault:  # jinja2 and transformers raise many kinds; all mean: no such rendering
            raise TemplateError(
                f"tokenizer {getattr(self.tokenizer, 'name_or_path', '')!r}: its chat template cannot render a user's "
                f"message ({in_one_line(fault)}); set model.chat_template=false or use an instruct model"
            ) from fault


def context_ids(turns: Sequence[Turn]) -> tuple[int, ...]:
    """Everything that the policy has read and said when the last turn ends: prompt and response of all it continues."""
    ids: tuple[int, ...] = ()
    for turn in reversed(turns):
        ids = turn.prompt_ids + turn.response_ids + ids
        if not turn.continues:
            break
    return ids
