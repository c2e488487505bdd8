r"""Typeset the report: fill the LaTeX templates with the summary's numbers and run pdflatex.

    python scripts/typeset.py --summary report/build/cpu --figures report/build/cpu/figures \
        --templates report --out report/bench.pdf

--summary:   directory with summary.json.
--figures:   directory with figures.json and the fragments.
--templates: directory with report.tex, sections/ and references.bib.
--log:       where pdflatex's log is kept (default: beside the figures).
The same summary and figures give the same PDF, byte for byte. Exit code 1 and one sentence on stderr
where TeX is missing (with the packages to install) or fails; a warning where it leaves an overfull box.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from draftbench.report.command import path_parser, run
from draftbench.report.typeset import typeset


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step; returns the exit code."""
    parser = path_parser(__doc__, "summary", "figures", "templates", "out")
    parser.add_argument("--log", type=Path)
    options = parser.parse_args(arguments)
    summary, log = options.summary / "summary.json", options.log or options.figures / "report.log"
    return run(lambda: typeset(summary, options.figures, options.templates, options.out, log=log))


if __name__ == "__main__":
    sys.exit(main())
