"""Totals of a cell, built on the definitions; undefined is carried on as null."""

import itertools
from collections.abc import Iterable, Sequence
from typing import TypeVar

from draftbench import definitions
from draftbench.records import CellResult, RequestRecord
from draftbench.report.summary import CellRow

Value = TypeVar("Value")
MIN_POWER_SAMPLES = 5
"""A mean of fewer is of the moments at which they happened to be taken."""


def present(values: Iterable[Value | None]) -> list[Value]:
    """The values that are defined."""
    return [value for value in values if value is not None]


def total_or_none(values: Iterable[int | None]) -> int | None:
    """Sum of all values; None of nothing, or where one is undefined: a part is not the total."""
    listed = list(values)
    return sum(present(listed)) if listed and None not in listed else None


def output_tokens(result: CellResult) -> int:
    """Generated tokens of a cell by the server's count."""
    return sum(request.num_output_tokens or 0 for request in result.requests)


def has_token_times(result: CellResult) -> bool:
    """Whether ids and counts by chunk tell when each token of each request arrived."""
    return all(
        request.output_ids and request.chunks and request.has_chunk_counts for request in result.requests
    )


def time_to_tokens_s(request: RequestRecord, num_tokens: int) -> float:
    """From the send until so many tokens had arrived, those of the last chunk included; all at most."""
    arrived = itertools.accumulate(chunk.num_tokens for chunk in request.chunks)
    places = (place for place, total in enumerate(arrived) if total >= num_tokens)
    return request.chunks[next(places, -1)].time_s - request.send_s


def busy_s(result: CellResult, *, is_concurrent: bool) -> float:
    """The time that a cell's tokens took.

    One request after the other: the sum of their end-to-end times, so that the client's pauses between
    them do not count. Concurrent: from the first send to the last token.
    """
    if not is_concurrent:
        return sum(request.e2e_s or 0.0 for request in result.requests)
    speed = definitions.total_tok_per_s(result.requests)
    return output_tokens(result) / speed if speed else 0.0


def pooled_tok_per_s(rows: Sequence[CellRow]) -> float | None:
    """Tokens a second of several cells together: a ratio of totals; None without a cell that has them."""
    whole = [(row.output_tokens, row.tok_per_s) for row in rows if row.output_tokens and row.tok_per_s]
    seconds = sum(tokens / speed for tokens, speed in whole)
    return sum(tokens for tokens, _ in whole) / seconds if whole else None


def cell_tok_per_s(result: CellResult, *, is_concurrent: bool) -> float | None:
    """Tokens a second of a cell: a ratio of totals."""
    seconds = busy_s(result, is_concurrent=is_concurrent)
    return output_tokens(result) / seconds if seconds > 0 else None


def joules_per_token(result: CellResult) -> float | None:
    """Energy of the server's GPUs from the first send to the last end, by output token.

    None where their power was not sampled, or too few times for the mean to be one of the cell. A sample
    that lacks a GPU's power counts as none: the others' sum is not the server's.
    """
    telemetry, indices = result.telemetry, result.identity.environment.get("gpu_indices")
    if telemetry is None or not indices:
        return None
    names = [f"gpu{index}_power_w" for index in indices]
    if not set(names) <= set(telemetry.columns):
        return None
    places = [telemetry.columns.index(name) for name in names]
    begin_s, end_s = result.window_s
    time_place = telemetry.columns.index("time_s")
    samples = [row for row in telemetry.samples if begin_s <= (row[time_place] or 0.0) <= end_s]
    powers = [present(row[place] for place in places) for row in samples]
    watts = [sum(power) for power in powers if len(power) == len(places)]
    tokens = output_tokens(result)
    if len(watts) < MIN_POWER_SAMPLES or not tokens:
        return None
    return sum(watts) / len(watts) * (end_s - begin_s) / tokens
