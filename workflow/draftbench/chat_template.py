"""The chat template of a model folder, rendered in a sandbox: it comes with a model and is not trusted.

transformers would do the same, but importing it takes longer than all the rest of a small server's start.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from draftbench.errors import ConfigError

CONFIG = "tokenizer_config.json"


class ChatTemplate:
    """The template in `chat_template.jinja` or in `tokenizer_config.json`.

    Attributes:
        tokens: texts of the special tokens that templates name, as `bos_token`.
    """

    def __init__(self, folder: Path) -> None:
        """Read the template, where the folder has one.

        Raises:
            ConfigError: a file is not readable, or the template does not parse.
        """
        self._folder = folder
        config = read_tokenizer_config(folder)
        names = [name for name in config if name.endswith("_token")]
        self.tokens = {name: text for name in names if (text := _token_text(config[name])) is not None}
        source = _source(folder, config)
        try:
            self._template = None if source is None else _environment().from_string(source)
        except TemplateError as error:
            raise ConfigError(
                f"{folder}: expected a chat template that Jinja reads, got: {error}; stage it again"
            ) from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None = None
    ) -> str:
        """The model's input for a conversation whose next message is the assistant's.

        Args:
            messages: each with `role` and `content`.
            variables: others that this template knows, such as `enable_thinking`.

        Raises:
            ConfigError: the model has no template, or it refuses the conversation.
        """
        if self._template is None:
            raise ConfigError(
                f"{self._folder}: expected a chat template in chat_template.jinja or {CONFIG}, got none; "
                "take an instruction-tuned model, or send text instead of a conversation"
            )
        fixed = {"messages": list(messages), "add_generation_prompt": True}
        try:
            return self._template.render({**self.tokens, **(variables or {}), **fixed})
        except (TemplateError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._folder}: the chat template refuses the conversation: {error}"
            ) from error


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """The folder's `tokenizer_config.json`, empty where it has none.

    Raises:
        ConfigError: the file holds no JSON object.
    """
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"expected a JSON object in {path}, got: {error}; stage the model again") from error
    if not isinstance(config, dict):
        raise ConfigError(f"expected a JSON object in {path}, got a list or value; stage the model again")
    return config


def _source(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):  # several, each with a name
        source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
    return source if isinstance(source, str) else None


def _token_text(token: Any) -> str | None:
    """A special token, which old configurations give as an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as chat templates expect it: transformers' rules of blanks, filters and functions."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().astimezone().strftime(pattern)
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    """Unlike Jinja's own filter, without escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
