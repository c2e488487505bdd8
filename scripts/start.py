"""Start a service of the campaign and wait until it generates; a healthy one is left alone.

    python scripts/start.py --session DIR --service tp1-dflash --token DIR/tp1-dflash.ready

--session: the run's directory with campaign.json, see draftbench.steps.
--token:   written when the service serves; says who serves where.
Exit code 1 and one sentence as the last line where it does not get ready.
"""

import sys
from collections.abc import Sequence

from draftbench.step_command import run_step, step_parser
from draftbench.steps import Steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step; returns the exit code."""
    options = step_parser(__doc__, "service", "token").parse_args(arguments)
    return run_step(lambda: Steps(options.session).start(options.service, options.token))


if __name__ == "__main__":
    sys.exit(main())
