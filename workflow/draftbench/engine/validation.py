"""Which requests an engine takes."""

from dataclasses import dataclass

from draftbench.engine.request import Request
from draftbench.errors import ConfigError


@dataclass(frozen=True)
class EngineLimits:
    """What bounds a request.

    Attributes:
        context_length: prompt and output tokens of one request.
        budget: DDTree nodes; 0 without trees.
        eos_token_ids: the model's own ends of text.
    """

    vocab_size: int
    context_length: int
    max_running_requests: int
    budget: int
    eos_token_ids: frozenset[int]


def require_valid(request: Request, limits: EngineLimits) -> None:
    """Check a request before it is queued.

    Raises:
        ConfigError: the first value out of range, in a sentence fit for the client.
    """
    sampling = request.sampling
    _require_prompt(request, limits)
    for name, value, expected, is_valid in (
        ("temperature", sampling.temperature, "at least 0", 0 <= sampling.temperature < float("inf")),
        ("top_p", sampling.top_p, "above 0 and at most 1", 0 < sampling.top_p <= 1),
        ("top_k", sampling.top_k, "-1 or at least 1", sampling.top_k == -1 or sampling.top_k >= 1),
        ("max_new_tokens", sampling.max_new_tokens, "at least 1", sampling.max_new_tokens >= 1),
        (
            "budget",
            request.budget,
            f"from 1 to the engine's {limits.budget}",
            request.budget is None or 1 <= request.budget <= limits.budget,
        ),
    ):
        if not is_valid:
            raise ConfigError(f"expected {name} {expected}, got {value}; send another value")


def _require_prompt(request: Request, limits: EngineLimits) -> None:
    num_prompt, num_new = len(request.prompt_ids), request.sampling.max_new_tokens
    if num_prompt == 0:
        raise ConfigError("expected a prompt of at least one token, got none; send a prompt")
    if num_prompt + num_new > limits.context_length:
        raise ConfigError(
            f"expected prompt and max_new_tokens within the context of {limits.context_length} tokens, got "
            f"{num_prompt} + {num_new}; send a shorter prompt or a smaller max_new_tokens"
        )
    if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < limits.vocab_size:
        raise ConfigError(
            f"expected token ids from 0 to {limits.vocab_size - 1}, got one outside in the prompt; "
            "tokenise with the target's own tokenizer"
        )
