"""A model folder's tokenizer and chat template, without importing transformers.

transformers would do the same, but importing it takes longer than all the rest of a small server's start.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment

from draftbench.errors import ConfigError


class Tokenizer:
    """Text to token ids and back, by `tokenizer.json` of the model folder alone."""

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
        self._variables, source = _read_template(model_path)
        try:
            self._template = _environment().from_string(source) if source else None
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template in {model_path} is no valid Jinja: {error}") from error

    def encode(self, text: str, *, is_chat: bool = False) -> tuple[int, ...]:
        """Token ids of a text; a rendered chat already spells its special tokens, so none is added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=not is_chat).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; ids outside the vocabulary give nothing."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def render_chat(self, messages: list[dict[str, str]], **variables: Any) -> str:
        """The chat as the model's template writes it, ending where the assistant begins.

        Raises:
            ConfigError: the model has no template, or the template refuses the messages.
        """
        if self._template is None:
            raise ConfigError("the model has no chat template; send the text to /v1/completions instead")
        try:
            return self._template.render(
                {**self._variables, "messages": messages, "add_generation_prompt": True, **variables}
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise ConfigError(f"the model's chat template refuses the messages: {error}") from error


def _read_template(model_path: Path) -> tuple[dict[str, str], str | None]:
    """The special tokens that templates name, and the template's source, where the folder has one."""
    path = model_path / "tokenizer_config.json"
    try:
        config = json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise ConfigError(f"expected JSON in {path}, got: {error}; stage the model again") from error
    tokens = {name: config[name] for name in config if name.endswith("_token")}
    variables = {k: v["content"] if isinstance(v, dict) else v for k, v in tokens.items()}
    file = model_path / "chat_template.jinja"
    source = file.read_text() if file.exists() else config.get("chat_template")
    if isinstance(source, list):
        source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
    return variables, source


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as chat templates expect it: transformers' whitespace rules, filters and functions."""

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment
