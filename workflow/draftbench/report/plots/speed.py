"""Speedups over the baseline: all single requests together, by workload, by scenario."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from draftbench.report.charts import Bar, grouped_bars, key, ranked_bars
from draftbench.report.look import Look, looks
from draftbench.report.notes import figure_note, signs
from draftbench.report.plots.base import Plot, comparisons, drafting_methods, only, settings
from draftbench.report.prose import setting_name, together
from draftbench.report.summary import Comparison, Kind, Summary


def headline(summary: Summary) -> Iterator[Plot]:
    """Speedup of every method over all single requests, best first."""
    drawn = looks(summary)
    for number, setting in enumerate(settings(summary), 1):
        rows = comparisons(summary, setting, None)
        if any(row.evidence for row in rows.values()):
            yield Plot(
                f"headline-{number}",
                "summary" if number == 1 else "speed",
                f"Speedup over autoregressive decoding{setting_name(summary, setting)}, "
                f"{together(summary, list(rows.values()))}, best first. {figure_note(list(rows.values()))}",
                ranked_bars(
                    [_bar(drawn[name], row) for name, row in rows.items()],
                    "speedup over AR (higher is better)",
                    reference=1.0,
                ),
            )


@dataclass(frozen=True)
class _Family:
    kind: Kind
    name: str
    section: str
    words: str


def by_workload(summary: Summary) -> Iterator[Plot]:
    """Speedup of every method by single-request workload."""
    return _grouped(summary, _Family("single", "workloads", "speed", "by workload"))


def by_scenario(summary: Summary) -> Iterator[Plot]:
    """Speedup of every method by agentic scenario."""
    return _grouped(summary, _Family("agentic", "scenarios", "agentic", "over whole agentic sessions"))


def _grouped(summary: Summary, family: _Family) -> Iterator[Plot]:
    drawn = looks(summary)
    workloads = [workload.name for workload in summary.workloads if workload.kind == family.kind]
    for number, setting in enumerate(settings(summary), 1):
        methods = [method.name for method in drafting_methods(summary, setting)]
        rows = {workload: comparisons(summary, setting, workload) for workload in workloads}
        every = [row for by_method in rows.values() for row in by_method.values()]
        if any(row.evidence for row in every):
            yield Plot(
                f"{family.name}-{number}",
                family.section,
                f"Speedup over autoregressive decoding{setting_name(summary, setting)}, {family.words}. "
                f"{figure_note(every)}",
                key(only(drawn, methods), with_lines=False)
                + grouped_bars(_groups(drawn, methods, rows), "speedup over AR", reference=1.0),
            )


def _groups(
    drawn: dict[str, Look], methods: Sequence[str], rows: dict[str, dict[str, Comparison]]
) -> list[tuple[str, list[Bar]]]:
    return [
        (_marked(workload, by_method.values()), [_bar(drawn[m], by_method.get(m)) for m in methods])
        for workload, by_method in rows.items()
        if by_method
    ]


def _marked(name: str, rows: Iterable[Comparison]) -> str:
    """A name with the signs of the numbers that stand for it."""
    return name + signs(row for row in rows if row.evidence)


def _bar(look: Look, comparison: Comparison | None) -> Bar:
    if comparison is None or comparison.evidence is None:
        return Bar(look.label, None, look.colour, mark=(comparison and comparison.mark) or "not planned")
    evidence = comparison.evidence
    is_bounded = evidence.low is not None and evidence.high is not None
    return Bar(
        _marked(look.label, [comparison]),
        evidence.ratio,
        look.colour,
        interval=(evidence.low or 0.0, evidence.high or 0.0) if is_bounded else None,
        points=tuple(evidence.per_unit) if len(evidence.per_unit) > 1 else (),
    )
