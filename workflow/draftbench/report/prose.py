"""Sentences that come from the data and hold for any outcome: faster, slower, undecided, failed, absent.

All functions return plain text; the templates escape it.
"""

from collections import Counter
from collections.abc import Container, Sequence

from draftbench.report.notes import sizes
from draftbench.report.summary import Acceptance, Comparison, Evidence, Exactness, Setting, Summary
from draftbench.report.tex import count, number, percent, significant


def setting_name(summary: Summary, setting: Setting) -> str:
    """What tells a setting from the campaign's others: `, TP 4`, `, llama, TP 1`, or nothing."""
    model, tp = setting
    parts = [model] if len(summary.models) > 1 else []
    parts += [f"TP\u00a0{tp}"] if len(summary.tps) > 1 else []
    return "".join(f", {part}" for part in parts)


def setting_title(summary: Summary, setting: Setting) -> str:
    """The same as a heading."""
    return setting_name(summary, setting).removeprefix(", ")


def label(summary: Summary, method: str) -> str:
    """A method's name in the report."""
    return next(info.label for info in summary.methods if info.name == method)


def sample_size(evidence: Evidence) -> str:
    """All three sizes of a comparison."""
    units = f"{count(evidence.num_units, evidence.unit)}, " if evidence.unit != "run" else ""
    sessions, requests = count(evidence.num_sessions, "session"), count(evidence.num_requests, "request")
    return f"n = {sessions}, {units}{requests}"


def split_words(row: Comparison) -> str:
    """In how many sessions the method and AR ran on different machines, where in any."""
    num_split = row.num_split_sessions
    return f"; AR on another machine of the same kind in {count(num_split, 'session')}" if num_split else ""


def split_sentence(summary: Summary, setting: Setting, workloads: Container[str]) -> str:
    """Which methods' values of some workloads come from other machines than AR's, with a space in front."""
    names = dict.fromkeys(
        label(summary, row.method)
        for row in summary.comparisons
        if (row.model, row.tp) == setting and row.workload in workloads and row.num_split_sessions
    )
    where = "in a session ran on another machine than AR, of the same kind: machines differ too"
    return f" {joined(list(names))} {where}." if names else ""


def interval(evidence: Evidence) -> str:
    """The 95 % interval, or the spread of the prompts labelled as such."""
    if evidence.low is not None and evidence.high is not None:
        return f"95\u00a0% interval {number(evidence.low)} to {number(evidence.high)}"
    if len(evidence.per_unit) < 2:
        return "no interval"
    low, high = min(evidence.per_unit), max(evidence.per_unit)
    return f"single {evidence.unit}s {number(low)} to {number(high)} within one session, so no interval"


def verdict_sentence(summary: Summary, row: Comparison) -> str:
    """One comparison in words."""
    name = label(summary, row.method)
    if row.evidence is None:
        return f"{name} has no speedup ({row.mark}: {row.reason})."
    ratio = f"{number(row.evidence.ratio)} times AR’s output speed"
    support = f"{interval(row.evidence)}; {sample_size(row.evidence)}{split_words(row)}"
    said = {
        "faster": f"{name} is faster than AR: {ratio}",
        "slower": f"{name} is slower than AR: {ratio}",
        "cannot tell": f"Whether {name} is faster than AR the data cannot tell: {ratio}",
        "within one session": f"{name} reached {ratio} in the one session measured",
    }
    return f"{said[row.evidence.verdict]} ({support})."


def overall(summary: Summary, setting: Setting) -> list[Comparison]:
    """The comparisons over all single requests at a setting, best first, those without a number last."""
    rows = [row for row in summary.comparisons if (row.model, row.tp) == setting and row.workload is None]
    return sorted(rows, key=lambda row: -(row.evidence.ratio if row.evidence else 0.0))


def together(summary: Summary, rows: Sequence[Comparison | Acceptance]) -> str:
    """What rows over several workloads cover: all single requests, or the workloads by name."""
    return all_or_some(summary, {name for row in rows for name in row.workloads})


def all_or_some(summary: Summary, workloads: Container[str]) -> str:
    """`all single requests together`, or which workloads' they are."""
    single = [workload.name for workload in summary.workloads if workload.kind == "single"]
    covered = [name for name in single if name in workloads]
    return (
        "all single requests together"
        if covered == single
        else f"single requests of {joined(covered)} together"
    )


def capitalised(text: str) -> str:
    """The text with its first letter large, the others as they are."""
    return text[:1].upper() + text[1:]


def joined(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def load_sentence(summary: Summary, setting: Setting) -> str | None:
    """What is left of the gain under load: the best single-request method at each concurrency."""
    rows = overall(summary, setting)
    if not rows or rows[0].evidence is None:
        return None
    method = rows[0].method
    levels = {w.name: w.concurrency for w in summary.workloads if w.concurrency is not None}
    found = [
        (levels[row.workload], row)
        for row in summary.comparisons
        if (row.model, row.tp, row.method) == (*setting, method) and row.workload in levels
    ]
    known = [(level, row.evidence) for level, row in sorted(found, key=_level) if row.evidence]
    if not known:
        return None
    is_split = any(row.num_split_sessions for _, row in found)
    split = " AR ran on another machine of the same kind." if is_split else ""
    parts = [f"{number(evidence.ratio)} at {level}" for level, evidence in known]
    level, last = known[-1]
    end = {
        "faster": "it is still faster than AR there",
        "slower": "it is slower than AR there",
        "cannot tell": "there the data cannot tell it from AR",
        "within one session": (
            "each from one session, so without intervals"
            if all(evidence.low is None for _, evidence in known)
            else "the last from one session, so without an interval"
        ),
    }[last.verdict]
    return (
        f"The ratio of {label(summary, method)} to AR in total output speed is "
        f"{', '.join(parts)} {'request' if level == 1 else 'requests'} in flight; {end}.{split}"
    )


def _level(pair: tuple[int | None, Comparison]) -> int:
    return pair[0] or 0


def exactness_sentence(summary: Summary, setting: Setting) -> str | None:
    """Whether the drafting methods' texts equal the baseline's, with the baseline's own repeats beside it."""
    rows = [row for row in summary.exactness if (row.model, row.tp) == setting]
    drafting = [row for row in rows if not row.is_baseline]
    if not drafting:
        return None
    compared, equal = _total(drafting, "num_compared"), _total(drafting, "num_equal")
    if equal == compared:
        said = f"All {compared} compared outputs of the drafting methods equal AR’s token for token."
    else:
        kinds = (
            (_total(drafting, "num_ties"), _tie_words(drafting)),
            (_total(drafting, "num_faults"), "by more than rounding, which is a fault"),
            (_total(drafting, "num_unmeasured"), "where the target’s logit gap was not measured"),
        )
        parted = ", ".join(f"{num} {how}" for num, how in kinds if num)
        said = (
            f"{equal} of {compared} compared outputs of the drafting methods equal AR’s token for token "
            f"({percent(equal / compared)}). Parted from it: {parted}. Nothing is compared after that: "
            f"{_compared_share(drafting)} of the tokens are."
        )
    own = [row for row in rows if row.is_baseline]
    own_compared, own_equal = _total(own, "num_compared"), _total(own, "num_equal")
    beside = (
        f" AR against its own repeats: {own_equal} of {own_compared}."
        if own_compared
        else " AR was not repeated, so there is no mismatch of its own to set beside it."
    )
    return said + beside


def _tie_words(rows: Sequence[Exactness]) -> str:
    gaps = [row.largest_tie_gap for row in rows if row.largest_tie_gap is not None]
    limits = [row.tie_limit for row in rows if row.tie_limit is not None]
    if not gaps or not limits:
        return "at a tie within the number format’s resolution"
    widest, limit = significant(max(gaps)), significant(max(limits))
    return (
        "at a tie within the number format’s resolution (the two logits at most "
        f"{widest} apart; up to {limit} counts as a tie)"
    )


def _compared_share(rows: Sequence[Exactness]) -> str:
    return percent(_total(rows, "num_compared_tokens") / _total(rows, "num_tokens"))


def _total(rows: Sequence[Exactness], field: str) -> int:
    return sum(getattr(row, field) for row in rows)


def coverage_sentence(summary: Summary) -> str:
    """How much of the campaign is behind the numbers."""
    counts = summary.counts
    if counts.num_ok_cells == counts.num_cells:
        said = (
            f"All {counts.num_cells} cells are complete: {counts.num_ok} of {counts.num_attempted} requests "
            "are ok."
        )
    else:
        kinds = (
            (counts.num_requests_failed_cells, "with failed requests"),
            (counts.num_void_cells, "void by a broken rule"),
            (counts.num_failed_cells, "that failed as a whole"),
            (counts.num_missing_cells, "not run"),
        )
        listed = ", ".join(f"{num} {how}" for num, how in kinds if num)
        verb = "is" if counts.num_cells - counts.num_ok_cells == 1 else "are"
        said = (
            f"{counts.num_ok_cells} of {counts.num_cells} cells are complete; without a number {verb} "
            f"{listed}. {counts.num_ok} of {counts.num_attempted} requests are ok."
        )
    return f"{said} {doubts_sentence(summary)}".strip()


def doubts_sentence(summary: Summary) -> str:
    """Which doubts how many cells carry, most frequent first; empty without any."""
    kinds = Counter(kind for row in summary.cells for kind in {flag.split(":")[0] for flag in row.flags})
    if not kinds:
        return ""
    listed = ", ".join(f"{kind} ({num})" for kind, num in sorted(kinds.items(), key=_most_frequent))
    num_flagged = summary.counts.num_flagged_cells
    carry = "carries" if num_flagged == 1 else "carry"
    num_cells = count(num_flagged, "cell")
    return f"{num_cells} of {summary.counts.num_cells} {carry} doubts: {listed}; see appendix B."


def _most_frequent(kind_and_count: tuple[str, int]) -> tuple[int, str]:
    return -kind_and_count[1], kind_and_count[0]


def is_doubtful(summary: Summary) -> bool:
    """Whether most cells carry doubts, so that no number of the report should be quoted."""
    return summary.counts.num_flagged_cells * 2 > summary.counts.num_cells


def workload_sentence(summary: Summary, setting: Setting, workload: str) -> str | None:
    """The best method of a workload in words; None where none was planned."""
    rows = [row for row in summary.comparisons if (row.model, row.tp) == setting and row.workload == workload]
    if not rows:
        return None
    best = max(rows, key=lambda row: row.evidence.ratio if row.evidence else 0.0)
    where = f"{workload}{setting_name(summary, setting)}"
    if best.evidence is None:
        return f"In {where} no method could be compared with AR."
    return f"In {where} the highest ratio: {verdict_sentence(summary, best)}"


def ranking_sentence(summary: Summary, setting: Setting) -> str:
    """All methods in one sentence, best first, and what their order is worth."""
    rows = overall(summary, setting)
    known = [row for row in rows if row.evidence is not None]
    if not known:
        return f"No method has a speedup{setting_name(summary, setting)}."
    parts = [f"{label(summary, row.method)} {ratio_words(row)}" for row in known]
    without = [f"{label(summary, row.method)} ({row.mark})" for row in rows if row.evidence is None]
    evidence = [row.evidence for row in known if row.evidence]
    said = f"Speedup over AR{setting_name(summary, setting)}, {together(summary, rows)}: {joined(parts)}"
    said += f" ({sizes(evidence)} each)."
    if any(one.low is None for one in evidence):
        what = "this order" if len(known) > 1 else "this"
        said += f" Within one session {what} is an observation without an interval."
    return said + (f" Without a number: {joined(without)}." if without else "")


def ratio_words(row: Comparison) -> str:
    """The ratio, with interval and verdict where there is an interval; empty without a number."""
    return "" if row.evidence is None else evidence_words(row.evidence)


def evidence_words(evidence: Evidence) -> str:
    """The same of what is known to have a number."""
    if evidence.low is None or evidence.high is None:
        return number(evidence.ratio)
    bounds = f"{number(evidence.low)} to {number(evidence.high)}"
    return f"{number(evidence.ratio)} ({bounds}, {evidence.verdict})"
