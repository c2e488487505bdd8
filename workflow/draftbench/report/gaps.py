"""Logit gaps at the first differing tokens: the file that carries them, and how to measure them."""

from pathlib import Path

from draftbench.records import StrictModel
from draftbench.report.load import read_record
from draftbench.report.outputs import Gaps
from draftbench.stats.exactness import LogitGap, NumberFormat


class GapRecord(StrictModel):
    """One measured gap."""

    cell: str
    request_id: str
    position: int
    gap: float
    max_abs_logit: float


class GapFile(StrictModel):
    """All measured gaps of a campaign with the target's number format."""

    dtype: str
    num_layers: int
    num_divergences: int
    gaps: list[GapRecord]


def read_gaps(path: Path | None) -> Gaps:
    """The gaps of a file; none without a file.

    Raises:
        ReportError: the file is damaged.
    """
    if path is None:
        return Gaps(None, {})
    record = read_record(path, GapFile)
    by_request = {(gap.cell, gap.request_id): LogitGap(gap.gap, gap.max_abs_logit) for gap in record.gaps}
    return Gaps(NumberFormat(record.dtype, record.num_layers), by_request)
