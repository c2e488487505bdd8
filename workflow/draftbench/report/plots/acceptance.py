"""The draft budget, and how many draft tokens the target keeps."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from draftbench.report.charts import Bar, Line, Panel, grouped_bars, key, line_panels
from draftbench.report.look import PALE_BLUE, Look, looks
from draftbench.report.notes import size_range
from draftbench.report.plots.base import Plot, comparisons, drafting_methods, only, settings
from draftbench.report.prose import capitalised, setting_name, together
from draftbench.report.repetition import evidence_before, repeats_much
from draftbench.report.summary import Acceptance, Comparison, MethodInfo, Setting, Summary

BEFORE_NOTE = " Before repetition: up to the first repeated 8-gram, of either output for the speed."


def budget_curve(summary: Summary) -> Iterator[Plot]:
    """Speedup and tau against the budget, the linear block as a level."""
    for number, setting in enumerate(settings(summary), 1):
        trees = sorted(
            (method for method in drafting_methods(summary, setting, "single") if method.budget is not None),
            key=lambda method: method.budget or 0,
        )
        rows = comparisons(summary, setting, None)
        speeds = {name: row.evidence.ratio for name, row in rows.items() if row.evidence}
        if sum(method.name in speeds for method in trees) < 2:
            continue
        accepted = _together(summary, setting)
        taus = {row.method: row.tau for row in accepted if row.tau is not None}
        speeds_before, taus_before = _before(summary, setting, accepted)
        panels = [
            _budget_panel(summary, trees, rows, (speeds, speeds_before), "speedup over AR"),
            _budget_panel(summary, trees, rows, (taus, taus_before), "emitted tokens per round (tau)"),
        ]
        entries = [*(line.look for line in panels[0].lines), *(look for look, _ in panels[0].levels)]
        yield Plot(
            f"budget-{number}",
            "budget",
            f"Speed and acceptance against the draft budget{setting_name(summary, setting)}. Speed: "
            f"{together(summary, list(rows.values()))}.{BEFORE_NOTE if speeds_before else ''} Dotted: AR. "
            "A larger tree keeps more tokens a round, and a round costs more.",
            key(entries, with_lines=True) + line_panels(panels),
        )


def _before(
    summary: Summary, setting: Setting, accepted: Sequence[Acceptance]
) -> tuple[dict[str, float], dict[str, float]]:
    """Method -> speedup and tau up to the first repetition; both empty where outputs repeat little."""
    if not repeats_much(summary, setting):
        return {}, {}
    speeds = {name: evidence.ratio for name, evidence in evidence_before(summary, setting).items()}
    taus = {row.method: row.tau_before_repetition for row in accepted}
    return speeds, {name: tau for name, tau in taus.items() if tau is not None}


def _budget_panel(
    summary: Summary,
    trees: Sequence[MethodInfo],
    rows: Mapping[str, Comparison],
    values: tuple[Mapping[str, float], Mapping[str, float]],
    title: str,
) -> Panel:
    """`values`: of whole replies, and up to the first repetition (empty: not drawn)."""
    drawn = looks(summary)
    whole, before = values
    colour = drawn[trees[-1].name].colour
    marks = tuple((rows[method.name].mark or "") if method.name in rows else "" for method in trees)
    line = Line(
        Look("DDTree", colour, "^", is_dashed=False), tuple(whole.get(method.name) for method in trees), marks
    )
    dashed = Line(
        Look("DDTree before repetition", colour, "v", is_dashed=True),
        tuple(before.get(method.name) for method in trees),
    )
    linear = [method.name for method in summary.methods if method.algorithm == "dflash"]
    return Panel(
        "budget (tree nodes)",
        title,
        tuple(str(method.budget) for method in trees),
        (line, dashed) if before else (line,),
        reference=1.0,
        levels=tuple(
            level for name in linear for level in _levels(drawn[name], whole.get(name), before.get(name))
        ),
    )


def _levels(look: Look, whole: float | None, before: float | None) -> list[tuple[Look, float]]:
    """A linear block's level, and a pale one up to the first repetition, where they are known."""
    pale = replace(look, label=f"{look.label} before repetition", colour=PALE_BLUE)
    return [(drawn, height) for drawn, height in ((look, whole), (pale, before)) if height is not None]


def _together(summary: Summary, setting: Setting) -> list[Acceptance]:
    return [row for row in summary.acceptance if (row.model, row.tp) == setting and row.prompt_type is None]


def accepted_tokens(summary: Summary) -> Iterator[Plot]:
    """Share of rounds that keep exactly, and at least, so many draft tokens."""
    drawn = looks(summary)
    for number, setting in enumerate(settings(summary), 1):
        rows = [row for row in _together(summary, setting) if row.histogram and row.num_rounds]
        if not rows:
            continue
        deepest = max(_last_used(row.histogram or []) for row in rows)
        ticks = tuple(str(accepted) for accepted in range(deepest + 1))
        exactly = {row.method: _shares(row, deepest + 1) for row in rows}
        at_least = {name: _tails(shares) for name, shares in exactly.items()}
        words = "accepted draft tokens in a round"
        covered = capitalised(together(summary, rows))
        rounds = ", ".join(f"{drawn[row.method].label} {row.num_rounds}" for row in rows)
        yield Plot(
            f"accepted-{number}",
            "budget",
            f"Rounds by the draft tokens that the target keeps{setting_name(summary, setting)}: exactly so "
            f"many (left), at least so many (right). {covered}; n rounds: {rounds}.",
            key(only(drawn, list(exactly)), with_lines=True)
            + line_panels(
                [
                    Panel(words, "share of rounds", ticks, _lines(drawn, exactly)),
                    Panel(words, "share with at least", ticks, _lines(drawn, at_least)),
                ]
            ),
        )


def _last_used(histogram: Sequence[int]) -> int:
    return max((place for place, rounds in enumerate(histogram) if rounds), default=0)


def _shares(row: Acceptance, length: int) -> list[float]:
    histogram = [*(row.histogram or []), *[0] * length][:length]
    return [rounds / row.num_rounds for rounds in histogram]


def _tails(shares: Sequence[float]) -> list[float]:
    return list(itertools.accumulate(reversed(shares)))[::-1]


def _lines(drawn: Mapping[str, Look], values: Mapping[str, Sequence[float]]) -> tuple[Line, ...]:
    return tuple(Line(drawn[name], tuple(series)) for name, series in values.items())


def by_prompt_type(summary: Summary) -> Iterator[Plot]:
    """Tau of every method by prompt type."""
    drawn = looks(summary)
    for number, setting in enumerate(settings(summary), 1):
        methods = [method.name for method in drafting_methods(summary, setting, "single")]
        rows = [
            row
            for row in summary.acceptance
            if (row.model, row.tp) == setting and row.prompt_type is not None and row.method in methods
        ]
        taus = {(row.prompt_type, row.method): row.tau for row in rows}
        types = sorted({kind for kind, _ in taus if kind is not None})
        if len(types) < 2 or not any(taus.values()):
            continue
        groups = [
            (
                kind,
                [
                    Bar(drawn[name].label, taus.get((kind, name)), drawn[name].colour, mark="no rounds")
                    for name in methods
                ],
            )
            for kind in types
        ]
        yield Plot(
            f"types-{number}",
            "budget",
            f"Emitted tokens per round by type of prompt{setting_name(summary, setting)}, "
            f"{together(summary, rows)}; n = {size_range([row.num_prompts for row in rows], 'prompt')} of "
            "each type. Dashed: AR.",
            key(only(drawn, methods), with_lines=False)
            + grouped_bars(groups, "emitted tokens per round (tau)", reference=1.0),
        )
