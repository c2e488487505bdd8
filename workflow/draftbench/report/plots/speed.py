"""Speedups over the baseline: all single requests together, by workload, by scenario."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from draftbench.report.charts import Bar, grouped_bars, key, ranked_bars
from draftbench.report.look import Look, looks
from draftbench.report.notes import figure_note, signs
from draftbench.report.plots.base import Plot, comparisons, drafting_methods, only, settings
from draftbench.report.prose import setting_name, together
from draftbench.report.repetition import before_repetition, repeats_at_all
from draftbench.report.summary import Comparison, Kind, Setting, Summary


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
                f"{together(summary, list(rows.values()))}, best first. {figure_note(list(rows.values()))}"
                f"{_crossed_note(summary, setting)}",
                ranked_bars(
                    [_bar(summary, drawn[name], row) for name, row in rows.items()],
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
        methods = [method.name for method in drafting_methods(summary, setting, family.kind)]
        rows = {
            workload: {
                name: row for name, row in comparisons(summary, setting, workload).items() if name in methods
            }
            for workload in workloads
        }
        every = [row for by_method in rows.values() for row in by_method.values()]
        if any(row.evidence for row in every):
            yield Plot(
                f"{family.name}-{number}",
                family.section,
                f"Speedup over autoregressive decoding{setting_name(summary, setting)}, {family.words}. "
                f"{figure_note(every)}{_crossed_note(summary, setting) if family.kind == 'single' else ''}",
                key(only(drawn, methods), with_lines=False)
                + grouped_bars(_groups(summary, methods, rows), "speedup over AR", reference=1.0),
            )


def _groups(
    summary: Summary, methods: Sequence[str], rows: dict[str, dict[str, Comparison]]
) -> list[tuple[str, list[Bar]]]:
    drawn = looks(summary)
    return [
        (
            _marked(workload, by_method.values()),
            [_bar(summary, drawn[method], by_method.get(method)) for method in methods],
        )
        for workload, by_method in rows.items()
        if by_method
    ]


def _crossed_note(summary: Summary, setting: Setting) -> str:
    """What the lines across bars are, where there are any."""
    if not repeats_at_all(summary, setting):
        return ""
    return " Line across a bar: the speedup up to the first repeated 8-gram of either output."


def _before(summary: Summary, comparison: Comparison) -> float | None:
    """The ratio before repetition, where outputs repeat themselves."""
    setting = (comparison.model, comparison.tp)
    row = before_repetition(summary, setting, comparison.method, comparison.workload)
    has_line = row is not None and repeats_at_all(summary, setting)
    return row.evidence.ratio if has_line and row and row.evidence else None


def _marked(name: str, rows: Iterable[Comparison]) -> str:
    """A name with the signs of the numbers that stand for it."""
    return name + signs(row for row in rows if row.evidence)


def _bar(summary: Summary, look: Look, comparison: Comparison | None) -> Bar:
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
        crossed_at=_before(summary, comparison),
    )
