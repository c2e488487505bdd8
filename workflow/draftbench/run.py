"""One invocation of Snakemake: none measures beside it, checked before it runs, leaving nothing running."""

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from draftbench import host
from draftbench.errors import DraftbenchError
from draftbench.plan import Plan
from draftbench.preflight.checklist import require_ready
from draftbench.servers.lifecycle import ServiceKeeper
from draftbench.steps import write_session


class Run:
    """Holds the host's lock from `begin` to the end of the process.

    Args:
        plan: of the campaign.
        session: the run's directory.
    """

    def __init__(self, plan: Plan, session: Path) -> None:
        self.plan = plan
        self.session = session
        self._held = contextlib.ExitStack()
        self._pid: int | None = None  # of the process that holds the lock; forks inherit this object

    def begin(self, *, needs_services: bool, needs_tex: bool, only_reports: bool) -> None:
        """Take the lock, check everything that can be checked now, and write the session's files.

        Args:
            needs_services: a cell will be measured.
            needs_tex: the report will be typeset.
            only_reports: nothing runs that measures or trains, so that others may do the same beside it.

        Raises:
            DraftbenchError: another run is under way, the session lies elsewhere, or the campaign cannot be
                run here.
        """
        sessions = host.sessions_directory()
        if self.session.absolute().parent != sessions.absolute():  # what lies beside it is removed below
            raise DraftbenchError(
                f"DRAFTBENCH_SESSION: expected a directory in {sessions}, got {self.session}; unset it, a "
                "run makes its own"
            )
        if only_reports:
            self._held.enter_context(host.shared(host.host_lock_path(), "builds a report"))
        else:
            self._held.enter_context(host.exclusive(host.host_lock_path(), "runs a campaign"))
            for old in sessions.glob("*"):
                shutil.rmtree(old)
        self._pid = os.getpid()
        os.environ[host.RUN_PID] = str(self._pid)
        require_ready(self.plan.campaign, needs_services=needs_services, needs_tex=needs_tex)
        write_session(self.session, self.plan)

    def end(self) -> None:
        """Stop the service, remove the tokens, drop the lock; nothing in a process without the lock.

        Raises:
            ServerError: a service could not be stopped.
        """
        if self._pid != os.getpid():
            return
        self._pid = None
        with self._held, _deaf_to_interrupts():
            try:
                ServiceKeeper(self.plan.campaign).end()
            finally:
                shutil.rmtree(self.session, ignore_errors=True)


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """A second Ctrl-C would leave behind what the first is stopping; stopping has limits of its own."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
