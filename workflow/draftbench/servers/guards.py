"""What a service needs for itself: checked before its start, waited for after its stop."""

import socket
import time

from draftbench.errors import ServerError
from draftbench.servers import proc
from draftbench.servers.base import HOST, ServiceHandle, ServiceSpec

POLL_S = 0.05


class PortGuard:
    """Nobody else listens at the service's port."""

    name = "port"

    def before_start(self, spec: ServiceSpec) -> None:
        """Refuse a port in use; see `Guard`."""
        refuse_taken_port(spec.port)

    def after_stop(self, handle: ServiceHandle, limit_s: float) -> None:
        """Wait until nobody listens; see `Guard`. All our processes have ended: an owner is a stranger."""
        deadline_s = time.monotonic() + limit_s
        while proc.listeners(handle.port) and not proc.owners(handle.port):
            if time.monotonic() > deadline_s:
                refuse_taken_port(handle.port)
            time.sleep(POLL_S)


def refuse_taken_port(port: int) -> None:
    """Check that nobody listens at `port` of any address of this host.

    Raises:
        ServerError: somebody does; the sentence names the process where it can be seen.
    """
    if not proc.listeners(port):
        return
    pids = sorted(proc.owners(port))
    by = f"process {pids[0]} ({proc.command(pids[0])})" if pids else "a process of another user"
    raise ServerError(
        f"port {port}: expected it to be free, but {by} listens there; end it if it is yours, "
        "or set port to another number or to auto in the campaign",
        "port",
    )


def choose_port(wanted: int | str) -> int:
    """`wanted`, or a port that is free now for `auto`."""
    if wanted != "auto":
        return int(wanted)
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
