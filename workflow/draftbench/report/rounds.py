"""What a round costs beside a step of the baseline, workload by workload, and what it brings."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftbench.records import RequestRecord
from draftbench.report.summary import MethodInfo, RoundTime, Setting, Summary
from draftbench.stats.exactness import num_tokens_before_repetition

DEFINITIONS = {
    "round_s": (
        "Round time: from the first to the last chunk with tokens, divided by the rounds, pooled over "
        "requests as a ratio of sums; undefined where the first chunk held more than the prefill's token."
    ),
    "step_s": (
        "Step time: the same of autoregressive decoding, a step for each token after the first chunk."
    ),
    "tau_before_repetition": (
        "Tau before repetition: emitted tokens per round up to where the first repeated 8-gram of the output "
        "begins, pooled as a ratio of sums; a round across that place counts in part. Undefined where rounds "
        "came otherwise than a chunk each after the prefill's token."
    ),
}
"""Not beside the client's own: how results are measured does not depend on them."""


def pooled_round_s(records: Sequence[RequestRecord]) -> float | None:
    """Time of one round while decoding, over several requests; None where it cannot be told."""
    if not all(record.num_rounds and _has_lone_first_token(record) for record in records):
        return None
    num_rounds = sum(record.num_rounds or 0 for record in records)
    return _decoding_s(records) / num_rounds if num_rounds else None


def pooled_step_s(records: Sequence[RequestRecord]) -> float | None:
    """Time of one step of autoregressive decoding, over several requests; None where it cannot be told."""
    if not all(record.has_chunk_counts and record.chunks for record in records):
        return None
    num_steps = sum(chunk.num_tokens for record in records for chunk in record.chunks[1:])
    return _decoding_s(records) / num_steps if num_steps else None


def pooled_tau_before_repetition(records: Sequence[RequestRecord]) -> float | None:
    """Emitted tokens per round up to each output's first repeated 8-gram; None where it cannot be told."""
    if not all(_is_chunk_a_round(record) for record in records):
        return None
    kept = [num_tokens_before_repetition(record.output_ids or []) - 1 for record in records]
    rounds = [_rounds_to(record, tokens) for record, tokens in zip(records, kept, strict=True)]
    return sum(kept) / sum(rounds) if sum(rounds) else None


def _is_chunk_a_round(record: RequestRecord) -> bool:
    return (
        bool(record.output_ids)
        and _has_lone_first_token(record)
        and record.num_rounds == len(record.chunks) - 1
    )


def _rounds_to(record: RequestRecord, num_tokens: int) -> float:
    """Rounds that emitted so many tokens after the first chunk's."""
    rounds, left = 0.0, num_tokens
    for chunk in record.chunks[1:]:
        if left <= 0:
            break
        rounds += min(1.0, left / chunk.num_tokens)
        left -= chunk.num_tokens
    return rounds


def _has_lone_first_token(record: RequestRecord) -> bool:
    return record.has_chunk_counts and bool(record.chunks) and record.chunks[0].num_tokens == 1


def _decoding_s(records: Sequence[RequestRecord]) -> float:
    return sum(record.chunks[-1].time_s - record.chunks[0].time_s for record in records)


@dataclass(frozen=True)
class RoundRow:
    """Durations at one workload.

    Attributes:
        workload: its name.
        by_method: method -> its round beside a step of AR.
    """

    workload: str
    by_method: dict[str, RoundTime]

    @property
    def step_s(self) -> float:
        """AR's step; where methods have other sessions in common with it, the mean over methods."""
        steps = [row.step_s for row in self.by_method.values()]
        return sum(steps) / len(steps)


def round_rows(summary: Summary, setting: Setting, methods: Sequence[MethodInfo]) -> list[RoundRow]:
    """A row for each workload at which rounds of any of the methods are timed, in the campaign's order."""
    names = {method.name for method in methods}
    found: dict[str, dict[str, RoundTime]] = {workload.name: {} for workload in summary.workloads}
    for row in summary.round_times:
        if (row.model, row.tp) == setting and row.method in names:
            found[row.workload][row.method] = row
    return [RoundRow(name, by_method) for name, by_method in found.items() if by_method]


def timed_methods(summary: Summary, setting: Setting) -> list[MethodInfo]:
    """The methods whose rounds are timed at a setting, in the campaign's order."""
    timed = {row.method for row in summary.round_times if (row.model, row.tp) == setting}
    return [method for method in summary.methods if method.name in timed]
