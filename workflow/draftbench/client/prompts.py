"""Prompt and scenario files, read strictly, and the prompts of a cell made from them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from draftbench.client.plan import Message
from draftbench.errors import ConfigError

Text = Annotated[str, Field(min_length=1, pattern=r"\S")]
Identifier = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Prompt(_File):
    """One prompt of a prompt file."""

    id: Identifier
    type: Identifier
    text: Text

    def messages(self) -> list[Message]:
        """The prompt as a conversation of one message."""
        return [{"role": "user", "content": self.text}]


class PromptFile(_File):
    """A prompt file: `prompts: [{id, type, text}, ...]`."""

    prompts: list[Prompt] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_and_texts_are_distinct(self) -> "PromptFile":
        for values in ([prompt.id for prompt in self.prompts], [prompt.text for prompt in self.prompts]):
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"distinct ids and texts, but {twice[0][:60]!r} stands there twice")
        return self


class Scenario(_File):
    """A scenario file: `scenario`, optionally `system`, and the user's `turns`."""

    scenario: Identifier
    system: Text | None = None
    turns: list[Text] = Field(min_length=1)

    def opening(self) -> list[Message]:
        """The conversation before the first turn."""
        return [{"role": "system", "content": self.system}] if self.system else []


Model = TypeVar("Model", bound=BaseModel)


def load_prompts(path: Path | str) -> list[Prompt]:
    """The prompts of a file, in its order.

    Raises:
        ConfigError: the file cannot be read or does not fit.
    """
    return _load(path, PromptFile).prompts


def load_scenario(path: Path | str, num_turns: int | None = None) -> Scenario:
    """A scenario, cut to its first `num_turns` turns.

    Raises:
        ConfigError: the file cannot be read, does not fit, or has fewer turns.
    """
    scenario = _load(path, Scenario)
    if num_turns is None:
        return scenario
    if len(scenario.turns) < num_turns:
        raise ConfigError(
            f"{path}: turns: expected at least {num_turns} turns, got {len(scenario.turns)}; "
            "add turns or lower num_turns of the workload"
        )
    return scenario.model_copy(update={"turns": scenario.turns[:num_turns]})


def expand_prompts(prompts: Sequence[Prompt], num_requests: int) -> list[Prompt]:
    """As many prompts as requests, none twice.

    Where the file has fewer, later passes over it begin with a number: the same prompt again would find its
    keys and values in the server's cache. The numbered prompt has an id of its own and is equal in every
    method, so it can be paired.
    """
    expanded = []
    for index in range(num_requests):
        lap, place = divmod(index, len(prompts))
        prompt = prompts[place]
        if lap:
            changes = {"id": f"{prompt.id}-{lap + 1}", "text": f"Variant {lap + 1}. {prompt.text}"}
            prompt = prompt.model_copy(update=changes)
        expanded.append(prompt)
    return expanded


def check_disjoint(warmup: Sequence[Prompt], measured: Sequence[str], origin: str) -> None:
    """No prompt is used both to warm up and to measure.

    Raises:
        ConfigError: one is.
    """
    texts = {text.strip() for text in measured}
    for prompt in warmup:
        if prompt.text.strip() in texts:
            raise ConfigError(
                f"{origin}: prompt {prompt.id}: expected a text that is measured nowhere, got one that is; "
                "change the text"
            )


def _load(path: Path | str, model: type[Model]) -> Model:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: expected a readable YAML file, got: {reason}") from error
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(
            f"{path}: {key}: expected {message}; correct the file, see config/README.md"
        ) from None
