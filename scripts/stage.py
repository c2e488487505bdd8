"""Stage a model of the campaign: target and drafter, fetched, checked, converted.

    python scripts/stage.py --model smollm2 --token "$DRAFTBENCH_SESSION"/smollm2.staged

Reads the campaign from the run's directory, $DRAFTBENCH_SESSION, see draftbench.steps.
--token:   written when the model is staged; says where its folders lie.
A staged model is left alone. Exit code 1 and one sentence as the last line where it cannot be staged.
"""

import sys
from collections.abc import Sequence

from draftbench.host import session_directory
from draftbench.step_command import run_step, step_parser
from draftbench.steps import Steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step; returns the exit code."""
    options = step_parser(__doc__, "model", "token").parse_args(arguments)
    return run_step(lambda: Steps(session_directory()).stage(options.model, options.token))


if __name__ == "__main__":
    sys.exit(main())
