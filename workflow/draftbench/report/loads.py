"""What several requests at once cost those who wait, and how far the numbers reach."""

from draftbench.report.prose import joined, label
from draftbench.report.summary import LoadPoint, Setting, Summary
from draftbench.report.tex import number, significant


def steady_ratio(summary: Summary, row: LoadPoint) -> float | None:
    """Steady speed over that of AR; None where the speedup itself has no number, or not in these sessions."""
    base = _baseline_of(summary, row)
    compared = next(
        (
            found.evidence
            for found in summary.comparisons
            if (found.model, found.tp, found.method, found.workload)
            == (row.model, row.tp, row.method, row.workload)
        ),
        None,
    )
    if base is None or compared is None or not row.num_sessions == base.num_sessions == compared.num_sessions:
        return None
    speeds = row.steady_tok_per_s, base.steady_tok_per_s
    return speeds[0] / speeds[1] if speeds[0] is not None and speeds[1] else None


def waits_sentence(summary: Summary, setting: Setting, method: str) -> str:
    """Steady ratio and longest waits at the most requests in flight.

    Empty without those of both methods, or over other numbers of sessions: of more requests the longest wait
    is longer.
    """
    rows = [row for row in summary.loads if (row.model, row.tp, row.method) == (*setting, method)]
    row = max(rows, key=lambda row: row.concurrency, default=None)
    base = _baseline_of(summary, row) if row else None
    if row is None or base is None or row.num_sessions != base.num_sessions:
        return ""
    if row.ttft_max_s is None or base.ttft_max_s is None:
        return ""
    name = label(summary, method)
    steady = steady_ratio(summary, row)
    busy = f"it is {number(steady)} while all slots are decoding, and " if steady is not None else ""
    said = (
        f"At {row.concurrency} {busy}the longest time to a first token is {_ms(row.ttft_max_s)} with {name} "
        f"and {_ms(base.ttft_max_s)} with AR"
    )
    if row.chunk_gap_p99_s is None or base.chunk_gap_p99_s is None:
        return f"{said}."
    gaps = f"{_ms(row.chunk_gap_p99_s)} and {_ms(base.chunk_gap_p99_s)}"
    return f"{said}; one in a hundred of the gaps between chunks is longer than {gaps}."


def reach_sentence(summary: Summary) -> str:
    """Which loads were measured, and that they say nothing of more."""
    levels = sorted({row.concurrency for row in summary.loads if row.num_sessions})
    if not levels:
        return ""
    return (
        f"Measured: {joined([str(level) for level in levels])} in flight, the first of them sent at one "
        "moment. What is left of a gain at more, these numbers do not say."
    )


def _baseline_of(summary: Summary, row: LoadPoint) -> LoadPoint | None:
    place = (row.model, row.tp, summary.baseline, row.workload)
    return next(
        (one for one in summary.loads if (one.model, one.tp, one.method, one.workload) == place), None
    )


def _ms(seconds: float) -> str:
    return f"{significant(1000 * seconds)}\u00a0ms"
