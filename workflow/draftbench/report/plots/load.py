"""Several requests at once, and several GPUs."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from draftbench.report.charts import Line, Panel, key, line_panels
from draftbench.report.look import Look, looks
from draftbench.report.plots.base import Plot, only, settings
from draftbench.report.prose import setting_name
from draftbench.report.summary import LoadPoint, Summary

Place = tuple[str, int]
Value = Callable[[LoadPoint], float | None]


def by_concurrency(summary: Summary) -> Iterator[Plot]:
    """Total speed, speed and TTFT of one request, and total against single speed, by concurrency."""
    drawn = looks(summary)
    for number, setting in enumerate(settings(summary), 1):
        points = {
            (row.method, row.concurrency): row for row in summary.loads if (row.model, row.tp) == setting
        }
        levels = sorted({level for _, level in points})
        methods = list(dict.fromkeys(method for method, _ in points))
        if len(levels) < 2 or not any(row.tok_per_s for row in points.values()):
            continue
        legend = key(only(drawn, methods), with_lines=True)
        panels = _load_panels(drawn, points, levels)
        name = setting_name(summary, setting)
        yield Plot(
            f"load-{number}",
            "load",
            f"Closed loop{name}: output speed of all requests together and of one, by requests in flight.",
            legend + line_panels(panels[:2]),
        )
        yield Plot(
            f"trade-{number}",
            "load",
            f"Closed loop{name}. Left: time to first token. Right: what all get against what each gets, a "
            f"point for each of {', '.join(str(level) for level in levels)} in flight; further up and to the "
            "right is better.",
            legend + line_panels(panels[2:]),
        )


def _load_panels(
    drawn: Mapping[str, Look], points: Mapping[Place, LoadPoint], levels: Sequence[int]
) -> list[Panel]:
    ticks = tuple(str(level) for level in levels)

    def lines(value: Value, along: Value | None = None) -> tuple[Line, ...]:
        return tuple(
            _line(look, [points.get((name, level)) for level in levels], value, along)
            for name, look in drawn.items()
            if any((name, level) in points for level in levels)
        )

    flight = "requests in flight"
    each = "tok/s of one request (median)"
    return [
        Panel(flight, "total output tok/s", ticks, lines(_total)),
        Panel(flight, each, ticks, lines(_single)),
        Panel(flight, "median TTFT (ms)", ticks, lines(_ttft_ms)),
        Panel(each, "total output tok/s", (), lines(_total, along=_single)),
    ]


def _line(look: Look, rows: Sequence[LoadPoint | None], value: Value, along: Value | None) -> Line:
    return Line(
        look,
        tuple(None if row is None else value(row) for row in rows),
        tuple("" if row is None else row.mark or "" for row in rows),
        None if along is None else tuple(None if row is None else along(row) for row in rows),
    )


def _total(row: LoadPoint) -> float | None:
    return row.tok_per_s


def _single(row: LoadPoint) -> float | None:
    return row.request_tok_per_s


def _ttft_ms(row: LoadPoint) -> float | None:
    return None if row.ttft_median_s is None else 1000 * row.ttft_median_s


def by_tp(summary: Summary) -> Iterator[Plot]:
    """Speed and speedup by TP size, where a campaign has several."""
    drawn = looks(summary)
    for number, model in enumerate(summary.models, 1):
        planned = {tp for name, tp in settings(summary) if name == model}
        sizes = [tp for tp in summary.tps if tp in planned]
        if len(sizes) < 2:
            continue
        ticks = tuple(str(size) for size in sizes)
        speeds = _single_speeds(summary, model)
        speed_lines = tuple(
            Line(look, tuple(speeds.get((name, size)) for size in sizes)) for name, look in drawn.items()
        )
        panels = [
            Panel("TP size", "output tok/s", ticks, speed_lines),
            Panel("TP size", "speedup over AR", ticks, _ratio_lines(summary, model, sizes), reference=1.0),
        ]
        name = f", {model}" if len(summary.models) > 1 else ""
        yield Plot(
            f"tp-{number}",
            "load",
            f"Single requests by tensor-parallel size{name}: output speed, and speedup over AR of the same "
            "size.",
            key(list(drawn.values()), with_lines=True) + line_panels(panels),
        )


def _ratio_lines(summary: Summary, model: str, sizes: Sequence[int]) -> tuple[Line, ...]:
    rows = {
        (row.method, row.tp): row
        for row in summary.comparisons
        if row.model == model and row.workload is None
    }
    ratios = {place: row.evidence.ratio for place, row in rows.items() if row.evidence}
    marks = {place: row.mark for place, row in rows.items() if row.mark}
    return tuple(
        Line(
            look,
            tuple(ratios.get((name, size)) for size in sizes),
            tuple(marks.get((name, size), "") for size in sizes),
        )
        for name, look in looks(summary).items()
        if name != summary.baseline
    )


def _single_speeds(summary: Summary, model: str) -> dict[Place, float]:
    """(method, TP) -> output tokens over their time, all whole single-request cells."""
    totals: dict[Place, tuple[float, float]] = {}
    for row in summary.cells:
        if row.model == model and row.kind == "single" and row.tok_per_s and row.output_tokens:
            tokens, seconds = totals.get((row.method, row.tp), (0.0, 0.0))
            added_s = row.output_tokens / row.tok_per_s
            totals[row.method, row.tp] = (tokens + row.output_tokens, seconds + added_s)
    return {place: tokens / seconds for place, (tokens, seconds) in totals.items()}
