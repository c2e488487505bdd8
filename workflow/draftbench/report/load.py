"""Read a campaign's result files, and refuse what must not be mixed.

A result is used only if it was measured under the spec that its cell has now. Nothing is repaired here.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from draftbench.config import Campaign, Cell, cells, load_campaign
from draftbench.errors import ReportError
from draftbench.files import canonical_json
from draftbench.records import CellFailure, CellResult

Record = TypeVar("Record", bound=BaseModel)
logger = logging.getLogger(__name__)
FAILURE_SUFFIX = ".failed.json"
GAPS_FILE = "logit-gaps.json"


@dataclass(frozen=True)
class LoadedCell:
    """A planned cell with what was found of it.

    Attributes:
        plan: service and workload.
        result: the measurement, or None.
        failure: why there is none, where that was recorded.
    """

    plan: Cell
    result: CellResult | None
    failure: CellFailure | None


@dataclass(frozen=True)
class LoadedCampaign:
    """A campaign and all its cells in the file's order.

    Attributes:
        campaign: the plan.
        cells: every planned cell.
        stale_cells: names of results that other client code measured.
        unplanned_files: result files that belong to no planned cell.
    """

    campaign: Campaign
    cells: list[LoadedCell]
    stale_cells: list[str]
    unplanned_files: list[str]


def read_json(path: Path) -> Any:
    """Parse a JSON file.

    Raises:
        ReportError: it cannot be read, or is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ReportError(
            f"{path}: expected a readable JSON file, got {error}; delete it and run again"
        ) from None


def read_record(path: Path, model: type[Record]) -> Record:
    """Parse and check one record.

    Raises:
        ReportError: the file does not follow the model.
    """
    try:
        return model.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ReportError(
            f"{path}: {key}: expected a {model.__name__}, got: {first['msg']}; "
            "delete the file to measure its cell again"
        ) from None


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
    found = [_load_cell(cell, results) for cell in cells(campaign)]
    _refuse_other_specs(found, specs, results)
    missing = [cell.plan.name for cell in found if cell.result is None]
    if missing and not is_partial:
        raise ReportError(
            f"{results}: expected a result for every cell, got none for {_enumerate(missing)}; "
            "run the same command again, or build report/partial.pdf"
        )
    if len(missing) == len(found):
        raise ReportError(f"{results}: expected at least one result, got none; measure a cell first")
    return LoadedCampaign(
        campaign, found, _stale_cells(found, client_sha256), _unplanned_files(found, results)
    )


def _load_cell(cell: Cell, results: Path) -> LoadedCell:
    result_path, failure_path = results / f"{cell.name}.json", results / f"{cell.name}{FAILURE_SUFFIX}"
    if result_path.exists():
        result = read_record(result_path, CellResult)
        if result.cell != cell.name:
            raise ReportError(
                f"{result_path}: cell: expected {cell.name}, got {result.cell}; "
                "delete the file to measure its cell again"
            )
        return LoadedCell(cell, result, None)
    failure = read_record(failure_path, CellFailure) if failure_path.exists() else None
    return LoadedCell(cell, None, failure)


def _refuse_other_specs(found: list[LoadedCell], specs: Mapping[str, Any], results: Path) -> None:
    others = [
        cell.plan.name
        for cell in found
        if cell.result is not None
        and canonical_json(cell.result.spec) != canonical_json(specs.get(cell.plan.name))
    ]
    if others:
        raise ReportError(
            f"{results}: expected results of the campaign's present spec, got another spec in "
            f"{_enumerate(others)}; delete these files to measure the cells again"
        )


def _stale_cells(found: list[LoadedCell], client_sha256: str | None) -> list[str]:
    results = [cell.result for cell in found if cell.result is not None]
    expected = client_sha256 or max(results, key=lambda result: result.ended_at).client_sha256
    stale = [result.cell for result in results if result.client_sha256 != expected]
    if stale:
        logger.warning("measured by other client code than today's: %s", ", ".join(stale))
    return stale


def _unplanned_files(found: list[LoadedCell], results: Path) -> list[str]:
    planned = {cell.plan.name for cell in found}
    names = (path.name for path in results.glob("*.json"))
    return sorted(
        name
        for name in names
        if name.removesuffix(FAILURE_SUFFIX).removesuffix(".json") not in planned
        and name != GAPS_FILE
        and not name.startswith(".")
    )


def _enumerate(names: list[str], limit: int = 6) -> str:
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
