"""Conversations as token ids, by the target's own chat template.

A response is kept exactly as the target generated it: later turns are appended as ids, and no text is
tokenised twice. What a template puts between two turns is found by rendering markers through it.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftbench.errors import ConfigError

Ids = NDArray[np.int64]
MARKER = "⟦marker⟧"


class ChatFormat:
    """The target's tokenizer and template."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer  # noqa: PLC0415  heavy, and only needed with real text

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        stop_id = self.tokenizer.eos_token_id
        if stop_id is None or not self.tokenizer.chat_template:
            raise ConfigError(
                f"{folder}: expected a stop token and a chat template, got none; use a chat model"
            )
        self.stop_id: int = stop_id
        self._between = self._text_between_turns()

    def encode(self, text: str) -> Ids:
        """Ids of a text with template tokens in it."""
        return np.array(self.tokenizer.encode(text, add_special_tokens=False), dtype=np.int64)

    def decode(self, ids: Ids) -> str:
        """Text of ids, special tokens left out."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _render(self, messages: list[dict[str, str]], *, is_open: bool) -> str:
        text: str = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=is_open
        )
        return text

    def opening(self, user: str, system: str | None = None) -> Ids:
        """Ids of a first turn, up to where the response begins."""
        messages = [{"role": "system", "content": system}] if system else []
        return self.encode(self._render([*messages, {"role": "user", "content": user}], is_open=True))

    def user_opening(self, system: str) -> Ids:
        """Ids up to where a user message begins: for sampling one from the target."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": MARKER}]
        return self.encode(self._render(messages, is_open=False).split(MARKER)[0])

    def _text_between_turns(self) -> str:
        stop = self.tokenizer.decode([self.stop_id])
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": MARKER},
            {"role": "user", "content": MARKER},
        ]
        after = self._render(messages, is_open=True).split(MARKER)[1]
        return after.removeprefix(stop)

    def next_turn(self, response: Ids, user: str) -> Ids:
        """Ids that follow a response up to where the next one begins; closes a response that was cut."""
        messages = [{"role": "user", "content": MARKER}]
        closing = self._render(messages, is_open=True).split(MARKER)[1]
        ids = self.encode(self._between + user + closing)
        is_closed = len(response) > 0 and response[-1] == self.stop_id
        return ids if is_closed else np.concatenate([[self.stop_id], ids])
