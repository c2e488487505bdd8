"""Draw the report's figures as pgfplots fragments.

    python scripts/figures.py --summary report/build/cpu --out report/build/cpu/figures

--summary: directory with summary.json.
Writes one <figure>.tex per figure that the data supports and figures.json, the list of them, into --out;
fragments of an earlier run are removed. Exit code 1 and one sentence on stderr where that cannot be done.
"""

import sys
from collections.abc import Sequence

from draftbench.report.command import path_parser, run
from draftbench.report.draw import draw_figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step; returns the exit code."""
    options = path_parser(__doc__, "summary", "out").parse_args(arguments)
    return run(lambda: draw_figures(options.summary / "summary.json", options.out))


if __name__ == "__main__":
    sys.exit(main())
