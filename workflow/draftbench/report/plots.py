"""The report's figures, each from the summary's rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from draftbench.report.charts import Bar, Line, Panel, grouped_bars, key, line_panels, ranked_bars
from draftbench.report.look import Look, drafting_methods, looks
from draftbench.report.prose import evidence_note, setting_name
from draftbench.report.summary import Comparison, Summary


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


Maker = Callable[[Summary], Iterator[Plot]]


def settings(summary: Summary) -> list[tuple[str, int]]:
    """(model, TP) pairs with a cell, in the campaign's order."""
    return list(dict.fromkeys((row.model, row.tp) for row in summary.cells))


def _comparisons(summary: Summary, setting: tuple[str, int], workload: str | None) -> dict[str, Comparison]:
    return {
        row.method: row
        for row in summary.comparisons
        if (row.model, row.tp) == setting and row.workload == workload
    }


def _bar(look: Look, comparison: Comparison | None, *, with_points: bool = True) -> Bar:
    evidence = comparison.evidence if comparison else None
    mark = (comparison.mark if comparison else None) or "not planned"
    if evidence is None:
        return Bar(look.label, None, None, (), look.colour, mark)
    has_interval = evidence.low is not None and evidence.high is not None
    label = look.label + ("\u2020" if comparison and comparison.num_excluded_sessions else "")
    return Bar(
        label,
        evidence.ratio,
        (evidence.low or 0.0, evidence.high or 0.0) if has_interval else None,
        tuple(evidence.per_prompt) if with_points and len(evidence.per_prompt) > 1 else (),
        look.colour,
        "",
    )


def headline(summary: Summary) -> Iterator[Plot]:
    """Speedup of every method over all single requests, best first; one figure per model and TP size."""
    drawn = looks(summary)
    for number, setting in enumerate(settings(summary), 1):
        rows = _comparisons(summary, setting, None)
        if not any(row.evidence for row in rows.values()):
            continue
        bars = [_bar(drawn[name], row) for name, row in rows.items()]
        yield Plot(
            f"headline-{number}",
            "summary" if number == 1 else "speed",
            f"Speedup over autoregressive decoding{setting_name(summary, setting)}, all single requests "
            f"together, best first. {evidence_note(list(rows.values()))}",
            ranked_bars(bars, "speedup over AR (higher is better)", 1.0),
        )


def by_workload(summary: Summary) -> Iterator[Plot]:
    """Speedup of every method by single-request workload."""
    names = [workload.name for workload in summary.workloads if workload.kind == "single"]
    yield from _grouped(summary, names, "workloads", "speed", "by length of the answer")


def by_scenario(summary: Summary) -> Iterator[Plot]:
    """Speedup of every method by agentic scenario."""
    names = [workload.name for workload in summary.workloads if workload.kind == "agentic"]
    yield from _grouped(summary, names, "scenarios", "agentic", "over whole agentic sessions, by scenario")


def _grouped(
    summary: Summary, workloads: Sequence[str], name: str, section: str, what: str
) -> Iterator[Plot]:
    drawn = looks(summary)
    methods = [method.name for method in drafting_methods(summary)]
    for number, setting in enumerate(settings(summary), 1):
        rows = {workload: _comparisons(summary, setting, workload) for workload in workloads}
        shown = [workload for workload in workloads if rows[workload]]
        every = [row for workload in shown for row in rows[workload].values()]
        if len(shown) < 1 or not any(row.evidence for row in every):
            continue
        groups = [
            (workload, [_bar(drawn[method], rows[workload].get(method)) for method in methods])
            for workload in shown
        ]
        yield Plot(
            f"{name}-{number}",
            section,
            f"Speedup over autoregressive decoding{setting_name(summary, setting)}, {what}. "
            f"{evidence_note(every)}",
            key([drawn[method] for method in methods], with_lines=False)
            + grouped_bars(groups, "speedup over AR", 1.0),
        )


def budget_curve(summary: Summary) -> Iterator[Plot]:
    """Speedup and tau against the budget, the linear block as a level."""
    drawn = looks(summary)
    trees = sorted(
        (method for method in summary.methods if method.budget is not None), key=lambda m: m.budget or 0
    )
    linear = [method for method in summary.methods if method.algorithm == "dflash"]
    for number, setting in enumerate(settings(summary), 1):
        rows = _comparisons(summary, setting, None)
        taus = {
            row.method: row.tau
            for row in summary.acceptance
            if (row.model, row.tp) == setting and row.prompt_type is None
        }
        speeds = {name: row.evidence.ratio if row.evidence else None for name, row in rows.items()}
        if sum(speeds.get(method.name) is not None for method in trees) < 2:
            continue
        panels = []
        for title, values in (("speedup over AR", speeds), ("emitted tokens per round (tau)", taus)):
            marks = tuple((rows[m.name].mark or "") if m.name in rows else "" for m in trees)
            line = Line(
                Look("DDTree", drawn[trees[-1].name].colour, "^", False),
                tuple(values.get(method.name) for method in trees),
                marks,
            )
            levels = tuple((drawn[m.name], float(values[m.name] or 0)) for m in linear if values.get(m.name))
            ticks = tuple(str(method.budget) for method in trees)
            panels.append(Panel("", "budget (tree nodes)", title, ticks, (line,), 1.0, levels))
        entries = [panels[0].lines[0].look, *(look for look, _ in panels[0].levels)]
        yield Plot(
            f"budget-{number}",
            "budget",
            f"Speed and acceptance against the draft budget{setting_name(summary, setting)}, all single "
            "requests together. Dotted: AR. A wider tree keeps more tokens a round, but each round costs more.",
            key(entries, with_lines=True) + line_panels(panels),
        )


def accept_histograms(summary: Summary) -> Iterator[Plot]:
    """Share of rounds by accepted draft tokens, and tau by prompt type."""
    drawn = looks(summary)
    for number, setting in enumerate(settings(summary), 1):
        rows = [
            row
            for row in summary.acceptance
            if (row.model, row.tp) == setting and row.histogram and row.num_rounds
        ]
        together = [row for row in rows if row.prompt_type is None]
        if not together:
            continue
        deepest = max(_last_used(row.histogram or []) for row in together)
        lines = []
        for row in together:
            histogram = list(row.histogram or [])[: deepest + 1]
            shares = [rounds / row.num_rounds for rounds in histogram]
            padded: list[float | None] = [*shares, *[None] * (deepest + 1 - len(shares))]
            lines.append(Line(drawn[row.method], tuple(padded)))
        ticks = tuple(str(accepted) for accepted in range(deepest + 1))
        types = sorted({row.prompt_type for row in rows if row.prompt_type})
        by_type = {(row.method, row.prompt_type): row.tau for row in rows}
        tau_lines = tuple(
            Line(drawn[row.method], tuple(by_type.get((row.method, kind)) for kind in types))
            for row in together
        )
        letters = tuple(chr(ord("A") + place) for place in range(len(types)))
        legend = ", ".join(f"{letter} {kind}" for letter, kind in zip(letters, types, strict=True))
        rounds = sum(row.num_rounds for row in together)
        yield Plot(
            f"acceptance-{number}",
            "budget",
            f"Left: share of rounds by accepted draft tokens. Right: emitted tokens per round by prompt type "
            f"({legend}){setting_name(summary, setting)}. n = {rounds} rounds over all methods.",
            key([drawn[row.method] for row in together], with_lines=True)
            + line_panels(
                [
                    Panel("", "accepted draft tokens in a round", "share of rounds", ticks, tuple(lines)),
                    Panel("", "prompt type", "emitted tokens per round (tau)", letters, tau_lines, 1.0),
                ]
            ),
        )


def _last_used(histogram: Sequence[int]) -> int:
    return max((place for place, rounds in enumerate(histogram) if rounds), default=0)


def by_turn(summary: Summary) -> Iterator[Plot]:
    """Time to first token and speed by agentic turn, a row of panels per scenario."""
    drawn = looks(summary)
    for number, setting in enumerate(settings(summary), 1):
        rows = [row for row in summary.turns if (row.model, row.tp) == setting]
        scenarios = list(dict.fromkeys(row.workload for row in rows))
        if not rows:
            continue
        panels = []
        methods = [name for name in drawn if any(row.method == name for row in rows)]
        for scenario in scenarios:
            turns = sorted({row.turn for row in rows if row.workload == scenario})
            points = {(row.method, row.turn): row for row in rows if row.workload == scenario}
            for label, value in (
                (
                    "median TTFT (ms)",
                    lambda row: None if row.ttft_median_s is None else 1000 * row.ttft_median_s,
                ),
                ("output tok/s", lambda row: row.tok_per_s),
            ):
                lines = tuple(
                    Line(
                        drawn[method],
                        tuple(value(points[method, t]) if (method, t) in points else None for t in turns),
                    )
                    for method in methods
                )
                panels.append(Panel(scenario, "turn", label, tuple(str(turn) for turn in turns), lines))
        sizes = sorted({row.num_requests for row in rows})
        n = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        yield Plot(
            f"turns-{number}",
            "agentic",
            f"Time to first token and output speed by turn of the conversation{setting_name(summary, setting)}; "
            f"n = {n} requests a point.",
            key([drawn[method] for method in methods], with_lines=True) + line_panels(panels),
        )


def by_concurrency(summary: Summary) -> Iterator[Plot]:
    """Total output speed, and the speed that one user sees, by concurrency."""
    drawn = looks(summary)
    for number, setting in enumerate(settings(summary), 1):
        rows = [row for row in summary.loads if (row.model, row.tp) == setting]
        levels = sorted({row.concurrency for row in rows})
        methods = [name for name in drawn if any(row.method == name and row.tok_per_s for row in rows)]
        if len(levels) < 2 or not methods:
            continue
        points = {(row.method, row.concurrency): row for row in rows}
        ticks = tuple(str(level) for level in levels)

        def series(field: str) -> tuple[Line, ...]:
            return tuple(
                Line(
                    drawn[method],
                    tuple(getattr(points.get((method, level)), field, None) for level in levels),
                    tuple(getattr(points.get((method, level)), "mark", None) or "" for level in levels),
                )
                for method in drawn
                if any((method, level) in points for level in levels)
            )

        yield Plot(
            f"load-{number}",
            "load",
            f"Closed loop{setting_name(summary, setting)}: total output speed, and the median speed of one "
            "request, by the number of requests in flight.",
            key([drawn[method] for method in drawn], with_lines=True)
            + line_panels(
                [
                    Panel("", "requests in flight", "total output tok/s", ticks, series("tok_per_s")),
                    Panel(
                        "", "requests in flight", "tok/s of one request", ticks, series("request_tok_per_s")
                    ),
                ]
            ),
        )


def by_tp(summary: Summary) -> Iterator[Plot]:
    """Speed and speedup by TP size, where a campaign has several."""
    drawn = looks(summary)
    if len(summary.tps) < 2:
        return
    for number, model in enumerate(summary.models, 1):
        sizes = [tp for tp in summary.tps if any((row.model, row.tp) == (model, tp) for row in summary.cells)]
        if len(sizes) < 2:
            continue
        speeds = _single_speeds(summary, model)
        ratios = {
            (row.method, row.tp): row
            for row in summary.comparisons
            if row.model == model and row.workload is None
        }
        ticks = tuple(str(size) for size in sizes)
        speed_lines = tuple(
            Line(drawn[method], tuple(speeds.get((method, size)) for size in sizes)) for method in drawn
        )
        ratio_lines = tuple(
            Line(
                drawn[method],
                tuple(
                    row.evidence.ratio if (row := ratios.get((method, size))) and row.evidence else None
                    for size in sizes
                ),
                tuple(
                    (ratios[method, size].mark or "") if (method, size) in ratios else "" for size in sizes
                ),
            )
            for method in drawn
            if method != summary.baseline
        )
        name = f", {model}" if len(summary.models) > 1 else ""
        yield Plot(
            f"tp-{number}",
            "load",
            f"Single requests by tensor-parallel size{name}: output speed, and speedup over AR of the same size.",
            key(list(drawn.values()), with_lines=True)
            + line_panels(
                [
                    Panel("", "TP size", "output tok/s", ticks, speed_lines),
                    Panel("", "TP size", "speedup over AR", ticks, ratio_lines, 1.0),
                ]
            ),
        )


def _single_speeds(summary: Summary, model: str) -> dict[tuple[str, int], float]:
    """(method, TP) -> output tokens over their time, all whole single-request cells."""
    totals: dict[tuple[str, int], list[float]] = {}
    for row in summary.cells:
        if row.model == model and row.kind == "single" and row.tok_per_s and row.output_tokens:
            total = totals.setdefault((row.method, row.tp), [0.0, 0.0])
            total[0] += row.output_tokens
            total[1] += row.output_tokens / row.tok_per_s
    return {place: tokens / seconds for place, (tokens, seconds) in totals.items()}


ALL: tuple[Maker, ...] = (
    headline,
    by_workload,
    budget_curve,
    accept_histograms,
    by_turn,
    by_scenario,
    by_concurrency,
    by_tp,
)
