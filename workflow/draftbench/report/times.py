"""Where a campaign's wall time went, from the times in its results alone."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from draftbench.records import CellResult
from draftbench.report.summary import TimeSpent


def times_spent(results: Iterable[CellResult]) -> list[TimeSpent]:
    """One row for each boot of a machine, the earliest first."""
    by_boot: defaultdict[str, list[CellResult]] = defaultdict(list)
    for result in results:
        by_boot[result.identity.boot_id].append(result)
    rows = [_of_boot(members) for members in by_boot.values()]
    return sorted(rows, key=lambda row: row.first_started_at)


def _of_boot(results: list[CellResult]) -> TimeSpent:
    by_start: defaultdict[tuple[int, int], list[CellResult]] = defaultdict(list)
    for result in results:
        by_start[result.identity.pid, result.identity.pid_start_ticks].append(result)
    first_started_at = min(result.identity.started_at for result in results)
    return TimeSpent(
        first_started_at=first_started_at,
        num_starts=len(by_start),
        num_cells=len(results),
        wall_s=_seconds(first_started_at, max(result.ended_at for result in results)),
        start_s=sum(_start_s(members) for members in by_start.values()),
        warmup_s=sum(result.window_s[0] - result.start_s for result in results),
        measured_s=sum(result.window_s[1] - result.window_s[0] for result in results),
        audit_s=_audit_s(results),
    )


def _audit_s(results: list[CellResult]) -> float | None:
    durations = [result.audit.duration_s for result in results if result.audit]
    known = [duration for duration in durations if duration is not None]
    return sum(known) if len(known) == len(durations) else None


def _start_s(results: list[CellResult]) -> float:
    """From the start of a service to that of its first cell."""
    return _seconds(results[0].identity.started_at, min(result.started_at for result in results))


def _seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
