"""How a step runs as a command: alone, no longer than its parent lives, its failure in the last line."""

import argparse
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from draftbench import host
from draftbench.errors import DraftbenchError

INTERRUPTED = 128 + signal.SIGINT


def step_parser(description: str | None, *options: str) -> argparse.ArgumentParser:
    """The command line of a step: the named options, all required."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in options:
        parser.add_argument(f"--{name}", type=Path if name == "token" else str, required=True)
    return parser


def run_step(step: Callable[[], object]) -> int:
    """Run a step that measures, with its log on stderr; returns the exit code.

    Should one live on though its run has ended, the next refuses to run beside it.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )

    def alone() -> None:
        with host.exclusive(host.run_directory() / "step.lock", "runs a step"):
            step()

    return run_command(alone)


def run_command(step: Callable[[], object]) -> int:
    """Run something that dies with Snakemake, also by `kill -9`; returns the exit code."""
    host.die_with_parent()
    try:
        step()
    except DraftbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; the same command goes on where this one ended", file=sys.stderr)
        return INTERRUPTED
    return 0
