"""Read a campaign's result files. Nothing is repaired here."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from draftbench.config import Campaign, Cell
from draftbench.errors import ReportError
from draftbench.files import canonical_json
from draftbench.records import CellFailure, CellResult
from draftbench.report.summary import AdaptiveGroup

Record = TypeVar("Record", bound=BaseModel)
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
    """A campaign and its cells in the file's order.

    Attributes:
        campaign: the plan.
        cells: every cell that was due.
        adaptive: the sessions of every group whose number the data decide.
        stale_cells: names of results that other client code measured.
        unplanned_files: result files that belong to no such cell.
    """

    campaign: Campaign
    cells: list[LoadedCell]
    adaptive: list[AdaptiveGroup]
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


def load_cell(cell: Cell, results: Path) -> LoadedCell:
    """What was found of a cell in the directory of results.

    Raises:
        ReportError: a file is damaged, or holds another cell.
    """
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


def is_current(cell: LoadedCell, specs: Mapping[str, Any]) -> bool:
    """Whether a cell has a result that was measured under the spec that it has now."""
    found = cell.result
    return found is not None and canonical_json(found.spec) == canonical_json(specs.get(cell.plan.name))


def enumerate_names(names: list[str], limit: int = 6) -> str:
    """The first names and how many more there are."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
