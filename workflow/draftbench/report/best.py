"""The fastest method of each setting, and what is left of it under load."""

from collections.abc import Iterable
from dataclasses import dataclass

from draftbench.report.plots.base import comparisons
from draftbench.report.prose import overall
from draftbench.report.summary import Comparison, Setting, Summary
from draftbench.report.tex import DASH, number


@dataclass(frozen=True)
class Best:
    """The fastest method of a setting.

    Attributes:
        single: its comparison over all single requests.
        loaded: its comparison at the highest concurrency, where there is one.
        concurrency: requests in flight there.
    """

    single: Comparison
    loaded: Comparison | None
    concurrency: int | None


def best_rows(summary: Summary, settings: Iterable[Setting]) -> list[Best]:
    """The fastest method of every setting that compares any."""
    rows = [(setting, overall(summary, setting)) for setting in settings]
    return [_best(summary, setting, found[0]) for setting, found in rows if found]


def _best(summary: Summary, setting: Setting, single: Comparison) -> Best:
    levels = {w.name: w.concurrency for w in summary.workloads if w.concurrency is not None}
    for workload in sorted(levels, key=lambda name: -levels[name]):
        row = comparisons(summary, setting, workload).get(single.method)
        if row is not None:
            return Best(single, row, levels[workload])
    return Best(single, None, None)


def loaded(best: Best) -> str:
    """`1.11 at 8 in flight`, or the word in its place."""
    if best.loaded is None:
        return DASH
    value = best.loaded.evidence.ratio if best.loaded.evidence else None
    said = number(value) if value is not None else str(best.loaded.mark)
    return f"{said} at {best.concurrency} in flight"
