"""Measure one cell of the campaign and store its result; its service is started where it does not serve.

    python scripts/measure.py --cell tp1-dflash.long

Reads the campaign from the run's directory, $DRAFTBENCH_SESSION, see draftbench.steps.
Writes results/<campaign>/<cell>.json, or <cell>.failed.json that says why there is none. Exit code 1 and one
sentence as the last line where the cell has no result.
"""

import sys
from collections.abc import Sequence

from draftbench.host import session_directory
from draftbench.step_command import run_step, step_parser
from draftbench.steps import Steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step; returns the exit code."""
    options = step_parser(__doc__, "cell").parse_args(arguments)
    return run_step(lambda: Steps(session_directory()).measure(options.cell))


if __name__ == "__main__":
    sys.exit(main())
