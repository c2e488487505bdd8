"""What the report says of the draft budget, and of the trees beside the linear block."""

from collections.abc import Mapping, Sequence

from draftbench.report.prose import (
    interval,
    joined,
    label,
    overall,
    ratio_words,
    sample_size,
    setting_name,
)
from draftbench.report.repetition import evidence_before, repeats_at_all
from draftbench.report.summary import MethodInfo, Setting, Summary
from draftbench.report.tex import count, number


def budget_sentences(summary: Summary, setting: Setting) -> str:
    """The best budget, of whole replies and before repetition, and the best tree beside the linear block."""
    parts = (budget_sentence, budget_before_sentence, over_line_sentence)
    return " ".join(filter(None, (part(summary, setting) for part in parts)))


def budget_sentence(summary: Summary, setting: Setting) -> str:
    """Where the best budget lies, and what the linear block does beside it."""
    ratios = {row.method: row.evidence.ratio for row in overall(summary, setting) if row.evidence is not None}
    linear = [method for method in summary.methods if method.algorithm == "dflash" and method.name in ratios]
    best, budgets = _best_tree(summary, ratios)
    if best is None:
        return f"No tree method has a speedup{setting_name(summary, setting)}."
    if len(budgets) == 1:
        where = f"The one budget, {budgets[0]} nodes, reaches {number(ratios[best.name])} times AR’s speed"
    else:
        listed = joined([str(budget) for budget in budgets])
        where = (
            f"Of the budgets {listed} the fastest is {_budget_words(best, budgets)} "
            f"with {number(ratios[best.name])} times AR’s speed"
        )
    beside = [f"{method.label} reaches {number(ratios[method.name])}" for method in linear]
    name = setting_name(summary, setting)
    return f"{where}{name}" + (f"; {joined(beside)}." if beside else ".")


def budget_before_sentence(summary: Summary, setting: Setting) -> str:
    """The fastest of several budgets before repetition; empty where little is repeated."""
    ratios = {name: evidence.ratio for name, evidence in evidence_before(summary, setting).items()}
    best, budgets = _best_tree(summary, ratios)
    if best is None or len(budgets) < 2:
        return ""
    return (
        f"Up to the first repeated 8-gram of either output it is {_budget_words(best, budgets)} "
        f"with {number(ratios[best.name])}."
    )


def over_line_sentence(summary: Summary, setting: Setting) -> str:
    """The fastest tree against the linear block itself, in the sessions of both; empty without a number."""
    known = {
        row.method: (row, row.evidence)
        for row in summary.over_line
        if (row.model, row.tp) == setting and row.evidence is not None
    }
    if not known:
        return ""
    best, evidence = max(known.values(), key=lambda pair: pair[1].ratio)
    num_split = best.num_split_sessions
    split = f"; on another machine of the same kind in {count(num_split, 'session')}" if num_split else ""
    before = [
        ratio_words(row)
        for row in summary.over_line_before_repetition
        if ((row.model, row.tp), row.method) == (setting, best.method)
        and row.evidence is not None
        and repeats_at_all(summary, setting)
    ]
    return (
        f"Paired with {label(summary, best.reference)} itself, {label(summary, best.method)} has "
        f"{number(evidence.ratio)} times its speed{setting_name(summary, setting)} "
        f"({interval(evidence)}; {sample_size(evidence)}{split})"
        + "".join(f", and {ratio} up to the first repeated 8-gram of either output" for ratio in before)
        + "."
    )


def _best_tree(summary: Summary, ratios: Mapping[str, float]) -> tuple[MethodInfo | None, list[int]]:
    """The fastest of the trees that have a ratio, and all their budgets, sorted."""
    trees = [method for method in summary.methods if method.budget is not None and method.name in ratios]
    best = max(trees, key=lambda method: ratios[method.name], default=None)
    return best, sorted({method.budget or 0 for method in trees})


def _budget_words(method: MethodInfo, budgets: Sequence[int]) -> str:
    """A budget and its place among others, which are sorted."""
    ends = {budgets[0]: "the smallest", budgets[-1]: "the largest"}
    return f"{method.budget} nodes ({ends.get(method.budget or 0, 'in the middle')})"
