"""What goes into the engine's scheduler and what comes out: the seam between model and HTTP."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

FinishType = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are chosen.

    Attributes:
        max_new_tokens: tokens to generate at most, >= 1.
        temperature: 0 is greedy; else logits are divided by it.
        top_p: keep the smallest set of tokens whose probability reaches it, in (0, 1].
        top_k: keep the most probable tokens, -1 keeps all.
        seed: of the request's own random stream; None takes the engine's.
        ignore_eos: generate `max_new_tokens` tokens whatever they are.
        stop_token_ids: end after any of these, beside the model's own end-of-text tokens.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Request:
    """One prompt to be continued.

    Attributes:
        rid: the request's name, unique while it runs.
        prompt_ids: the prompt's token ids, at least one.
        budget: DDTree nodes of this request, None takes the engine's (never above it).
    """

    rid: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    budget: int | None = None


@dataclass(frozen=True)
class RequestStats:
    """Counts of one request up to now.

    Attributes:
        num_output_tokens: tokens emitted, the one from the prefill included.
        num_cached_tokens: prompt tokens whose keys and values came from an earlier request.
        num_rounds: target verifications; 0 under autoregressive decoding.
        num_accepted_tokens: draft tokens kept; a round emits its accepted tokens plus one.
        num_proposed_tokens: draft tokens (tree nodes without the root) that were verified.
        accept_histogram: `accept_histogram[k]` rounds kept k draft tokens.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_rounds: int
    num_accepted_tokens: int
    num_proposed_tokens: int
    accept_histogram: tuple[int, ...]


@dataclass(frozen=True)
class Output:
    """What one engine step gave one request.

    Attributes:
        token_ids: new tokens of this step, in order; empty only when the request ended without any.
        finish_type: None while the request runs.
        matched_stop_id: the token that ended it, when `finish_type` is `stop`.
        message: why, when `finish_type` is `abort`.
    """

    rid: str
    token_ids: tuple[int, ...]
    stats: RequestStats
    finish_type: FinishType | None = None
    matched_stop_id: int | None = None
    message: str | None = None


Sink = Callable[[Output], None]


class EngineProtocol(Protocol):
    """The scheduler as the HTTP layer sees it. All methods may be called from any thread."""

    def submit(self, request: Request, sink: Sink) -> None:
        """Queue a request; `sink` is called from the engine's thread, once per step that emits for it.

        Raises:
            ConfigError: the prompt is empty, or prompt and `max_new_tokens` exceed the context, or a
                value is out of range; the sentence is fit to be sent to the client.
        """

    def abort(self, rid: str) -> bool:
        """End a queued or running request; its sink gets a last Output with `abort`. False if unknown."""

    def flush_cache(self) -> bool:
        """Drop every kept prefix. False, and nothing dropped, while requests run or wait."""

    def start(self) -> None:
        """Start the engine's thread."""

    def shutdown(self, timeout_s: float) -> None:
        """Abort what runs and end the thread; return within `timeout_s`."""

    def describe(self) -> dict[str, object]:
        """Resolved settings and counters for `/server_info`.

        Dtype, device, threads, context length, block size, budget, max running requests, hashes of target
        and drafter, lifetime accept length.
        """

    @property
    def is_alive(self) -> bool:
        """The engine's thread runs and has not failed."""
