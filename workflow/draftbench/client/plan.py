"""What one request asks, before it is sent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

ApiName = Literal["generate", "chat", "completions"]
Message = dict[str, str]
RECORDED = ("request_id", "prompt_id", "prompt_type", "repeat", "turn", "api", "max_tokens", "ignore_eos")


@dataclass(frozen=True)
class RequestPlan:
    """One request.

    Attributes:
        prompt: the model's input text; used by `generate` and `completions`.
        messages: the conversation; used by `chat`.
        max_tokens: tokens to generate at most; exactly so many with `ignore_eos`.
    """

    request_id: str
    api: ApiName
    model: str
    max_tokens: int
    prompt: str = ""
    messages: Sequence[Message] = ()
    ignore_eos: bool = True
    prompt_id: str = "prompt"
    prompt_type: str = "none"
    repeat: int = 0
    turn: int = 0

    def record_fields(self) -> dict[str, Any]:
        """Its part of a `RequestRecord`."""
        return {name: getattr(self, name) for name in RECORDED}
