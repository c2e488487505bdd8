"""Bodies of the three generation endpoints: checked, and turned into one `Job` each."""

import uuid
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from draftbench.engine.request import Request, SamplingParams
from draftbench.engine.serving.tokenizer import Tokenizer
from draftbench.errors import DraftbenchError

UNION_MEMBERS = {"str", "list[constrained-int]", "list[_TextPart]"}  # in pydantic's error paths
# Sampling settings that have the same name in a body and in the engine.
SAMPLING_FIELDS = [field.name for field in fields(SamplingParams) if field.name != "max_new_tokens"]

# Fields of SGLang and OpenAI that this engine lacks may be sent with the value that asks for nothing.
Zero = Annotated[float, Field(ge=0, le=0)]
One = Annotated[float, Field(ge=1, le=1)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Rid = Annotated[str, Field(min_length=1, max_length=256)]
Stops = Annotated[
    list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value or [])
]


class HttpError(DraftbenchError):
    """A request that is answered with an error object.

    Attributes:
        code: the HTTP status.
    """

    def __init__(self, message: str, code: int = 400) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Job:
    """A checked request: what the engine gets, and how its answer is to be written.

    Attributes:
        stop: strings that end the text; the engine itself knows only token ids.
        has_usage: a streamed answer ends with an event that counts tokens.
        has_running_usage: every streamed event counts the tokens so far.
        has_spec_details: the speculative counts are wanted in `sglext`.
    """

    request: Request
    stop: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    is_stream: bool = False
    has_usage: bool = False
    has_running_usage: bool = False
    has_spec_details: bool = False


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _CustomParams(_Body):
    ddtree_budget: int | None = Field(None, ge=1)


class _Sampling(_Body):
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(-1, ge=-1)
    seed: int | None = Field(None, ge=0, lt=2**63, validation_alias=AliasChoices("seed", "sampling_seed"))
    ignore_eos: bool = False
    stop: Stops = []
    stop_token_ids: frozenset[TokenId] = frozenset()
    skip_special_tokens: bool = True
    custom_params: _CustomParams = _CustomParams()
    n: One | None = None
    repetition_penalty: One | None = None
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None
    min_p: Zero | None = None

    def to_job(self, prompt_ids: tuple[int, ...], rid: str, max_new_tokens: int, **options: bool) -> Job:
        settings = {name: getattr(self, name) for name in SAMPLING_FIELDS}
        sampling = SamplingParams(max_new_tokens, **settings)
        request = Request(rid, prompt_ids, sampling, self.custom_params.ddtree_budget)
        return Job(request, tuple(filter(None, self.stop)), self.skip_special_tokens, **options)


class _GenerateSampling(_Sampling):
    max_new_tokens: int = Field(128, ge=1)


class _GenerateBody(_Body):
    text: str | None = None
    input_ids: list[TokenId] | None = None
    sampling_params: _GenerateSampling = _GenerateSampling()
    stream: bool = False
    rid: Rid | None = None
    return_logprob: Literal[False] = False


class _StreamOptions(_Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class _OpenAIBody(_Sampling):
    model: str | None = None
    user: str | None = None
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    return_spec_tokens_details: bool = False
    return_cached_tokens_details: bool = False  # the usage tells them, asked or not
    max_tokens: int | None = Field(None, ge=1)
    rid: Rid | None = None
    logprobs: Literal[False] | None = None

    def to_openai_job(self, prompt_ids: tuple[int, ...], prefix: str, max_new_tokens: int) -> Job:
        return self.to_job(
            prompt_ids,
            self.rid or f"{prefix}-{uuid.uuid4().hex}",
            max_new_tokens,
            is_stream=self.stream,
            has_usage=self.stream_options.include_usage,
            has_running_usage=self.stream_options.continuous_usage_stats,
            has_spec_details=self.return_spec_tokens_details,
        )


class _CompletionBody(_OpenAIBody):
    prompt: str | list[TokenId]


class _TextPart(_Body):
    type: Literal["text"]
    text: str


class _Message(_Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_TextPart]
    name: str | None = None

    def to_template(self) -> dict[str, str]:
        parts = self.content if isinstance(self.content, list) else []
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in parts)
        return {"role": self.role, "content": text}


class _ChatBody(_OpenAIBody):
    messages: list[_Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    chat_template_kwargs: dict[str, Any] = {}


class _AbortBody(_Body):
    rid: str | None = None
    abort_all: bool = False


AnyBody = TypeVar("AnyBody", bound=_Body)


def parse_generate(raw: bytes, tokenizer: Tokenizer, _max_context_tokens: int) -> Job:
    """The job of a `/generate` body.

    Raises:
        HttpError: the body is no JSON, or a field is missing, unknown, mistyped or out of range.
    """
    body = _parse(_GenerateBody, raw)
    if (body.text is None) == (body.input_ids is None):
        raise HttpError("expected either text or input_ids in the body, got both or neither")
    prompt_ids = tuple(body.input_ids or ()) if body.text is None else tokenizer.encode(body.text)
    sampling = body.sampling_params
    rid = body.rid or uuid.uuid4().hex
    return sampling.to_job(prompt_ids, rid, sampling.max_new_tokens, is_stream=body.stream)


def parse_completion(raw: bytes, tokenizer: Tokenizer, _max_context_tokens: int) -> Job:
    """The job of a `/v1/completions` body; errors as in `parse_generate`."""
    body = _parse(_CompletionBody, raw)
    prompt_ids = tokenizer.encode(body.prompt) if isinstance(body.prompt, str) else tuple(body.prompt)
    return body.to_openai_job(prompt_ids, "cmpl", body.max_tokens or 16)


def parse_chat(raw: bytes, tokenizer: Tokenizer, max_context_tokens: int) -> Job:
    """The job of a `/v1/chat/completions` body; errors as in `parse_generate`.

    Without a limit of its own the answer may fill what the prompt leaves of the context.
    """
    body = _parse(_ChatBody, raw)
    messages = [message.to_template() for message in body.messages]
    text = tokenizer.chat_template.render(messages, body.chat_template_kwargs)
    prompt_ids = tokenizer.encode(text, is_chat=True)
    limit = body.max_completion_tokens or body.max_tokens or max(max_context_tokens - len(prompt_ids), 1)
    return body.to_openai_job(prompt_ids, "chatcmpl", limit)


def parse_abort(raw: bytes) -> str | None:
    """The name of the request that an `/abort_request` body means, None for all; errors as above."""
    body = _parse(_AbortBody, raw)
    if body.rid is None and not body.abort_all:
        raise HttpError("expected rid or abort_all in the body, got neither; name the request to be aborted")
    return None if body.abort_all else body.rid


def _parse(model: type[AnyBody], raw: bytes) -> AnyBody:
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise HttpError(_sentence(error)) from error


def _sentence(error: ValidationError) -> str:
    """The first fault of a body, in one sentence."""
    fault = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in fault["loc"] if part not in UNION_MEMBERS) or "body"
    if fault["type"] == "extra_forbidden":
        return f"unknown field {where} in the body; check its spelling or leave it out"
    if fault["type"] == "missing":
        return f"the field {where} is missing in the body"
    return f"{where}: {fault['msg'][0].lower()}{fault['msg'][1:]}, got {fault['input']!r:.80}"
