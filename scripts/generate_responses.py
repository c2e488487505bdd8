"""Let the target answer prompts: the training, held-out and natural corpora of a training run.

    python scripts/generate_responses.py --run config/train-smollm2.yaml

Composes prompts from the run's task lists, samples more from the target itself, keeps out everything near
a campaign's prompts, and writes corpora of token ids into the run's corpus folder.
Exit code 1 and one sentence as the last line where it cannot.
"""

import sys
from collections.abc import Sequence

from draftbench.training.command import run_training_step
from draftbench.training.steps import generate_responses


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the step; returns the exit code."""
    return run_training_step(__doc__, generate_responses, arguments)


if __name__ == "__main__":
    sys.exit(main())
