"""SGLang's `/generate`: streams that repeat everything so far, or only what is new."""

from typing import Any

from draftbench.client.events import Update, Usage, count, parse_spec
from draftbench.client.plan import RequestPlan


class GenerateApi:
    """Body and events of one `/generate` request.

    A server started with incremental streaming sends only new text and ids; the default is cumulative. Which
    one it is follows from the second event with tokens: at least as many ids as `completion_tokens` means
    cumulative, fewer means incremental. Without that count, ids (or texts, if there are none) that begin
    with all of the previous event's mean cumulative; a wrong guess shows as a count unlike the usage.
    """

    path = "/generate"
    reasoning_text = ""

    def __init__(self) -> None:
        self.text = ""
        self.output_ids: list[int] | None = None
        self._num_so_far = 0
        self._is_cumulative: bool | None = None

    def body(self, plan: RequestPlan) -> dict[str, Any]:
        """The JSON to send. Sampling is greedy and explicit: a server's defaults may come from the model."""
        return {
            "text": plan.prompt,
            "sampling_params": {
                "max_new_tokens": plan.max_tokens,
                "temperature": 0.0,
                "ignore_eos": plan.ignore_eos,
            },
            "stream": True,
        }

    def read(self, payload: dict[str, Any]) -> Update:
        """Take one event."""
        meta = payload.get("meta_info")
        meta = meta if isinstance(meta, dict) else {}
        num_so_far = count(meta.get("completion_tokens"))
        raw_ids, raw_text = payload.get("output_ids"), payload.get("text")
        ids = [value for value in raw_ids if isinstance(value, int)] if isinstance(raw_ids, list) else None
        text = raw_text if isinstance(raw_text, str) else ""
        self._settle_mode(num_so_far, ids, text)
        num_new_ids = self._take_ids(ids)
        has_text = self._take_text(text)
        if num_so_far is not None:
            self._num_so_far = num_so_far
        reason, message = _finish(meta.get("finish_reason"))
        usage = None
        if num_so_far is not None:
            usage = Usage(count(meta.get("prompt_tokens")), num_so_far, count(meta.get("cached_tokens")))
        return Update(
            has_text=has_text,
            num_so_far=num_so_far,
            num_new=num_new_ids if num_so_far is None else None,
            finish_reason=reason,
            finish_message=message,
            usage=usage,
            spec=parse_spec(meta),
        )

    def _settle_mode(self, num_so_far: int | None, ids: list[int] | None, text: str) -> None:
        """Find out, once and as soon as it can be known, whether events repeat what came before."""
        if self._is_cumulative is not None or not (self.output_ids or self.text):
            return
        if ids and num_so_far is not None and self._num_so_far > 0:
            self._is_cumulative = len(ids) >= num_so_far
        elif ids and self.output_ids:
            self._is_cumulative = ids[: len(self.output_ids)] == self.output_ids
        elif text and self.text:
            self._is_cumulative = text.startswith(self.text)

    def _take_ids(self, ids: list[int] | None) -> int | None:
        if ids is None:
            return None
        before = self.output_ids or []
        self.output_ids = before + ids if self._is_cumulative is False else (ids or before)
        return len(self.output_ids) - len(before)

    def _take_text(self, text: str) -> bool:
        before = self.text
        self.text = before + text if self._is_cumulative is False else (text or before)
        return self.text != before


def _finish(reason: Any) -> tuple[str | None, str | None]:
    """Type and message of a finish reason, which old servers give as a bare string."""
    if isinstance(reason, dict):
        message = reason.get("message")
        return str(reason.get("type")), message if isinstance(message, str) else None
    return (reason, None) if isinstance(reason, str) else (None, None)
