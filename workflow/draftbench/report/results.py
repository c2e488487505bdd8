"""Which results the report may use; refuses what must not be mixed.

A result is used only if it was measured under the spec that its cell has now, and in an adaptive campaign
only up to the session that was enough.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftbench.adaptive import groups
from draftbench.config import Campaign, cells, load_campaign
from draftbench.errors import ReportError
from draftbench.report.load import (
    FAILURE_SUFFIX,
    GAPS_FILE,
    LoadedCampaign,
    LoadedCell,
    enumerate_names,
    is_current,
    load_cell,
    read_json,
)
from draftbench.report.sessions import settle
from draftbench.report.summary import AdaptiveGroup

logger = logging.getLogger(__name__)


def load_results(
    campaign_json: Path,
    specs_json: Path,
    results: Path,
    *,
    is_partial: bool = False,
    client_sha256: str | None = None,
) -> LoadedCampaign:
    """Everything that the report may use.

    Args:
        campaign_json: the resolved campaign.
        specs_json: {cell name: spec}.
        results: directory of <cell>.json and <cell>.failed.json.
        is_partial: a missing cell becomes a named hole instead of an error.
        client_sha256: hash of today's measuring code; None compares the results with each other.

    Raises:
        ReportError: a file is damaged, a cell is missing, a result has another spec, or there is no result.
    """
    campaign = load_campaign(read_json(campaign_json), campaign_json)
    specs = read_json(specs_json)
    found, adaptive = _due(campaign, [load_cell(cell, results) for cell in cells(campaign)], specs)
    if not is_partial:
        _refuse_other_specs(found, specs, results)
    found = [cell if is_current(cell, specs) else replace(cell, result=None) for cell in found]
    missing = [cell.plan.name for cell in found if cell.result is None]
    if missing and not is_partial:
        raise ReportError(
            f"{results}: expected a result for every cell, got none for {enumerate_names(missing)}; "
            "run the same command again, or build report/partial.pdf"
        )
    if len(missing) == len(found):
        raise ReportError(f"{results}: expected at least one result, got none; measure a cell first")
    stale, unplanned = _stale_cells(found, client_sha256), _unplanned_files(campaign, found, results)
    return LoadedCampaign(campaign, found, adaptive, stale, unplanned)


def _due(
    campaign: Campaign, found: Sequence[LoadedCell], specs: Mapping[str, Any]
) -> tuple[list[LoadedCell], list[AdaptiveGroup]]:
    """The cells without the sessions that nobody asked for, and how many each group came to."""
    current = {cell.plan.name: cell for cell in found if is_current(cell, specs)}
    undue: set[str] = set()
    adaptive = []
    for group in groups(campaign):
        outcome = settle(campaign, group, current)
        undue |= {c.name for c in group.between(outcome.num_sessions + 1, campaign.session_limit)}
        adaptive.append(outcome)
    return [cell for cell in found if cell.plan.name not in undue], adaptive


def _refuse_other_specs(found: Sequence[LoadedCell], specs: Mapping[str, Any], results: Path) -> None:
    others = [cell.plan.name for cell in found if cell.result is not None and not is_current(cell, specs)]
    if others:
        raise ReportError(
            f"{results}: expected results of the campaign's present spec, got another spec in "
            f"{enumerate_names(others)}; delete these files to measure the cells again"
        )


def _stale_cells(found: Sequence[LoadedCell], client_sha256: str | None) -> list[str]:
    results = [cell.result for cell in found if cell.result is not None]
    expected = client_sha256 or max(results, key=lambda result: result.ended_at).client_sha256
    stale = [result.cell for result in results if result.client_sha256 != expected]
    if stale:
        logger.warning("measured by other client code than today's: %s", ", ".join(stale))
    return stale


def _unplanned_files(campaign: Campaign, found: Sequence[LoadedCell], results: Path) -> list[str]:
    used = {f"{cell.plan.name}.json" for cell in found if cell.result is not None} | {GAPS_FILE}
    # A service that does not start leaves a reason beside all its cells, also those that were not due yet.
    used |= {f"{cell.name}{FAILURE_SUFFIX}" for cell in cells(campaign)}
    names = (path.name for path in results.glob("*.json"))
    return sorted(name for name in names if name not in used and not name.startswith("."))
