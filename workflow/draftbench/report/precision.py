"""Sentences on how often the services were started, and how precise that makes the numbers."""

from draftbench.report.summary import AdaptiveGroup, Summary
from draftbench.report.tex import count, percent
from draftbench.stats.speedup import needs_more_sessions


def interval_paragraph(summary: Summary) -> str:
    """What the campaign's number of sessions lets the report say."""
    if summary.sessions == 1:
        return (
            "The services were started once, so the numbers hold within one session: requests of one start "
            "are not independent repeats, and no interval is given. The spread of single prompts is shown "
            "instead, and is named as such."
        )
    return (
        f"{_starts_sentence(summary)} Intervals are 95\u00a0% over sessions and "
        "prompts, resampled together because every session asks the same prompts. Where an interval covers "
        "1, the report says that the data cannot tell. An interval holds for other starts and other prompts "
        "like these, not for another machine, model or drafter, and is not corrected for a method’s being "
        "picked as the best of several."
        f"{_precision_sentence(summary)}"
    )


def _starts_sentence(summary: Summary) -> str:
    """How often, or how often it is planned where a cell has not been run."""
    often = f"{summary.sessions} times"
    if summary.adaptive:
        often = f"{summary.sessions} to {summary.max_sessions} times, as often as the intervals asked for"
    if summary.counts.num_missing_cells:
        return f"By the plan the services are started {often}; not all of it has been run."
    return f"The services were started {often}."


def _precision_sentence(summary: Summary) -> str:
    """How many comparisons have a wide interval or none, and what narrows them."""
    half_widths = [row.evidence.half_width for row in summary.comparisons if row.evidence]
    known = [half_width for half_width in half_widths if half_width is not None]
    asked = summary.asked_half_width
    num_wide = sum(needs_more_sessions(half_width, asked=asked) for half_width in known)
    num_without = len(half_widths) - len(known)
    said = f" Of {count(len(known), 'interval')} {num_wide} {_are(num_wide)} wider than {plus_minus(asked)}."
    if num_without:
        said += (
            f" {count(num_without, 'comparison')} from one session {_are(num_without)} without an interval."
        )
    if num_wide or num_without:
        more = "max_sessions" if summary.adaptive else "number of sessions"
        said += (
            f" A higher {more} in the campaign file measures only the new sessions; it narrows what differs "
            "between starts. What differs between prompts takes more prompts."
        )
    return said


def _are(number_of: int) -> str:
    return "is" if number_of == 1 else "are"


def plus_minus(share: float | None) -> str:
    """A relative half width, with a decimal where it is no whole percentage; a dash for null."""
    if share is None:
        return percent(None)
    digits = 0 if round(share * 100, 6).is_integer() else 1
    return f"\u00b1\u00a0{percent(share, digits)}"


def stopping_paragraph(summary: Summary) -> str:
    """What an adaptive campaign asked for, what came of it, and what that costs."""
    states = [group.state for group in summary.adaptive]
    outcomes = (
        (states.count("reached"), "as narrow as asked"),
        (states.count("limit"), f"stopped by the limit of {summary.max_sessions} sessions"),
        (states.count("unfinished"), "unfinished"),
    )
    return (
        f"After session {summary.sessions} and every later one, the cells of a row of the table got another "
        f"session, all methods together, while an interval of theirs was wider than "
        f"{plus_minus(summary.asked_half_width)}, up to session {summary.max_sessions}. Of "
        f"{count(len(states), 'row')}, {'; '.join(f'{how}: {num}' for num, how in outcomes if num)}. A rule "
        "that looks at the data before it stops tends to stop where the interval came out narrow by "
        "chance, so these intervals can hold the truth somewhat less often than 95\u00a0%."
    )


def stopped_by(summary: Summary, group: AdaptiveGroup) -> str:
    """Why a group has no further session."""
    return {
        "reached": "as narrow as asked",
        "limit": f"the limit of {summary.max_sessions} sessions",
        "unfinished": "a result is missing",
    }[group.state]
