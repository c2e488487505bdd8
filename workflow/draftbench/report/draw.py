"""Which figures a summary supports: each as a fragment, all named in `figures.json` with their captions.

A figure without data is left out, so no report has an empty one; a figure with holes shows them.
"""

from collections.abc import Iterator
from pathlib import Path

from draftbench.files import write_atomic
from draftbench.records import StrictModel
from draftbench.report import plots
from draftbench.report.load import read_record
from draftbench.report.plots.base import Plot
from draftbench.report.summary import Summary

FIGURES_FILE = "figures.json"


class FigureEntry(StrictModel):
    """A figure of the report."""

    name: str
    section: str
    caption: str


class FigureList(StrictModel):
    """All figures in the order of the report."""

    figures: list[FigureEntry]


def draw_figures(summary_json: Path, out: Path) -> FigureList:
    """Write `<name>.tex` for every figure and `figures.json` into `out`; older fragments go.

    Raises:
        ReportError: the summary is damaged, or a coordinate is not finite.
    """
    summary = read_record(summary_json, Summary)
    figures = list(_figures(summary))
    out.mkdir(parents=True, exist_ok=True)
    wanted = {f"{figure.name}.tex" for figure in figures}
    for old in out.glob("*.tex"):
        if old.name not in wanted:
            old.unlink()
    for figure in figures:
        write_atomic(out / f"{figure.name}.tex", figure.body)
    entries = FigureList(
        figures=[FigureEntry(name=f.name, section=f.section, caption=f.caption) for f in figures]
    )
    write_atomic(out / FIGURES_FILE, entries.model_dump_json(indent=1) + "\n")
    return entries


def _figures(summary: Summary) -> Iterator[Plot]:
    for make in plots.ALL:
        yield from make(summary)
