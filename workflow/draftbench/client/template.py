"""A target's chat template: `/generate` is sent what chat completions would make of a conversation."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftbench import chat_template
from draftbench.errors import ConfigError


class ChatTemplate(chat_template.ChatTemplate):
    """Writes conversations for an endpoint that tokenises them like any other text."""

    def __init__(self, model_dir: Path | str) -> None:
        """Read the template.

        Raises:
            ConfigError: the folder's files do not parse.
        """
        folder = Path(model_dir)
        super().__init__(folder)
        bos_token = self.tokens.get("bos_token", "")
        self._added_token = bos_token if _adds_bos(folder, bos_token) else ""

    def render(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None = None
    ) -> str:
        """The model's input for a conversation whose next message is the assistant's.

        A leading beginning-of-text token is left out where the tokenizer adds one itself: two of them would
        be another prompt than the model was trained on.

        Raises:
            ConfigError: the folder has no template, or it refuses the conversation.
        """
        return super().render(messages, variables).removeprefix(self._added_token)


def _adds_bos(folder: Path, bos_token: str) -> bool:
    """Whether the tokenizer puts the beginning-of-text token before any text it is given."""
    config = chat_template.read_tokenizer_config(folder)
    if isinstance(config.get("add_bos_token"), bool):
        return bool(config["add_bos_token"])
    path = folder / "tokenizer.json"
    if not bos_token or not path.is_file():
        return False
    try:
        processor = json.loads(path.read_text(encoding="utf-8")).get("post_processor")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: expected a readable JSON file, got: {error}; stage the target") from error
    steps = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    singles = [step.get("single", []) for step in steps if isinstance(step, dict)]
    firsts = [single[0] for single in singles if isinstance(single, list) and single]
    return any(first.get("SpecialToken", {}).get("id") == bos_token for first in firsts)
