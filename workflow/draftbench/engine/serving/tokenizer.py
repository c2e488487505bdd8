"""A model folder's tokenizer and chat template."""

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from draftbench.chat_template import ChatTemplate
from draftbench.errors import ConfigError


class Tokenizer:
    """Text to token ids and back, by `tokenizer.json` of the model folder alone.

    Attributes:
        chat_template: writes a conversation as the text to be encoded with `is_chat`.
    """

    def __init__(self, model_path: Path) -> None:
        """Read the folder's files.

        Raises:
            ConfigError: there is no readable `tokenizer.json`, or the chat template has a syntax error.
        """
        path = model_path / "tokenizer.json"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the Rust side raises bare Exception
            raise ConfigError(
                f"expected a tokenizer in {path}, got: {error}; stage the model again"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.chat_template = ChatTemplate(model_path)

    def encode(self, text: str, *, is_chat: bool = False) -> tuple[int, ...]:
        """Token ids of a text; a rendered chat already spells its special tokens, so none is added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=not is_chat).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; ids outside the vocabulary give nothing."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text
