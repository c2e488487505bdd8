"""Fill the LaTeX templates and run pdflatex; the same input gives the same bytes."""

import logging
import os
import re
import shutil
import subprocess
import tempfile
from datetime import datetime
from pathlib import Path

import jinja2

from draftbench.errors import ReportError
from draftbench.files import write_atomic
from draftbench.report.budgets import budget_sentences
from draftbench.report.draw import FIGURES_FILE, FigureList
from draftbench.report.engine import room_text
from draftbench.report.environment import difference_table
from draftbench.report.load import read_record
from draftbench.report.loads import reach_sentence, steady_ratio
from draftbench.report.notes import bold_note, split_note, split_sign, table_note
from draftbench.report.programs import TEX_PACKAGES, missing_programs
from draftbench.report.scope import scope_sentence
from draftbench.report.summary import Summary
from draftbench.report.tex import DASH, Raw, breakable, number, percent, significant, tex
from draftbench.report.view import View
from draftbench.stats.quantiles import min_requests

logger = logging.getLogger(__name__)
PDFLATEX_TIMEOUT_S = 300
MAX_TEXT = 400

# What must not be in a finished log: content that is clipped, missing or undefined.
_DEFECTS = re.compile(
    r"^(Overfull \\[hv]box.*|Missing character:.*|.*Citation .* undefined.*|.*Reference .* undefined.*)$",
    re.MULTILINE,
)
_MISSING_STYLE = re.compile(r"File `([^']+\.(?:sty|cls|def))' not found")


def typeset(summary_json: Path, figures: Path, templates: Path, out: Path, *, log: Path) -> None:
    """Make the PDF; what TeX could not place well is logged as a warning and costs nobody a report.

    Args:
        summary_json: the numbers.
        figures: directory with `figures.json` and its fragments.
        templates: directory with report.tex, sections/ and references.bib.
        out: the PDF, replaced as a whole.
        log: where pdflatex's log is kept.

    Raises:
        ReportError: TeX is missing or fails.
    """
    require_tex()
    summary = read_record(summary_json, Summary)
    drawn = read_record(figures / FIGURES_FILE, FigureList)
    source = render(summary, drawn, templates)
    with tempfile.TemporaryDirectory(prefix="draftbench-tex-") as scratch:
        directory = Path(scratch)
        (directory / "report.tex").write_text(source, encoding="utf-8")
        shutil.copy(templates / "references.bib", directory)
        shutil.copytree(figures, directory / "figures", ignore=shutil.ignore_patterns("*.log"))
        _compile(directory, summary.last_ended_at, log)
        write_atomic(out, (directory / "report.pdf").read_bytes())


def require_tex() -> None:
    """Say which packages to install where there is no TeX.

    Raises:
        ReportError: pdflatex or latexmk is not on PATH.
    """
    missing = missing_programs()
    if missing:
        raise ReportError(
            f"expected {' and '.join(missing)} on PATH, found none; "
            f"install them: apt-get install --no-install-recommends {TEX_PACKAGES}"
        )


def render(summary: Summary, figures: FigureList, templates: Path) -> str:
    """The report's LaTeX source.

    Raises:
        ReportError: a template is missing or names something that does not exist.
    """
    view = View(summary, figures)
    environment = jinja2.Environment(
        block_start_string="\\BLOCK{",
        block_end_string="}",
        variable_start_string="\\VAR{",
        variable_end_string="}",
        comment_start_string="\\COMMENT{",
        comment_end_string="}",
        line_comment_prefix="%%",
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 - every value is escaped for LaTeX by `finalize`
        undefined=jinja2.StrictUndefined,
        finalize=tex,
        loader=jinja2.FileSystemLoader(templates),
    )
    environment.filters |= {
        "raw": Raw,
        "breakable": breakable,
        "number": number,
        "percent": percent,
        "significant": significant,
        "ms": _milliseconds,
        "minute": _minute,
        "shorten": _shorten,
    }
    names = [name for name in dir(view) if not name.startswith("_")]
    environment.globals |= {name: getattr(view, name) for name in names}
    functions = (
        bold_note, budget_sentences, difference_table, min_requests, reach_sentence, room_text,
        scope_sentence, split_note, split_sign, steady_ratio, table_note,
    )  # fmt: skip
    environment.globals |= {"dash": DASH} | {function.__name__: function for function in functions}
    try:
        return environment.get_template("report.tex").render()
    except jinja2.TemplateError as error:
        raise ReportError(f"{templates}: expected templates that fit the summary, got: {error}") from error


def _milliseconds(seconds: float | None) -> str:
    return significant(None if seconds is None else 1000 * seconds)


def _minute(stamp: str) -> str:
    return datetime.fromisoformat(stamp).strftime("%Y-%m-%d %H:%M")


def _shorten(text: str) -> str:
    """The beginning of a long text; the whole of it stands in the result file."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} \u2026"


def _compile(directory: Path, last_ended_at: str, log: Path) -> None:
    """Run latexmk until references settle; keep its log, and tell what it says is defective."""
    epoch = str(int(datetime.fromisoformat(last_ended_at).timestamp()))
    command = ["latexmk", "-pdf", "-interaction=nonstopmode", "-halt-on-error", "-norc", "report.tex"]
    try:
        run = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, "SOURCE_DATE_EPOCH": epoch, "FORCE_SOURCE_DATE": "1", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PDFLATEX_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ReportError(
            f"expected pdflatex to end within {PDFLATEX_TIMEOUT_S} s, it did not; look at report/sections"
        ) from None
    tex_log = directory / "report.log"
    text = tex_log.read_text(encoding="utf-8", errors="replace") if tex_log.exists() else ""
    write_atomic(log, text)
    if run.returncode != 0:
        raise ReportError(_failure_sentence(text, log))
    defects = _DEFECTS.findall(text)
    if defects:
        logger.warning(
            "%s: expected a document without defects, got %d, first: %s",
            log,
            len(defects),
            defects[0].strip(),
        )


def _failure_sentence(text: str, log: Path) -> str:
    missing = _MISSING_STYLE.search(text)
    if missing:
        return (
            f"expected {missing.group(1)} among the TeX packages, it is missing; "
            f"install them: apt-get install --no-install-recommends {TEX_PACKAGES}"
        )
    first = next((line for line in text.splitlines() if line.startswith("!")), "no message")
    return f"{log}: expected pdflatex to succeed, got: {first}; see the log"
