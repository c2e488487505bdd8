"""What stands below a figure or above a table of comparisons: n, and the meaning of its signs."""

from collections.abc import Iterable, Sequence

from draftbench.report.summary import Comparison, Evidence, RoundTime
from draftbench.report.tex import count

EXCLUDED, SPLIT = "\u2020", "\u2021"


def signs(rows: Iterable[Comparison]) -> str:
    """What stands behind a name or number: a session is left out, or spans two machines."""
    listed = list(rows)
    excluded = EXCLUDED if any(row.num_excluded_sessions for row in listed) else ""
    return excluded + split_sign(listed)


def figure_note(rows: Sequence[Comparison]) -> str:
    """The note of bars: whiskers, dots, daggers and red words, as far as they occur."""
    known = [row.evidence for row in rows if row.evidence]
    has_dots = any(len(evidence.per_unit) > 1 for evidence in known)
    dots = [f"Dots: single {known[0].unit}s."] if has_dots else []
    return _note(rows, "a bar", "Whiskers", [*dots, "Dashed: AR."])


def table_note(rows: Sequence[Comparison]) -> str:
    """The note of a table: brackets, daggers and red words, as far as they occur."""
    return _note(rows, "each", "Brackets", [])


def bold_note(rows: Iterable[Comparison]) -> str:
    """Which number of a column is bold: a ratio of fewer sessions than the others never is."""
    known = [row for row in rows if row.evidence]
    excluded = [row for row in known if row.num_excluded_sessions]
    if len(excluded) == len(known):
        return ""
    return "Bold: highest of the column" + (f" without a {EXCLUDED}." if excluded else ".")


def split_note(rows: Iterable[Comparison | RoundTime]) -> str:
    """What the sign of two machines means, where any of the rows has it; else nothing."""
    return f"{SPLIT}: in a session AR ran on another machine of the same kind." if _any_split(rows) else ""


def split_sign(rows: Iterable[Comparison | RoundTime]) -> str:
    """The sign itself."""
    return SPLIT if _any_split(rows) else ""


def _any_split(rows: Iterable[Comparison | RoundTime]) -> bool:
    return any(row.num_split_sessions for row in rows)


def _note(rows: Sequence[Comparison], each: str, interval: str, further: Sequence[str]) -> str:
    marked = ["Words in red: no number, see the appendix."] if any(row.mark for row in rows) else []
    known = [row.evidence for row in rows if row.evidence]
    if not known:
        return " ".join(marked)
    notes = [f"{sizes(known)} {each}."]
    if any(evidence.low is not None for evidence in known):
        notes.append(f"{interval}: 95\u00a0% intervals over sessions and {known[0].unit}s.")
    if any(evidence.low is None for evidence in known):
        notes.append("One session has no interval.")
    notes += further
    if EXCLUDED in signs(rows):
        notes.append(f"{EXCLUDED}: fewer sessions than planned, the others failed or were not run.")
    if split := split_note(rows):
        notes.append(split)
    return " ".join([*notes, *marked])


def sizes(known: Sequence[Evidence]) -> str:
    """N of several comparisons: sessions and units."""
    sessions = size_range([evidence.num_sessions for evidence in known], "session")
    return f"n = {sessions}, {size_range([evidence.num_units for evidence in known], known[0].unit)}"


def size_range(numbers: Sequence[int], noun: str) -> str:
    """`5 prompts` or `4 to 5 prompts`."""
    low, high = min(numbers), max(numbers)
    return count(low, noun) if low == high else f"{low} to {count(high, noun)}"
