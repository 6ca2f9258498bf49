"""From an observation to the prompt's token ids: the one place where text is encoded for the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from env_adapters.base import Adapter, Observation, PastTurn
from runtime.files import in_one_line

PROBE = "probe"


class PromptTooLong(Exception):
    """A prompt does not fit even without any history. The message names object, fact and remedy."""


class TemplateError(Exception):
    """The tokenizer's chat template cannot render the prompt. The message names the remedy."""


class PromptRenderer:
    """Renders the prompt of one turn.

    Args:
        tokenizer: a transformers tokenizer.
        adapter: writes the user message.
        history_length: past turns shown at most.
        prompt_tokens: longest prompt, in tokens, what the chat template adds included.
        chat_template: True: one user message through the tokenizer's template, ending where the assistant begins;
            False: the plain text.
    """

    def __init__(
        self, tokenizer: Any, adapter: Adapter, history_length: int, prompt_tokens: int, chat_template: bool
    ) -> None:
        self.tokenizer = tokenizer
        self.adapter = adapter
        self.history_length = history_length
        self.prompt_tokens = prompt_tokens
        self.chat_template = chat_template

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
        ids = self._apply(text, tokenize=True) if self.chat_template else self.tokenizer.encode(text)
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
        if self.chat_template and PROBE not in self._apply(PROBE, tokenize=False):
            raise TemplateError(
                f"tokenizer {getattr(self.tokenizer, 'name_or_path', '')!r}: its chat template leaves the user's "
                "message out; set model.chat_template=false or use an instruct model"
            )

    def _apply(self, text: str, tokenize: bool) -> Any:
        """One user message through the template, up to where the assistant begins: ids or text."""
        message = [{"role": "user", "content": text}]
        try:
            return self.tokenizer.apply_chat_template(
                message, add_generation_prompt=True, tokenize=tokenize, return_dict=False
            )
        except Exception as fault:  # jinja2 and transformers raise many kinds; all mean: no such rendering
            raise TemplateError(
                f"tokenizer {getattr(self.tokenizer, 'name_or_path', '')!r}: its chat template cannot render one user "
                f"message ({in_one_line(fault)}); set model.chat_template=false or use an instruct model"
            ) from fault
