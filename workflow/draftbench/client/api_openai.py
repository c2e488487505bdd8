"""OpenAI's streamed chat completions and completions, with the additions that SGLang answers."""

from dataclasses import replace
from typing import Any

from draftbench.client.events import Update, Usage, count, parse_spec
from draftbench.client.plan import RequestPlan

# Requests for counts; a server that does not know one ignores it.
COUNTS_WANTED: dict[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "return_spec_tokens_details": True,
    "return_cached_tokens_details": True,
}
REASONING_KEYS = ("reasoning_content", "reasoning")
IDS_KEYS = ("token_ids", "output_ids")


class _OpenAIApi:
    """Events common to both APIs: choices with deltas, usage, SGLang's `sglext`."""

    def __init__(self) -> None:
        self.output_ids: list[int] | None = None
        self._answer: list[str] = []
        self._reasoning: list[str] = []

    @property
    def text(self) -> str:
        """The answer; reasoning and tool calls are not part of it."""
        return "".join(self._answer)

    @property
    def reasoning_text(self) -> str:
        """The reasoning, under whichever name it came."""
        return "".join(self._reasoning)

    def read(self, payload: dict[str, Any]) -> Update:
        """Take one event."""
        choices = payload.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        extension = payload.get("sglext")
        extension = extension if isinstance(extension, dict) else {}
        ids = extension.get("output_ids")
        if isinstance(ids, list) and ids and isinstance(ids[0], list):
            self.output_ids = ids[0]
        spec = extension.get("spec_tokens_details")
        update = Update(
            can_carry=False,
            usage=_usage(payload.get("usage")),
            num_cached_tokens=_sum_cached(extension.get("cached_tokens_details")),
            spec=parse_spec(spec[0] if isinstance(spec, list) and spec else spec),
        )
        return self._read_choice(choice, update) if isinstance(choice, dict) else update

    def _read_choice(self, choice: dict[str, Any], update: Update) -> Update:
        delta = choice.get("delta")
        part = delta if isinstance(delta, dict) else choice
        answer = _plain(part.get("content")) + _plain(part.get("text"))
        reasoning = next(filter(None, (_plain(part.get(key)) for key in REASONING_KEYS)), "")
        self._answer.append(answer)
        self._reasoning.append(reasoning)
        has_text = bool(answer or reasoning or _plain(part.get("refusal")) or _has_call(part))
        num_new = self._take_ids(choice) or (self._take_ids(delta) if isinstance(delta, dict) else 0)
        reason = choice.get("finish_reason")
        is_role_only = "role" in part and not (has_text or num_new or reason)
        return replace(
            update,
            has_text=has_text,
            can_carry=not is_role_only,
            num_so_far=update.usage.num_output_tokens if update.usage else None,
            num_new=num_new or None,
            finish_reason=reason if isinstance(reason, str) else None,
        )

    def _take_ids(self, part: dict[str, Any]) -> int:
        for key in IDS_KEYS:
            ids = part.get(key)
            if isinstance(ids, list) and ids:
                self.output_ids = (self.output_ids or []) + ids
                return len(ids)
        return 0


class ChatApi(_OpenAIApi):
    """Body and events of one `/v1/chat/completions` request."""

    path = "/v1/chat/completions"

    def body(self, plan: RequestPlan) -> dict[str, Any]:
        """The JSON to send; greedy, and explicit about it."""
        return {**_common(plan), "messages": list(plan.messages)}


class CompletionsApi(_OpenAIApi):
    """Body and events of one `/v1/completions` request."""

    path = "/v1/completions"

    def body(self, plan: RequestPlan) -> dict[str, Any]:
        """The JSON to send; greedy, and explicit about it."""
        return {**_common(plan), "prompt": plan.prompt}


def _common(plan: RequestPlan) -> dict[str, Any]:
    fields = {"model": plan.model, "max_tokens": plan.max_tokens, "temperature": 0.0}
    return {**fields, "ignore_eos": plan.ignore_eos, **COUNTS_WANTED}


def _plain(value: Any) -> str:
    """Text that is a string or a list of text parts."""
    if isinstance(value, list):
        return "".join(_plain(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


def _has_call(part: dict[str, Any]) -> bool:
    """Whether a delta carries a piece of a tool call."""
    calls = part.get("tool_calls") or []
    calls = (
        [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    )
    functions = [call for call in (*calls, part.get("function_call")) if isinstance(call, dict)]
    return any(function.get("name") or function.get("arguments") for function in functions)


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    num_output_tokens = count(usage.get("completion_tokens"))
    if num_output_tokens is None:
        return None
    details = usage.get("prompt_tokens_details")
    cached = count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return Usage(count(usage.get("prompt_tokens")), num_output_tokens, cached)


def _sum_cached(details: Any) -> int | None:
    """Cached prompt tokens over the tiers of SGLang's cache."""
    if not isinstance(details, dict):
        return None
    tiers = [count(details.get(tier)) for tier in ("device", "host", "storage")]
    return sum(tier or 0 for tier in tiers) if any(tier is not None for tier in tiers) else None
