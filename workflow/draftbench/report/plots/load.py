"""Several requests at once, and several GPUs."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from draftbench.report.charts import Line, Panel, key, line_panels
from draftbench.report.look import Look, looks
from draftbench.report.measures import pooled_tok_per_s
from draftbench.report.plots.base import Plot, loads_of, only, settings
from draftbench.report.prose import all_or_some, capitalised, setting_name, split_sentence
from draftbench.report.summary import CellRow, LoadPoint, Summary

Place = tuple[str, int]
Value = Callable[[LoadPoint], float | None]


def by_concurrency(summary: Summary) -> Iterator[Plot]:
    """Total speed, speed and TTFT of one request, and total against single speed, by concurrency."""
    drawn = looks(summary)
    for number, setting in enumerate(settings(summary), 1):
        points = {(row.method, row.concurrency): row for row in loads_of(summary, setting)}
        levels = sorted({level for _, level in points})
        methods = list(dict.fromkeys(method for method, _ in points))
        if len(levels) < 2 or not any(row.tok_per_s for row in points.values()):
            continue
        legend = key(only(drawn, methods), with_lines=True)
        panels = _load_panels(drawn, points, levels)
        name = setting_name(summary, setting)
        split = split_sentence(summary, setting, {row.workload for row in points.values()})
        yield Plot(
            f"load-{number}",
            "load",
            f"Closed loop{name}: output speed of all requests together and of one, by requests in flight."
            f"{split}",
            legend + line_panels(panels[:2]),
        )
        yield Plot(
            f"trade-{number}",
            "load",
            f"Closed loop{name}. Left: time to first token. Right: what all get against what each gets, a "
            f"point for each of {', '.join(str(level) for level in levels)} in flight; further up and to the "
            f"right is better.{split}",
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
    """Speed and speedup by TP size, where single requests were measured at several."""
    drawn = looks(summary)
    for number, model in enumerate(summary.models, 1):
        planned = {tp for name, tp in settings(summary) if name == model}
        sizes = [tp for tp in summary.tps if tp in planned]
        if len(sizes) < 2:
            continue
        ticks = tuple(str(size) for size in sizes)
        workloads = _in_all_settings(summary, model)
        speeds = _speeds(summary, model, workloads)
        if not speeds:
            continue
        measured = {
            name: look for name, look in drawn.items() if any((name, size) in speeds for size in sizes)
        }
        speed_lines = tuple(
            Line(look, tuple(speeds.get((name, size)) for size in sizes)) for name, look in measured.items()
        )
        ratio_lines = _ratio_lines(summary, model, sizes, measured)
        panels = [
            Panel("TP size", "output tok/s", ticks, speed_lines),
            Panel("TP size", "speedup over AR", ticks, ratio_lines, reference=1.0),
        ]
        name = f", {model}" if len(summary.models) > 1 else ""
        yield Plot(
            f"tp-{number}",
            "load",
            f"{capitalised(all_or_some(summary, workloads))} by tensor-parallel size{name}: output speed, "
            "and speedup over AR of the same size.",
            key(list(measured.values()), with_lines=True) + line_panels(panels),
        )


def _ratio_lines(
    summary: Summary, model: str, sizes: Sequence[int], drawn: Mapping[str, Look]
) -> tuple[Line, ...]:
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
        for name, look in drawn.items()
        if name != summary.baseline
    )


def _in_all_settings(summary: Summary, model: str) -> list[str]:
    """The single-request workloads that the speedups at every TP size cover."""
    covered = [row.workloads for row in summary.comparisons if row.model == model and row.workload is None]
    single = [workload.name for workload in summary.workloads if workload.kind == "single"]
    return [name for name in single if all(name in workloads for workloads in covered)]


def _speeds(summary: Summary, model: str, workloads: Sequence[str]) -> dict[Place, float]:
    """(method, TP) -> output tokens over their time, in the sessions in which all the workloads are whole."""
    by_session: defaultdict[tuple[str, int, int], list[CellRow]] = defaultdict(list)
    for row in summary.cells:
        if row.model == model and row.workload in workloads and row.tok_per_s and row.output_tokens:
            by_session[row.method, row.tp, row.session].append(row)
    by_place: defaultdict[Place, list[CellRow]] = defaultdict(list)
    for (method, tp, _), rows in by_session.items():
        if len(rows) == len(workloads):
            by_place[method, tp] += rows
    speeds = {place: pooled_tok_per_s(rows) for place, rows in by_place.items()}
    return {place: speed for place, speed in speeds.items() if speed is not None}
