"""How a step of the report runs as a command: its log on stderr, its failure as one sentence."""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from draftbench.step_command import run_command


def path_parser(description: str | None, *options: str) -> argparse.ArgumentParser:
    """The command line of a step: the named options, all paths, all required."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in options:
        parser.add_argument(f"--{name}", type=Path, required=True)
    return parser


def run(step: Callable[[], object]) -> int:
    """Run a step; returns the exit code. Unlike a measuring step it may run beside others."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    return run_command(step)
