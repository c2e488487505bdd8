"""Supervisor `process`: a detached process group whose output goes to a file."""

import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from draftbench import host
from draftbench.errors import MeasurementError, ServerError
from draftbench.servers import proc
from draftbench.servers.base import MARKER, ServiceHandle, ServiceSpec, Spawned

# Snakemake sets these for its jobs; a server's threads come from the campaign.
THREAD_VARIABLES = re.compile(r"^((OMP|MKL|GOTO|OPENBLAS|NUMEXPR)_NUM|VECLIB_MAXIMUM)_THREADS$")
POLL_S = 0.05
KILL_LIMIT_S = 10.0


class ProcessSupervisor:
    """Starts servers in sessions of their own, so that they outlive the process that started them."""

    kind: Literal["process"] = "process"

    def spawn(self, spec: ServiceSpec) -> Spawned:
        """Start it and return at once; see `Supervisor`."""
        environment = {k: v for k, v in os.environ.items() if not THREAD_VARIABLES.match(k)}
        environment |= {"PYTHONUNBUFFERED": "1", **spec.launch.environment, MARKER: spec.token}
        try:
            pid = _spawn_detached(spec.launch.argv, environment, spec.log)
        except OSError as error:
            raise ServerError(
                f"{spec.service}: expected to start {spec.launch.argv[0]}, got: {error}; "
                "correct engine.python in the campaign"
            ) from None
        return Spawned(pid=pid)

    def failure(self, handle: ServiceHandle) -> str | None:
        """Why it no longer runs; see `Supervisor`."""
        pid = handle.spawned.pid
        if handle.boot_id != host.boot_id():
            return "its host was started anew"
        if host.start_ticks(pid) == handle.pid_start_ticks:
            return None
        return f"process {pid} ended{_exit_code(pid)}"

    def owns(self, handle: ServiceHandle, pid: int) -> bool:
        """Whether a process belongs to the service; see `Supervisor`."""
        ticks = host.start_ticks(pid)
        if ticks is None or ticks < handle.pid_start_ticks:
            return False
        if proc.variable(pid, MARKER) == handle.token:
            return True
        # The kernel gives no process the number of a session that still has members, so the session is ours.
        return proc.session_id(pid) == handle.spawned.pid

    def stop(self, handle: ServiceHandle, limit_s: float) -> None:
        """End all its processes; see `Supervisor`."""
        if handle.boot_id == host.boot_id():
            _end_all(lambda pid: self.owns(handle, pid), limit_s, handle.service)
            _exit_code(handle.spawned.pid)

    def log_cursor(self, handle: ServiceHandle) -> str:
        """The size of its log file."""
        log = Path(handle.log)
        return str(log.stat().st_size) if log.exists() else "0"

    def log_since(self, handle: ServiceHandle, cursor: str, end: str = "") -> str:
        """What the file holds between two of its sizes; see `Supervisor`."""
        log, start = Path(handle.log), int(cursor or 0)
        if start > int(self.log_cursor(handle)):
            raise MeasurementError(
                f"expected {log} to grow while it is read, got a shorter file or none; leave the log alone "
                "while its server is measured"
            )
        if not log.exists():
            return ""
        with log.open("rb") as stream:
            stream.seek(start)
            return stream.read(int(end) - start if end else -1).decode(errors="replace")

    def stop_strays(self, limit_s: float) -> None:
        """Stop servers that carry this run directory's marker; see `Supervisor`."""
        prefix = token_prefix()
        _end_all(lambda pid: (proc.variable(pid, MARKER) or "").startswith(prefix), limit_s, "a stray server")


def _spawn_detached(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Start a command in a session of its own, its output in `log`; nobody has to wait for it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    return os.posix_spawnp(
        argv[0],
        list(argv),
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores these, a server should not
    )


def token_prefix() -> str:
    """Of the tokens of all services under this run directory."""
    return f"{host.run_directory()}:"


def _end_all(is_wanted: proc.Filter, limit_s: float, name: str) -> None:
    for number, wait_s in ((signal.SIGTERM, limit_s), (signal.SIGKILL, KILL_LIMIT_S)):
        deadline_s = time.monotonic() + wait_s
        told: set[int] = set()
        while pids := _living(is_wanted):
            for pid in set(pids) - told:  # also children that were born in between
                _signal(pid, number)
            told.update(pids)
            if time.monotonic() > deadline_s:
                break
            time.sleep(POLL_S)
        else:
            return
    pids = proc.living(is_wanted)
    if pids:
        raise ServerError(
            f"{name}: expected process {pids[0]} ({proc.command(pids[0])}) to end on SIGKILL, "
            f"it still runs after {KILL_LIMIT_S:.0f} s; end it by hand, it may hang in a driver"
        )


def _living(is_wanted: proc.Filter) -> list[int]:
    """As `proc.living`; where there seems to be none, a second look decides.

    A process that begins a program shows no environment for some milliseconds, so nothing tells whose it is.
    """
    found = proc.living(is_wanted)
    if not found:
        time.sleep(POLL_S)
        found = proc.living(is_wanted)
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it ended in between, which is what was wanted
    except PermissionError:
        raise ServerError(
            f"expected to be allowed to end process {pid} ({proc.command(pid)}), am not"
        ) from None


def _exit_code(pid: int) -> str:
    """How a child of this process ended, which also lets the kernel forget it; empty for others' children."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return ""
    if found == 0:
        return ""
    code = os.waitstatus_to_exitcode(status)
    return f" by {signal.Signals(-code).name}" if code < 0 else f" with exit code {code}"
