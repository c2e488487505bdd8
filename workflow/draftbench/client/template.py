"""A target's chat template, so that `/generate` is sent what chat completions would make of a conversation.

Rendered with Jinja in a sandbox: a template comes with a model and is not trusted.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from draftbench.client.plan import Message
from draftbench.errors import ConfigError

CONFIG = "tokenizer_config.json"


class ChatTemplate:
    """The template in a staged model's folder: `chat_template.jinja` or that of `tokenizer_config.json`."""

    def __init__(self, model_dir: Path | str) -> None:
        """Read the template.

        Raises:
            ConfigError: the folder has none, or it does not parse.
        """
        self._folder = Path(model_dir)
        config = _read_json(self._folder / CONFIG)
        self._tokens = {
            name: _token_text(config.get(name))
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        }
        self._adds_bos = _adds_bos(self._folder, config, self._tokens["bos_token"])
        self._template = self._compile(self._source(config))

    def render(self, messages: Sequence[Message]) -> str:
        """The model's input for a conversation whose next message is the assistant's.

        A leading beginning-of-text token is left out where the tokenizer adds one itself: two of them would
        be another prompt than the model was trained on.

        Raises:
            ConfigError: the template refuses the conversation.
        """
        try:
            text = self._template.render(messages=list(messages), add_generation_prompt=True, **self._tokens)
        except (TemplateError, SecurityError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._folder}: the chat template refuses the conversation: {error}"
            ) from error
        return text.removeprefix(self._tokens["bos_token"]) if self._adds_bos else text

    def _source(self, config: dict[str, Any]) -> str:
        path = self._folder / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        template = config.get("chat_template")
        if isinstance(template, list):
            named = {
                entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)
            }
            template = named.get("default")
        if not isinstance(template, str):
            raise ConfigError(
                f"{self._folder}: expected a chat template in chat_template.jinja or {CONFIG}, got none; "
                "stage an instruction-tuned target"
            )
        return template

    def _compile(self, source: str) -> Template:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            return environment.from_string(source)
        except TemplateError as error:
            raise ConfigError(f"{self._folder}: the chat template does not parse: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: expected a readable JSON file, got: {error}; stage the target") from error
    return value if isinstance(value, dict) else {}


def _token_text(token: Any) -> str:
    """A special token, which old configurations give as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _adds_bos(folder: Path, config: dict[str, Any], bos_token: str) -> bool:
    """Whether the tokenizer puts the beginning-of-text token before any text it is given."""
    if not bos_token:
        return False
    if isinstance(config.get("add_bos_token"), bool):
        return bool(config["add_bos_token"])
    path = folder / "tokenizer.json"
    if not path.is_file():
        return False
    processor = _read_json(path).get("post_processor")
    steps = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    singles = [step.get("single", []) for step in steps if isinstance(step, dict)]
    firsts = [single[0] for single in singles if isinstance(single, list) and single]
    return any(first.get("SpecialToken", {}).get("id") == bos_token for first in firsts)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
