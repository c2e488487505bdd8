"""The two CSV files: one row per request, one per cell; every cell of them parses back to its value."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from draftbench.definitions import request_tok_per_s
from draftbench.records import RequestRecord
from draftbench.report.load import LoadedCampaign
from draftbench.report.summary import CellRow
from draftbench.stats.exactness import repeated_ngram_share

LONG_FIELDS = frozenset({"chunks", "text", "output_ids"})
PLACE_COLUMNS = ("campaign", "cell", "model", "tp", "method", "session", "workload", "order_index")
DERIVED_COLUMNS = ("request_tok_per_s", "num_chunks", "repeated_8gram_share")


def requests_csv(loaded: LoadedCampaign) -> str:
    """One row per request of every result, failed ones too; texts and chunks stay in the result files."""
    fields = [name for name in RequestRecord.model_fields if name not in LONG_FIELDS]
    rows = []
    for cell in loaded.cells:
        if cell.result is None:
            continue
        service, result = cell.plan.service, cell.result
        place = [result.campaign, result.cell, service.model, service.tp, service.method]
        place += [service.session, result.workload, result.order_index]
        for request in result.requests:
            derived = [
                request_tok_per_s(request),
                len(request.chunks),
                repeated_ngram_share(request.output_ids or []),
            ]
            rows.append([*place, *(getattr(request, name) for name in fields), *derived])
    return to_csv([*PLACE_COLUMNS, *fields, *DERIVED_COLUMNS], rows)


def cells_csv(rows: Iterable[CellRow]) -> str:
    """One row per planned cell, missing ones too."""
    fields = list(CellRow.model_fields)
    return to_csv(fields, ([getattr(row, name) for name in fields] for row in rows))


def to_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """RFC 4180 text; null is an empty field, a list is JSON."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_field(value) for value in row] for row in rows)
    return stream.getvalue()


def _field(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else value
