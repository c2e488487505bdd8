"""Whether cells that get their sessions together have enough of them: one answer for workflow and report.

It follows from the results alone, so that it is the same after an interruption, in a copy and in a year.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from draftbench.adaptive import Group, Verdict, groups
from draftbench.config import Campaign, load_campaign
from draftbench.errors import ReportError
from draftbench.files import write_json
from draftbench.report.compare import comparisons
from draftbench.report.group import CellIndex
from draftbench.report.load import LoadedCell, enumerate_names, is_current, load_cell, read_json
from draftbench.report.summary import AdaptiveGroup, State
from draftbench.stats.speedup import ASKED_HALF_WIDTH, needs_more_sessions


def asked_half_width(campaign: Campaign) -> float:
    """How narrow the intervals should be, relative."""
    return campaign.adaptive.half_width if campaign.adaptive else ASKED_HALF_WIDTH


def widest_half_width(campaign: Campaign, cells: Sequence[LoadedCell]) -> float | None:
    """Of the speedups of some cells, as the report computes them; None where one has no interval yet.

    The comparison of texts is no part of this: a method with faults gets the sessions of the others.
    """
    rows = comparisons(CellIndex.of(campaign, cells), [], campaign.seed)
    widths = [row.evidence.half_width if row.evidence else None for row in rows]
    known = [width for width in widths if width is not None]
    return max(known) if len(known) == len(widths) else None


def settle(campaign: Campaign, group: Group, current: Mapping[str, LoadedCell]) -> AdaptiveGroup:
    """How many sessions a group came to, judged after each.

    Args:
        campaign: whose group it is.
        group: of cells.
        current: the cells that have a result of their present spec, by name.
    """
    for session in range(campaign.sessions, campaign.session_limit + 1):
        names = [cell.name for cell in group.between(1, session)]
        if not all(name in current for name in names):
            return _outcome(group, session, None, "unfinished")
        half_width = widest_half_width(campaign, [current[name] for name in names])
        if not needs_more_sessions(half_width, asked=asked_half_width(campaign)):
            return _outcome(group, session, half_width, "reached")
    return _outcome(group, campaign.session_limit, half_width, "limit")


def _outcome(group: Group, num_sessions: int, half_width: float | None, state: State) -> AdaptiveGroup:
    return AdaptiveGroup(
        model=group.model,
        tp=group.tp,
        workloads=list(group.workloads),
        num_sessions=num_sessions,
        half_width=half_width,
        state=state,
    )


def judge(
    campaign_json: Path, specs_json: Path, results: Path, out: Path, *, group_name: str, session: int
) -> Verdict:
    """Judge a group after a session, and write the verdict.

    Args:
        campaign_json: the resolved campaign.
        specs_json: {cell name: spec}.
        results: directory of the results.
        out: the verdict's file.
        group_name: which cells are judged.
        session: the last one that counts.

    Raises:
        ReportError: there is no such group, a result is damaged, missing, or has another spec.
    """
    campaign = load_campaign(read_json(campaign_json), campaign_json)
    specs = read_json(specs_json)
    group = next((group for group in groups(campaign) if group.name == group_name), None)
    if group is None:
        raise ReportError(
            f"expected a group of the campaign ({', '.join(g.name for g in groups(campaign))}), got "
            f"{group_name}; run the workflow again"
        )
    cells = [load_cell(cell, results) for cell in group.between(1, session)]
    missing = [cell.plan.name for cell in cells if not is_current(cell, specs)]
    if missing:
        raise ReportError(
            f"{results}: expected a result of the present spec for every cell, got none for "
            f"{enumerate_names(missing)}; delete what there is of them to measure them again"
        )
    half_width = widest_half_width(campaign, cells)
    needs_more = needs_more_sessions(half_width, asked=asked_half_width(campaign))
    verdict = Verdict(group=group_name, num_sessions=session, half_width=half_width, needs_more=needs_more)
    write_json(out, verdict.model_dump(mode="json"))
    return verdict
