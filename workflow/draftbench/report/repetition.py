"""How much the outputs repeat themselves, and what a speedup on such text is worth.

A loop is drafted almost without fault, so it raises tau and the speedup of a method above what other text
would give.
"""

from collections.abc import Sequence

from draftbench.report.prose import joined, label, ratio_words
from draftbench.report.summary import CellRow, Comparison, Evidence, Setting, Summary
from draftbench.report.tex import number, percent

MUCH_REPETITION = 0.2
"""Share of repeated 8-grams above which the report warns.

Text that SmolLM2-135M samples at temperature 0.7 has 13 % (docs/drafter-log.md); four of the five short
greedy outputs of AR's replica in results/h200 have 11 to 21 %, the fifth, a loop, 68 %.
"""


def repeated_share(summary: Summary, setting: Setting, method: str, workload: str) -> float | None:
    """Share of 8-grams that occurred before in the same output, mean over the cells of a workload."""
    rows = (row for row in _cells(summary, setting, [method]) if row.workload == workload)
    shares = [row.repeated_8gram_share for row in rows if row.repeated_8gram_share is not None]
    return sum(shares) / len(shares) if shares else None


def before_repetition(
    summary: Summary, setting: Setting, method: str, workload: str | None
) -> Comparison | None:
    """The comparison over the tokens before repetition; None where the whole one has no number either."""
    found = [
        next((row for row in rows if _place(row) == (setting, method, workload)), None)
        for rows in (summary.comparisons, summary.before_repetition)
    ]
    has_numbers = all(row is not None and row.evidence is not None for row in found)
    return found[1] if has_numbers else None


def repeats_at_all(summary: Summary, setting: Setting) -> bool:
    """Whether any output of the setting's single requests holds an 8-gram twice, compared or not."""
    return _most_repeated(summary, setting, [method.name for method in summary.methods]) > 0


def repeats_much(summary: Summary, setting: Setting) -> bool:
    """Whether outputs behind the setting's numbers of single requests repeat too much to go unsaid."""
    return _most_repeated(summary, setting, _methods(summary, setting)) > MUCH_REPETITION


def evidence_before(summary: Summary, setting: Setting) -> dict[str, Evidence]:
    """Method -> its speedup of all single requests before repetition; empty where little is repeated."""
    if not repeats_much(summary, setting):
        return {}
    rows = (before_repetition(summary, setting, method.name, None) for method in summary.methods)
    return {row.method: row.evidence for row in rows if row is not None and row.evidence is not None}


def _most_repeated(summary: Summary, setting: Setting, methods: Sequence[str]) -> float:
    """The largest share of repeated 8-grams among some methods' cells of single requests."""
    rows = _cells(summary, setting, methods)
    return max((row.repeated_8gram_share or 0.0 for row in rows if row.kind == "single"), default=0.0)


def repetition_sentence(summary: Summary, setting: Setting) -> str | None:
    """The caveat of a setting, with the shares by workload; None where little is repeated."""
    if not repeats_much(summary, setting):
        return None
    methods = _methods(summary, setting)
    shares = [_shares_text(summary, setting, method) for method in methods]
    drafting = [method for method in methods if method != summary.baseline]
    return " ".join(
        [
            "Outputs repeat themselves. Share of the 8-grams that occurred before in the same output: "
            f"{'; '.join(shares)}.",
            "A loop is drafted almost without fault, so a speedup on such text says more about loops than "
            "about text, and once two texts have parted they are not the same text.",
            *_run_on(summary),
            *_lengths_text(summary, setting, drafting),
            *_least_text(summary, setting, drafting),
        ]
    )


def repetition_overview(summary: Summary, settings: Sequence[Setting], names: Sequence[str]) -> str | None:
    """The caveat of several settings together, by name."""
    much = [name for setting, name in zip(settings, names, strict=True) if repeats_much(summary, setting)]
    if not much:
        return None
    return (
        f"Outputs repeat themselves in {joined(much)}: in some workload more than "
        f"{percent(MUCH_REPETITION)} of the 8-grams occurred before in the same output. Loops are drafted "
        "almost without fault, so the speedups there say more about loops than about text; section 3 has the "
        "shares."
    )


def _place(row: Comparison) -> tuple[Setting, str, str | None]:
    return (row.model, row.tp), row.method, row.workload


def _cells(summary: Summary, setting: Setting, methods: Sequence[str]) -> list[CellRow]:
    return [row for row in summary.cells if (row.model, row.tp) == setting and row.method in methods]


def _methods(summary: Summary, setting: Setting) -> list[str]:
    """The baseline, and the methods that the summary speaks of.

    Those with the highest number in all single requests or in a workload: of all, and of those with an
    interval.
    """
    single = {workload.name for workload in summary.workloads if workload.kind == "single"} | {None}
    best: dict[tuple[str | None, bool], tuple[float, str]] = {}
    for row in summary.comparisons:
        if (row.model, row.tp) == setting and row.workload in single and row.evidence:
            number_and_name = (row.evidence.ratio, row.method)
            for has_interval in {False, row.evidence.low is not None}:
                place = row.workload, has_interval
                best[place] = max(best.get(place, (0.0, "")), number_and_name)
    names = {name for _, name in best.values()} | {summary.baseline}
    return [method.name for method in summary.methods if method.name in names] if best else []


def _shares_text(summary: Summary, setting: Setting, method: str) -> str:
    parts = []
    for kind in ("single", "agentic", "concurrency"):
        names = [workload.name for workload in summary.workloads if workload.kind == kind]
        shares = {name: repeated_share(summary, setting, method, name) for name in names}
        known = {name: share for name, share in shares.items() if share is not None}
        if kind == "single":
            parts += [f"{percent(share)} in {name}" for name, share in known.items()]
        elif known:
            low, high = percent(min(known.values())), percent(max(known.values()))
            parts.append(f"{low if low == high else f'{low} to {high}'} in {kind} workloads")
    return f"{label(summary, method)} {joined(parts)}"


def _run_on(summary: Summary) -> list[str]:
    runs_on = any(workload.ignore_eos for workload in summary.workloads if workload.kind == "single")
    said = "Replies run on to the length asked, past the model’s own end, where loops are likely."
    return [said] if runs_on else []


def _lengths_text(summary: Summary, setting: Setting, methods: Sequence[str]) -> list[str]:
    """How much text the speedups before repetition are of; the speedups stand beside the whole ones."""
    rows = [before_repetition(summary, setting, method, None) for method in methods]
    lengths = [
        f"{number(row.evidence.num_tokens / row.evidence.num_requests, 0)} a request with "
        f"{label(summary, row.method)}"
        for row in rows
        if row is not None and row.evidence is not None
    ]
    if not lengths:
        return ["Speedups before the first repetition are not known."]
    return [
        "The speedups before repetition are of the tokens up to the first repeated 8-gram of either output, "
        f"prefill included: on average {joined(lengths)}."
    ]


def _least_text(summary: Summary, setting: Setting, methods: Sequence[str]) -> list[str]:
    """The workload that repeats least, with its numbers."""
    rows = [
        row
        for row in summary.comparisons
        if _place(row)[0] == setting and row.method in methods and row.evidence and len(row.workloads) == 1
    ]
    names = [workload.name for workload in summary.workloads if workload.kind == "single"]
    shares = {
        name: max(repeated_share(summary, setting, row.method, name) or 0.0 for row in rows)
        for name in names
        if any(row.workload == name for row in rows)
    }
    if len(shares) < 2:
        return []
    least = min(shares, key=lambda name: shares[name])
    parts = [f"{label(summary, row.method)} {ratio_words(row)}" for row in rows if row.workload == least]
    return [f"{least} repeats least; in all of it: {joined(parts)}."]
