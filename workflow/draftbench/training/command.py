"""The command line that the training scripts share."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from draftbench.step_command import run_step
from draftbench.training.settings import TrainingRun, load_run


def run_training_step(
    description: str | None, step: Callable[[TrainingRun], None], arguments: Sequence[str] | None
) -> int:
    """Parse `--run`, read that file and do one step; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True, help="a training run, config/train-<name>.yaml")
    path = parser.parse_args(arguments).run
    return run_step(lambda: step(load_run(path)))
