"""Measure one request: from its plan to a checked record."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from draftbench import definitions
from draftbench.client.api_generate import GenerateApi
from draftbench.client.api_openai import ChatApi, CompletionsApi
from draftbench.client.events import StreamFault, Update, error_message, parse_payload
from draftbench.client.generation import Generation
from draftbench.client.plan import ApiName, RequestPlan
from draftbench.client.sse import SseEvent, SseParser
from draftbench.client.transport import (
    StreamClock,
    StreamedResponse,
    StreamLimits,
    TransportError,
    open_stream,
)
from draftbench.definitions import Drafting
from draftbench.errors import MeasurementError
from draftbench.records import RequestRecord, Status

DONE = "[DONE]"
BODY_BYTES_KEPT = 4096
ABORTED = ("abort", "error", "cancel")  # beginnings of finish reasons that are no end of a generation


class Api(Protocol):
    """Body and events of one request; keeps what the events said of text and ids."""

    path: str
    output_ids: list[int] | None

    @property
    def text(self) -> str:
        """The answer so far."""

    @property
    def reasoning_text(self) -> str:
        """The reasoning so far."""

    def body(self, plan: RequestPlan) -> dict[str, Any]:
        """The JSON to send."""

    def read(self, payload: dict[str, Any]) -> Update:
        """Take one event."""


APIS: dict[ApiName, type[Api]] = {"generate": GenerateApi, "chat": ChatApi, "completions": CompletionsApi}


@dataclass
class _Attempt:
    """One request under way."""

    api: Api
    clock: StreamClock
    generation: Generation = field(default_factory=Generation)
    http_status: int | None = None
    error: str | None = None


def measure_request(
    plan: RequestPlan, base_url: str, limits: StreamLimits, drafting: Drafting | None = None
) -> RequestRecord:
    """Send one request, once, and record what came of it. Whatever the server does becomes a record.

    Args:
        plan: what to ask.
        base_url: `http://host:port`, without a path.
        limits: connect, idle and total limits.
        drafting: what is known of the method, for the cross-checks.

    Raises:
        ConfigError: the URL is not plain HTTP.
    """
    api = APIS[plan.api]()
    attempt = _Attempt(api, StreamClock(limits))
    attempt.clock.start()
    try:
        with open_stream(base_url.rstrip("/") + api.path, api.body(plan), attempt.clock) as response:
            attempt.http_status = response.status
            _take_stream(response, attempt)
    except MeasurementError as error:
        # A connection that is cut after everything was received takes nothing away.
        if not (isinstance(error, TransportError) and attempt.generation.is_complete):
            attempt.error = str(error)
    return _record(plan, attempt, drafting or Drafting())


def _take_stream(response: StreamedResponse, attempt: _Attempt) -> None:
    """Read events until `[DONE]` or the end.

    Raises:
        MeasurementError: the server answered with an error, broke the format, or was too slow.
    """
    if response.status != 200:
        raise StreamFault(f"HTTP {response.status}: {_body_message(response)}")
    if response.content_type == "application/json":
        raise StreamFault(f"expected a stream of events, got one JSON answer: {_body_message(response)}")
    parser = SseParser()
    start = b""
    num_events = 0
    for data in response.reads():
        events = parser.feed(data)
        num_events += len(events)
        if not num_events:
            start = (start + data)[:BODY_BYTES_KEPT]
        if _take_events(events, attempt):
            return
    if not _take_events(parser.finish(), attempt) and not num_events and start.strip():
        message = _message_in(start)
        raise StreamFault(f"expected a stream of events, got {message!r}")


def _take_events(events: Sequence[SseEvent], attempt: _Attempt) -> bool:
    """Take the events of one read; True when the stream said that it is done."""
    time_s = attempt.clock.last_read_s
    for event in events:
        if event.data.strip() == DONE:
            return True
        if not event.data and event.name != "error":
            continue
        if attempt.generation.take(attempt.api.read(parse_payload(event)), time_s):
            attempt.clock.mark_progress()
    return False


def _body_message(response: StreamedResponse) -> str:
    body = b""
    for data in response.reads():
        body += data
        if len(body) >= BODY_BYTES_KEPT:
            break
    return _message_in(body)


def _message_in(body: bytes) -> str:
    """The server's message in a body that is no stream, or the body's beginning."""
    text = body[:BODY_BYTES_KEPT].decode(errors="replace").strip()
    try:
        return error_message(json.loads(text)) or text[:500]
    except ValueError:
        return text[:500] or "no body"


def _record(plan: RequestPlan, attempt: _Attempt, drafting: Drafting) -> RequestRecord:
    """The record of a request that has ended, well or badly."""
    generation, clock, usage, spec = (
        attempt.generation,
        attempt.clock,
        attempt.generation.usage,
        attempt.generation.spec,
    )
    chunks, has_counts = generation.chunks(may_end_unseen=plan.api != "generate")
    first_s, last_s = (chunks[0].time_s, chunks[-1].time_s) if chunks else (None, None)
    num_rounds = spec.num_rounds if spec else None
    num_accepted = spec.num_accepted_tokens if spec else None
    tau = 1.0 if drafting.is_speculative is False else definitions.tau(num_rounds, num_accepted)
    record = RequestRecord(
        **plan.record_fields(),
        status="ok",
        error=attempt.error,
        http_status=attempt.http_status,
        finish_reason=generation.finish_reason,
        num_prompt_tokens=generation.num_prompt_tokens,
        num_cached_tokens=generation.num_cached_tokens,
        num_output_tokens=usage.num_output_tokens if usage else None,
        send_s=clock.send_s,
        first_token_s=first_s,
        last_token_s=last_s,
        end_s=max(clock.last_read_s, clock.send_s),
        ttft_s=definitions.ttft_s(clock.send_s, chunks),
        tpot_s=definitions.tpot_s(chunks) if has_counts else None,
        e2e_s=None if last_s is None else last_s - clock.send_s,
        chunks=chunks,
        has_chunk_counts=has_counts,
        num_rounds=num_rounds,
        num_accepted_tokens=num_accepted,
        num_proposed_tokens=spec.num_proposed_tokens if spec else None,
        accept_histogram=list(spec.accept_histogram) if spec and spec.accept_histogram else None,
        tau=tau,
        text=attempt.api.text,
        reasoning_text=attempt.api.reasoning_text,
        output_ids=attempt.api.output_ids,
    )
    return _judge(record, generation, drafting)


def _judge(record: RequestRecord, generation: Generation, drafting: Drafting) -> RequestRecord:
    """Give the record its status: ok only if nothing at all is wrong."""
    failure = record.error or _missing(record, generation.finish_message)
    if failure is not None:
        return record.model_copy(update={"status": "failed", "error": failure})
    violations = [*generation.violations, *definitions.check_request(record, drafting)]
    status: Status = "ok"
    error = None
    if violations:
        status, error = "invalid", "; ".join(definitions.CHECKS[name] for name in violations)
    elif record.ignore_eos and record.num_output_tokens != record.max_tokens:
        status = "short"
        error = f"expected {record.max_tokens} tokens, got {record.num_output_tokens}"
    return record.model_copy(update={"status": status, "error": error, "violations": violations})


def _missing(record: RequestRecord, finish_message: str | None) -> str | None:
    """What a finished stream lacks to be a measurement, or None."""
    reason = record.finish_reason
    if reason is not None and reason.lower().startswith(ABORTED):
        return f"the server ended the request ({reason}): {finish_message or 'it gave no message'}"
    if not record.chunks and not record.num_output_tokens:
        return "the stream ended without a generated token"
    if reason is None:
        return "the stream ended without a finish reason, so the answer may be cut"
    if record.num_output_tokens is None:
        return "the stream ended without usage, so its tokens are not counted"
    if record.num_output_tokens < 1 or not record.chunks:
        return "the usage and the stream's events disagree on whether there was a token"
    return None
