"""The reader's question: which method to deploy."""

from collections.abc import Sequence

from draftbench.report.prose import evidence_words, joined, label, overall, verdict_sentence
from draftbench.report.repetition import evidence_before
from draftbench.report.summary import Comparison, Evidence, Setting, Summary
from draftbench.report.tex import count

ADVICE = {
    "faster": "Deploy {method} for single requests.",
    "slower": "Stay with AR: even the best drafting method is slower.",
    "cannot tell": "Nothing supports a change yet: measure more sessions.",
    "within one session": (
        "This is an observation, not a recommendation: another start of the services may differ. Measure 3 "
        "or more sessions before deciding."
    ),
}


def recommendation(summary: Summary, setting: Setting) -> str:
    """The reader's question: which method to deploy."""
    if summary.baseline is None:
        return "The campaign has no autoregressive method, so nothing can be said about speedups."
    rows = overall(summary, setting)
    if not rows:
        return "The campaign compares no drafting method on single requests."
    best = rows[0]
    if best.evidence is None:
        reasons = ", ".join(f"{label(summary, row.method)}: {row.mark}" for row in rows)
        return f"No method could be compared with AR ({reasons}). Stay with AR until the cells are measured."
    sentence = verdict_sentence(summary, best)
    faster = [(row, row.evidence) for row in rows if row.evidence and row.evidence.verdict == "faster"]
    if best.evidence.verdict == "cannot tell" and faster:  # its sessions are too few, another's are not
        advice = f"{verdict_sentence(summary, faster[0][0])} {_advice(summary, setting, *faster[0])}"
    else:
        advice = _advice(summary, setting, best, best.evidence)
    return f"{sentence} {_rivals(summary, rows)}{advice}{_better_known(summary, rows)}"


def _advice(summary: Summary, setting: Setting, best: Comparison, evidence: Evidence) -> str:
    """What follows; a gain that is not there before outputs repeat themselves is none to deploy for."""
    before = evidence_before(summary, setting).get(best.method)
    name = label(summary, best.method)
    advice = ADVICE[evidence.verdict].format(method=name)
    ahead = _ahead_before(summary, setting, best.method)
    if evidence.verdict == "within one session":
        return f"{_before_words(summary, setting, best)}{ahead}{advice}"
    if evidence.verdict != "faster" or before is None:
        return advice
    if before.verdict == "faster":
        return (
            f"{name} is faster also before its or AR’s output first repeats itself: "
            f"{evidence_words(before)}. {ahead}{advice}"
        )
    return (
        f"Before its or AR’s output first repeats itself the gain of {name} does not hold: "
        f"{evidence_words(before)}. {ahead}Deploy it only where outputs repeat themselves as much as these."
    )


def _before_words(summary: Summary, setting: Setting, row: Comparison) -> str:
    """The ratio that a loop has no part in, where outputs repeat themselves much; with a space behind."""
    before = evidence_before(summary, setting).get(row.method)
    said = "Before its or AR’s output first repeats itself it is"
    return "" if before is None else f"{said} {evidence_words(before)}. "


def _ahead_before(summary: Summary, setting: Setting, method: str) -> str:
    """Which other method has the highest ratio before repetition, where one does; with a space behind."""
    known = evidence_before(summary, setting)
    ahead = max(known, key=lambda name: known[name].ratio, default=method)
    if ahead == method:
        return ""
    words = evidence_words(known[ahead]) + ("" if known[ahead].low is not None else " in one session")
    return f"Up to there {label(summary, ahead)} has the highest ratio, {words}. "


def overview_sentence(best: Sequence[Comparison]) -> str:
    """The best methods of several settings in one sentence, one for each setting."""
    if not best:
        return "The campaign compares no drafting method on single requests."
    words = {
        "faster": "faster than AR in {}",
        "slower": "slower than AR in {}",
        "cannot tell": "not to be told from AR in {}",
        "within one session": "known within one session only in {}",
    }
    verdicts = [row.evidence.verdict for row in best if row.evidence]
    parts = [words[verdict].format(verdicts.count(verdict)) for verdict in words if verdict in verdicts]
    if len(verdicts) < len(best):
        parts.append(f"without a number in {len(best) - len(verdicts)}")
    where = f"Of {count(len(best), 'setting')} (model and TP size)"
    said = f"{where} the fastest drafting method is {joined(parts)}."
    caution = "within one session" in verdicts
    return f"{said} {ADVICE['within one session']}" if caution else said


def _rivals(summary: Summary, rows: Sequence[Comparison]) -> str:
    """Methods whose intervals overlap the best one's."""
    best = rows[0].evidence
    if best is None or best.low is None:
        return ""
    names = [
        label(summary, row.method)
        for row in rows[1:]
        if row.evidence and row.evidence.high is not None and row.evidence.high >= best.low
    ]
    return f"Its interval overlaps with that of {joined(names)}, so their order is open. " if names else ""


def _better_known(summary: Summary, rows: Sequence[Comparison]) -> str:
    """The best method that has an interval, where the best of all has none."""
    known = [row for row in rows if row.evidence and row.evidence.low is not None]
    if not known or known[0] is rows[0]:
        return ""
    before = _before_words(summary, (known[0].model, known[0].tp), known[0])
    return f" Of the methods with an interval: {verdict_sentence(summary, known[0])} {before}".rstrip()
