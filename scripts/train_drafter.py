"""Train a DFlash drafter on a corpus of the target's own responses.

    python scripts/train_drafter.py --run config/train-smollm2.yaml

Writes config.json, model.safetensors and log.jsonl into the run's drafter folder, the checkpoint also now
and then on the way. Uses every visible GPU; CUDA_VISIBLE_DEVICES chooses.
Exit code 1 and one sentence as the last line where it cannot.
"""

import sys
from collections.abc import Sequence

from draftbench.training.command import run_training_step
from draftbench.training.steps import train_drafter


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the step; returns the exit code."""
    return run_training_step(__doc__, train_drafter, arguments)


if __name__ == "__main__":
    sys.exit(main())
