"""Start a service of the campaign and wait until it generates; a healthy one is left alone.

    python scripts/start.py --service tp1-dflash --token "$DRAFTBENCH_SESSION"/tp1-dflash.ready

Reads the campaign from the run's directory, $DRAFTBENCH_SESSION, see draftbench.steps.
--token:   written when the service serves; says who serves where.
Exit code 1 and one sentence as the last line where it does not get ready.
"""

import sys
from collections.abc import Sequence

from draftbench.host import session_directory
from draftbench.step_command import run_step, step_parser
from draftbench.steps import Steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step; returns the exit code."""
    options = step_parser(__doc__, "service", "token").parse_args(arguments)
    return run_step(lambda: Steps(session_directory()).start(options.service, options.token))


if __name__ == "__main__":
    sys.exit(main())
