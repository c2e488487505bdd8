"""Draw the report's figures as pgfplots fragments.

    python scripts/figures.py --summary report/build/cpu --out report/build/cpu/figures

--summary: directory with summary.json.
Writes one <figure>.tex per figure that the data supports and figures.json, the list of them, into --out;
fragments of an earlier run are removed. Exit code 1 and one sentence on stderr where that cannot be done.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from draftbench.report.draw import draw_figures

from draftbench.errors import DraftbenchError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        draw_figures(options.summary / "summary.json", options.out)
    except DraftbenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
