"""What one streamed event says, whichever API sent it, and the errors that hide in a 200 stream."""

import json
from dataclasses import dataclass, field
from typing import Any

from draftbench.client.sse import SseEvent
from draftbench.errors import MeasurementError


class StreamFault(MeasurementError):
    """The stream carries an error object or something that is no event of the API."""


@dataclass(frozen=True)
class Usage:
    """The server's own counts, where it gives them."""

    num_prompt_tokens: int | None
    num_output_tokens: int
    num_cached_tokens: int | None = None


@dataclass(frozen=True)
class SpecCounts:
    """Speculative decoding, counted by the server over the whole request."""

    num_rounds: int
    num_accepted_tokens: int | None
    num_proposed_tokens: int | None
    accept_histogram: tuple[int, ...] | None


@dataclass(frozen=True)
class Update:
    """What one event adds.

    Attributes:
        has_text: it shows generated text of any kind: content, reasoning, tool call.
        can_carry: it may stand for generated tokens; False for role, usage and extension events.
        num_so_far: tokens generated up to this event, where the server says so.
        num_new: tokens of this event alone, where only token ids tell.
        finish_reason: set on the event that ends the generation.
        finish_message: the server's reason for an abort.
    """

    has_text: bool = False
    can_carry: bool = True
    num_so_far: int | None = None
    num_new: int | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    usage: Usage | None = None
    num_cached_tokens: int | None = None
    spec: SpecCounts | None = None
    violations: tuple[str, ...] = field(default=())


def parse_payload(event: SseEvent) -> dict[str, Any]:
    """The JSON object of an event.

    Raises:
        StreamFault: the event reports an error, in any of the shapes that SGLang, OpenAI and their
            imitators use, or holds no JSON object.
    """
    try:
        payload = json.loads(event.data)
    except (ValueError, RecursionError):
        payload = None
    message = error_message(payload)
    if event.name == "error":
        raise StreamFault(message or f"error event: {event.data[:500]}")
    if message is not None:
        raise StreamFault(message)
    if not isinstance(payload, dict):
        raise StreamFault(f"expected a JSON object in each event, got {event.data[:200]!r}")
    return payload


def error_message(payload: Any) -> str | None:
    """The server's message if `payload` is an error object, else None."""
    if not isinstance(payload, dict):
        return None
    error = payload.get("error")
    if error:
        return _message_of(error)
    if payload.get("object") == "error" or payload.get("type") == "error":
        return _message_of(payload)
    if "detail" in payload and "choices" not in payload and "meta_info" not in payload:
        return _message_of(payload["detail"])
    return None


def _message_of(error: Any) -> str:
    if isinstance(error, dict):
        for key in ("message", "detail", "error"):
            if isinstance(error.get(key), str) and error[key]:
                return str(error[key])
    return error if isinstance(error, str) else json.dumps(error)


def count(value: Any) -> int | None:
    """`value` if it is a count, else None; JSON's true is no count."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def parse_spec(details: Any) -> SpecCounts | None:
    """Speculative counts under SGLang's names, as `meta_info` and `spec_tokens_details` hold them."""
    if not isinstance(details, dict):
        return None
    num_rounds = count(details.get("spec_verify_ct"))
    if num_rounds is None:
        return None
    histogram = details.get("spec_correct_drafts_histogram")
    counts = [count(value) for value in histogram] if isinstance(histogram, list) else []
    whole = tuple(value for value in counts if value is not None)
    return SpecCounts(
        num_rounds=num_rounds,
        num_accepted_tokens=count(details.get("spec_num_correct_drafts")),
        num_proposed_tokens=count(details.get("spec_num_proposed_drafts")),
        accept_histogram=whole if whole and len(whole) == len(counts) else None,
    )
