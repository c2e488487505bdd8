"""What is wrong with a campaign, in one sentence: file, key, expected, got, what to do."""

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
    "too_short": "at least one entry",
    "finite_number": "a finite number",
}
DO = "correct the key, see config/README.md"
MAX_SHOWN_CHARACTERS = 80
WORDS_OF_SECRETS = "KEY|TOKEN|SECRET|PASSWORD"
SECRET_NAME = re.compile(rf"(?i:(^|_)({WORDS_OF_SECRETS})$)|-(key|password)$")
"""Variables by any of these words; options only by two: `bucket-time-to-first-token` counts tokens."""
Value = TypeVar("Value")


def misfit(key: str, expected: str, got: Any) -> PydanticCustomError:
    """What a validator raises when values do not fit each other: at `key`, below the model that it checks."""
    return PydanticCustomError("misfit", "misfit", {"key": key, "expected": expected, "got": got})


def without_secrets(values: dict[str, Value]) -> dict[str, Value]:
    """The same values, none of them named like a secret: results store them and reports print them."""
    for name in values:
        if SECRET_NAME.search(name):
            expected = "no secret, for results store it and reports print it; export it before the run"
            raise misfit(name, expected, "a name like one")
    return values


def sentence(error: ValidationError, model: type[BaseModel], origin: Path | str) -> str:
    """The first thing that `error` found, and in how many more places something is wrong."""
    key = ".".join(map(str, first_key(error, model))) or "the file"
    num_more = len({(*_yaml_path(detail["loc"], model),) for detail in error.errors()}) - 1
    more = f" ({num_more} more like this)" if num_more else ""
    return f"{origin}: {key}: {_explain(_first(error), model)}{more}"


def first_key(error: ValidationError, model: type[BaseModel]) -> tuple[str | int, ...]:
    """Where the first thing that `error` found stands in the file."""
    detail = _first(error)
    below = detail["ctx"]["key"].split(".") if detail["type"] == "misfit" else []
    return (*_yaml_path(detail["loc"], model), *below)


def _first(error: ValidationError) -> ErrorDetails:
    """What stands there and does not fit comes before what is missing: a misspelt key is both."""
    return min(error.errors(), key=lambda detail: detail["type"] == "missing")


def _explain(detail: ErrorDetails, model: type[BaseModel]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _explain_unknown(str(detail["loc"][-1]), _fields(detail["loc"][:-1], model))
    if kind == "missing":
        return "expected a value, got nothing; add the key, see config/README.md"
    if kind == "misfit":
        return f"expected {context['expected']}, got {_shown(context['got'])}; {DO}"
    if kind == "union_tag_invalid":
        return f"expected kind to be one of {context['expected_tags']}, got {_shown(context['tag'])}; {DO}"
    if kind == "string_pattern_mismatch":
        expected = _pattern_in_words(detail["loc"], model)
    elif kind == "union_tag_not_found":
        expected = "a key kind that says which it is"
    else:
        words = detail["msg"].removeprefix("Input should be ")
        expected = (
            EXPECTED.get(kind) or ("a number " if words.startswith(("greater", "less")) else "") + words
        )
    return f"expected {expected}, got {_shown(detail['input'])}; {DO}"


def _explain_unknown(key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    if close:
        return f"expected a known key, got {key!r}; did you mean {close[0]!r}?"
    return f"expected one of the keys {', '.join(known)}, got {key!r}; remove it, see config/README.md"


def _shown(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    if len(text) <= MAX_SHOWN_CHARACTERS:
        return text
    return text[:MAX_SHOWN_CHARACTERS] + "…"


def _pattern_in_words(loc: Sequence[str | int], model: type[BaseModel]) -> str:
    for candidate in _models_at(loc[:-1], model):
        field = candidate.model_fields.get(str(loc[-1]))
        extra = field.json_schema_extra if field is not None else None
        if isinstance(extra, dict):
            return str(extra["expected"])
    return "lower-case words joined by hyphens"  # the keys of mappings are all names


def _yaml_path(loc: Sequence[str | int], model: type[BaseModel]) -> Iterable[str | int]:
    """`loc` without the tags that pydantic inserts for unions and for keys of mappings."""
    for depth, part in enumerate(loc):
        if part != "[key]" and not _is_tag(part, _types_at(loc[:depth], model)):
            yield part


def _fields(loc: Sequence[str | int], model: type[BaseModel]) -> list[str]:
    return [name for candidate in _models_at(loc, model) for name in candidate.model_fields]


def _models_at(loc: Sequence[str | int], model: type[BaseModel]) -> list[type[BaseModel]]:
    return [t for t in _types_at(loc, model) if isinstance(t, type) and issubclass(t, BaseModel)]


def _types_at(loc: Sequence[str | int], model: type[BaseModel]) -> list[Any]:
    """The types that the schema allows at a place, unions taken apart."""
    here: list[Any] = [model]
    for part in loc:
        if not _is_tag(part, here):
            here = [option for known in here for option in _step(known, part)]
        elif part in _tags(here):
            here = [option for option in here if part in _tags([option])]
    return here


def _step(known: Any, part: str | int) -> list[Any]:
    if isinstance(known, type) and issubclass(known, BaseModel):
        field = known.model_fields.get(str(part))
        return _options(field.annotation) if field is not None else []
    if get_origin(known) in (dict, tuple):
        return _options([a for a in get_args(known) if a is not Ellipsis][-1])
    return []


def _options(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _options(get_args(annotation)[0])
    if get_origin(annotation) in (dict, tuple) or not get_args(annotation) or isinstance(annotation, type):
        return [annotation]
    arguments = [argument for argument in get_args(annotation) if argument is not type(None)]
    return [option for argument in arguments for option in _options(argument)]


def _is_tag(part: str | int, here: Sequence[Any]) -> bool:
    """`part` names a member of a union and stands in no file."""
    return (
        len(here) > 1
        and not any(_step(known, part) for known in here if not _tags([known]))
        and (part in _tags(here) or not any(_step(known, part) for known in here))
    )


def _tags(here: Sequence[Any]) -> set[Any]:
    kinds = [t.model_fields.get("kind") for t in here if isinstance(t, type) and issubclass(t, BaseModel)]
    return {tag for kind in kinds if kind is not None for tag in get_args(kind.annotation)}
