r"""Typeset the report: fill the LaTeX templates with the summary's numbers and run pdflatex.

    python scripts/typeset.py --summary report/build/cpu --figures report/build/cpu/figures \
        --templates report --out report/bench.pdf

--summary:   directory with summary.json.
--figures:   directory with figures.json and the fragments.
--templates: directory with report.tex, sections/ and references.bib.
--log:       where pdflatex's log is kept (default: beside the figures).
The same summary and figures give the same PDF, byte for byte. Exit code 1 and one sentence on stderr
where TeX is missing (with the packages to install), fails, or leaves an overfull box.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from draftbench.report.typeset import typeset

from draftbench.errors import DraftbenchError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--figures", type=Path, required=True)
    parser.add_argument("--templates", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--log", type=Path)
    options = parser.parse_args(arguments)
    try:
        log = options.log or options.figures / "report.log"
        typeset(options.summary / "summary.json", options.figures, options.templates, options.out, log=log)
    except DraftbenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
