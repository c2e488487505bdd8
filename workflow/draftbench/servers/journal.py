"""A service's log as the measuring client reads it: cut at two moments."""

from dataclasses import dataclass

from draftbench.servers.base import ServiceHandle, Supervisor


@dataclass(frozen=True)
class ServiceJournal:
    """The log of a running service, whichever supervisor keeps it. Marks are the supervisor's cursors."""

    supervisor: Supervisor
    handle: ServiceHandle

    def mark(self) -> str:
        """Where the log ends now."""
        return self.supervisor.log_cursor(self.handle)

    def read(self, start: str, end: str) -> str:
        """What was written from `start` to `end`; see `Journal`."""
        return self.supervisor.log_since(self.handle, start, end)
