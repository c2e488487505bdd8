"""How a step runs as a command: alone, no longer than its parent lives, its failure in the last line."""

import argparse
import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from draftbench import host
from draftbench.errors import DraftbenchError

INTERRUPTED = 128 + signal.SIGINT
SOON_S = 0.01


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
        with _lasting_interrupts():
            step()
    except DraftbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; the same command goes on where this one ended", file=sys.stderr)
        return INTERRUPTED
    return 0


@contextlib.contextmanager
def _lasting_interrupts() -> Iterator[None]:
    """Send a Ctrl-C again that came while an object was finalised: Python prints it there and goes on."""
    before = sys.unraisablehook
    main = threading.main_thread().ident

    def hook(lost: "sys.UnraisableHookArgs") -> None:
        if lost.exc_type is KeyboardInterrupt and main is not None:
            again = threading.Timer(SOON_S, signal.pthread_kill, (main, signal.SIGINT))
            again.daemon = True
            again.start()
        else:
            before(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
