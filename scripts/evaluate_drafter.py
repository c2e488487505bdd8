"""Measure tokens a round of a trained drafter: by slot, by tree budget, and by decoding for real.

    python scripts/evaluate_drafter.py --run config/train-smollm2.yaml

Writes evaluation.json beside the checkpoint.
Exit code 1 and one sentence as the last line where it cannot.
"""

import sys
from collections.abc import Sequence

from draftbench.training.command import run_training_step
from draftbench.training.steps import evaluate_drafter


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the step; returns the exit code."""
    return run_training_step(__doc__, evaluate_drafter, arguments)


if __name__ == "__main__":
    sys.exit(main())
