"""What all figures share."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftbench.report.look import Look
from draftbench.report.summary import Comparison, Kind, LoadPoint, MethodInfo, Setting, Summary


@dataclass(frozen=True)
class Plot:
    """A figure before it is written.

    Attributes:
        name: of its file, without the ending.
        section: where it belongs: `summary`, `speed`, `budget`, `agentic` or `load`.
        caption: plain text.
        body: LaTeX.
    """

    name: str
    section: str
    caption: str
    body: str


def settings(summary: Summary) -> list[Setting]:
    """(model, TP) pairs with a result or a recorded failure, in the campaign's order."""
    return list(dict.fromkeys((row.model, row.tp) for row in summary.cells if row.state != "not run"))


def methods_of(summary: Summary, setting: Setting, kind: Kind | None = None) -> list[MethodInfo]:
    """The methods with a result or a recorded failure at a setting, in the campaign's order.

    `kind`: in workloads of a kind; None: in any.
    """
    recorded = {
        row.method
        for row in summary.cells
        if (row.model, row.tp) == setting and row.state != "not run" and kind in (None, row.kind)
    }
    return [method for method in summary.methods if method.name in recorded]


def loads_of(summary: Summary, setting: Setting) -> list[LoadPoint]:
    """The concurrency workloads of a setting, by method; those of which nothing was run are left out."""
    names = {method.name for method in methods_of(summary, setting, "concurrency")}
    return [row for row in summary.loads if (row.model, row.tp) == setting and row.method in names]


def drafting_methods(summary: Summary, setting: Setting, kind: Kind) -> list[MethodInfo]:
    """All of them but the baseline."""
    return [method for method in methods_of(summary, setting, kind) if method.name != summary.baseline]


def comparisons(summary: Summary, setting: Setting, workload: str | None) -> dict[str, Comparison]:
    """Method -> its comparison at a setting; `workload` None: all single requests together."""
    return {
        row.method: row
        for row in summary.comparisons
        if (row.model, row.tp) == setting and row.workload == workload
    }


def only(drawn: dict[str, Look], methods: Sequence[str]) -> list[Look]:
    """The looks of some methods in the campaign's order."""
    return [look for name, look in drawn.items() if name in methods]
