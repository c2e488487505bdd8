"""Log probabilities of SGLang's `/generate`: the target's best candidates before each output token.

A difference of two log probabilities at one position is the difference of their logits: both have the same
normaliser.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftbench.client import server
from draftbench.errors import MeasurementError

NUM_CANDIDATES = 8
PIECE_TOKENS = 512
"""Positions of one pass at most: a server holds their float32 logits over the whole vocabulary at once."""

Row = Mapping[int, float]
"""Token id -> log probability of the best candidates at one position, best first."""


@dataclass(frozen=True)
class Continuation:
    """What a server decodes after an input.

    Attributes:
        prompt_ids: the input as the server tokenised it.
        output_ids: greedy tokens.
        rows: the candidates before each of them.
    """

    prompt_ids: list[int]
    output_ids: list[int]
    rows: list[Row]


def decode(base_url: str, text: str, num_tokens: int, limit_s: float) -> Continuation:
    """Decode `num_tokens` tokens after `text`.

    Raises:
        ServerError: the server did not answer in time.
        MeasurementError: its answer lacks something.
    """
    answer = server.generate(
        base_url, {"text": text, "return_prompt_token_ids": True} | _options(num_tokens), limit_s
    )
    meta = _meta(answer)
    output_ids = _token_ids(_entries(meta, "output_token_logprobs", num_tokens))
    rows = [_row(entry) for entry in _entries(meta, "output_top_logprobs", num_tokens)]
    prompt_ids = answer.get("prompt_token_ids")
    if not isinstance(prompt_ids, list) or not prompt_ids or not all(type(i) is int for i in prompt_ids):
        raise MeasurementError("expected prompt_token_ids in the answer, got none; use SGLang 0.5.17")
    return Continuation(prompt_ids, output_ids, rows)


def rows_along(
    base_url: str, prompt_ids: Sequence[int], output_ids: Sequence[int], limit_s: float
) -> list[Row]:
    """The candidates before each token of a known output, from prefill passes over it.

    Args:
        base_url: of the server.
        prompt_ids: at least one token.
        output_ids: at least one token.
        limit_s: of each pass.

    Raises:
        ServerError: the server did not answer in time.
        MeasurementError: its answer lacks something, or is of other tokens.
    """
    rows: list[Row] = []
    for start in range(0, len(output_ids), PIECE_TOKENS):
        piece = list(output_ids[start : start + PIECE_TOKENS])
        # SGLang gives one entry for each input token from logprob_start_len on, and none for the first one
        # of them, so the token before the piece is asked for too.
        place = {"logprob_start_len": len(prompt_ids) + start - 1}
        input_ids = [*prompt_ids, *output_ids[:start], *piece]
        meta = _meta(server.generate(base_url, {"input_ids": input_ids} | place | _options(1), limit_s))
        found = _token_ids(_entries(meta, "input_token_logprobs", len(piece)))
        if found != piece:
            raise MeasurementError("expected log probabilities of the output's tokens, got other tokens")
        rows += [_row(entry) for entry in _entries(meta, "input_top_logprobs", len(piece))]
    return rows


def _options(num_tokens: int) -> dict[str, Any]:
    return {
        "sampling_params": {"max_new_tokens": num_tokens, "temperature": 0.0, "ignore_eos": True},
        "stream": False,
        "return_logprob": True,
        "top_logprobs_num": NUM_CANDIDATES,
    }


def _meta(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = answer.get("meta_info")
    if not isinstance(meta, dict):
        raise MeasurementError(f"expected meta_info in the answer, got {sorted(answer)}")
    return meta


def _entries(meta: Mapping[str, Any], name: str, num: int) -> list[Any]:
    """The last `num` entries of a list, which belong to the last tokens."""
    entries = meta.get(name)
    if not isinstance(entries, list) or len(entries) < num:
        got = len(entries) if isinstance(entries, list) else "none"
        raise MeasurementError(f"expected {num} entries of {name}, got {got}")
    return entries[-num:]


def _token_ids(entries: Sequence[Any]) -> list[int]:
    return [token_id for _, token_id in map(_pair, entries)]


def _row(entry: Any) -> Row:
    """Candidates of one position, sorted by their log probability.

    Raises:
        MeasurementError: there are fewer than two of them.
    """
    pairs = [_pair(value) for value in entry] if isinstance(entry, list) else []
    row = {token_id: logprob for logprob, token_id in sorted(pairs, key=lambda pair: -pair[0])}
    if len(row) < 2:
        raise MeasurementError(f"expected {NUM_CANDIDATES} candidates of each position, got {entry!r}")
    return row


def _pair(entry: Any) -> tuple[float, int]:
    """Log probability and token id of `[log probability, token id, text]`."""
    if isinstance(entry, list) and len(entry) >= 2:
        logprob, token_id = entry[:2]
        if isinstance(logprob, int | float) and math.isfinite(logprob) and type(token_id) is int:
            return float(logprob), token_id
    raise MeasurementError(f"expected a log probability and a token id, got {entry!r}")
