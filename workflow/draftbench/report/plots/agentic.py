"""Conversations turn by turn."""

from collections.abc import Callable, Iterator, Sequence

from draftbench.report.charts import Line, Panel, key, line_panels
from draftbench.report.look import Look, looks
from draftbench.report.notes import size_range
from draftbench.report.plots.base import Plot, only, settings
from draftbench.report.prose import setting_name, split_sentence
from draftbench.report.summary import Summary, TurnPoint

Value = Callable[[TurnPoint], float | None]


def by_turn(summary: Summary) -> Iterator[Plot]:
    """Time to first token and speed by turn, a figure for each scenario."""
    drawn = looks(summary)
    for number, setting in enumerate(settings(summary), 1):
        rows = [row for row in summary.turns if (row.model, row.tp) == setting]
        for scenario in dict.fromkeys(row.workload for row in rows):
            turns = [row for row in rows if row.workload == scenario]
            yield Plot(
                f"turns-{number}-{scenario}",
                "agentic",
                f"{scenario}: time to first token and output speed by turn of the conversation"
                f"{setting_name(summary, setting)}; n = "
                f"{size_range([row.num_requests for row in turns], 'request')} a point."
                f"{split_sentence(summary, setting, {scenario})}",
                key(only(drawn, [row.method for row in turns]), with_lines=True)
                + line_panels(_panels(turns, drawn)),
            )


def _panels(rows: Sequence[TurnPoint], drawn: dict[str, Look]) -> list[Panel]:
    turns = sorted({row.turn for row in rows})
    ticks = tuple(str(turn) for turn in turns)
    values: tuple[tuple[str, Value], ...] = (
        ("median TTFT (ms)", _ttft_ms),
        ("output tok/s", lambda row: row.tok_per_s),
    )
    return [Panel("turn", label, ticks, _lines(rows, drawn, turns, value)) for label, value in values]


def _ttft_ms(row: TurnPoint) -> float | None:
    return None if row.ttft_median_s is None else 1000 * row.ttft_median_s


def _lines(
    rows: Sequence[TurnPoint], drawn: dict[str, Look], turns: Sequence[int], value: Value
) -> tuple[Line, ...]:
    points = {(row.method, row.turn): value(row) for row in rows}
    methods = [name for name in drawn if any(method == name for method, _ in points)]
    return tuple(
        Line(drawn[method], tuple(points.get((method, turn)) for turn in turns)) for method in methods
    )
