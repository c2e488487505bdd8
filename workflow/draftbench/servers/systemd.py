"""Supervisor `systemd`: a transient unit per start, whose journal is the log.

The unit is never restarted by the manager, ends with all its processes, and logs without a rate limit.
Every start has a name and an invocation id of its own, so nothing that was started otherwise is taken for it.
"""

import hashlib
import logging
import os
import re
import shutil
import time
from pathlib import Path
from typing import Literal

from draftbench import host
from draftbench.errors import ServerError
from draftbench.files import write_atomic
from draftbench.servers import proc
from draftbench.servers.base import ENGINE_VARIABLE, MARKER, ServiceHandle, ServiceSpec, Spawned
from draftbench.servers.units import Manager, UnitManager, UnitState

logger = logging.getLogger(__name__)
BOOTED = Path("/run/systemd/system")  # sd_booted(3): there where systemd is this host's init
POLL_S = 0.1
KILL_LIMIT_S = 15.0
# Variables that a server takes over from the shell; a unit starts with an almost empty environment, and
# what is passed to it can be read by every user, so nothing else goes along.
INHERITED = re.compile(
    r"^(PATH|HOME|LANG|LC_ALL|TMPDIR|VIRTUAL_ENV|PYTHON(PATH|HOME)|LD_LIBRARY_PATH"
    rf"|HF_(HOME|HUB_CACHE)|XDG_CACHE_HOME|{ENGINE_VARIABLE}|DRAFTBENCH_\w+)$"
)
RESULTS = {
    "exit-code": "it exited with status {status}",
    "signal": "it was ended by signal {status}",
    "core-dump": "it dumped core after signal {status}",
    "oom-kill": "the kernel ended it: out of memory",
    "timeout": "it did not stop in time and was killed",
    "success": "it ended, or somebody stopped it",
}


class SystemdSupervisor:
    """Starts servers as transient units of one service manager."""

    kind: Literal["systemd"] = "systemd"

    def __init__(self, scope: Manager = "system") -> None:
        self.manager = UnitManager(scope)

    def spawn(self, spec: ServiceSpec) -> Spawned:
        """Start it and return at once; see `Supervisor`."""
        unit = f"{unit_prefix()}{spec.token[-8:]}.service"
        program = shutil.which(spec.launch.argv[0])
        if program is None:
            raise ServerError(
                f"{spec.service}: expected to start {spec.launch.argv[0]}, got no such program; "
                "correct engine.python in the campaign"
            )
        # The manager would expand variables in arguments.
        argv = [str(Path(program).absolute()), *(part.replace("$", "$$") for part in spec.launch.argv[1:])]
        self.manager.call("systemd-run", *_unit_options(unit, spec), "--", *argv, is_checked=False)
        state = self.manager.state(unit)
        if not state.is_running:
            lines = list(self.manager.log_lines(state.invocation_id)) if state.invocation_id else []
            said = f", its last words: {lines[-1]}" if lines else ""
            raise ServerError(
                f"{spec.service}: expected unit {unit} to run, but {_why(state)}{said}; "
                f"see journalctl --{self.manager.scope} --unit {unit}",
                "crash",
            )
        return Spawned(
            pid=state.main_pid,
            invocation_id=state.invocation_id,
            unit=unit,
            manager=self.manager.scope,
        )

    def failure(self, handle: ServiceHandle) -> str | None:
        """Why it no longer runs; see `Supervisor`."""
        if handle.boot_id != host.boot_id():
            return "its host was started anew"
        unit = handle.spawned.unit or ""
        state = self.manager.state(unit)
        if state.load_state == "not-found":
            return f"unit {unit} is gone: somebody stopped it"
        if state.is_running and state.invocation_id != handle.spawned.invocation_id:
            return f"unit {unit} was started anew by somebody else"
        return None if state.is_running else f"unit {unit} is {state.active_state}: {_why(state)}"

    def owns(self, handle: ServiceHandle, pid: int) -> bool:
        """Whether a process belongs to the service; see `Supervisor`."""
        return host.start_ticks(pid) is not None and handle.spawned.unit in control_groups(pid)

    def stop(self, handle: ServiceHandle, limit_s: float) -> None:
        """End all its processes, keep its journal as a file; see `Supervisor`."""
        if handle.boot_id != host.boot_id():
            return
        usage = self.usage(handle)
        self._stop_unit(handle.spawned.unit or "", limit_s)
        write_atomic(handle.log, self.log_since(handle, ""))
        logger.info("%s used %s", handle.service, ", ".join(f"{k} {v}" for k, v in usage.items()))

    def usage(self, handle: ServiceHandle) -> dict[str, float | None]:
        """Peak memory and processor time of the unit up to now; None where nobody counts.

        Where the manager keeps no peak, it is the sum of the peaks of the processes that live now.
        """
        values = self.manager.properties(handle.spawned.unit or "", "MemoryPeak", "CPUUsageNSec")
        peak, cpu_ns = _number(values.get("MemoryPeak")), _number(values.get("CPUUsageNSec"))
        if peak is None:
            peaks = [_peak_bytes(pid) for pid in proc.living(lambda pid: self.owns(handle, pid))]
            peak = sum(peaks) or None
        return {"memory_peak_bytes": peak, "cpu_s": None if cpu_ns is None else cpu_ns / 1e9}

    def log_cursor(self, handle: ServiceHandle) -> str:
        """The journal's cursor at the end of its lines."""
        return self.manager.log_end(handle.spawned.invocation_id or "")

    def log_since(self, handle: ServiceHandle, cursor: str, end: str = "") -> str:
        """Its lines in the journal after `cursor` and up to `end`; see `Supervisor`."""
        lines = self.manager.log_lines(handle.spawned.invocation_id or "", cursor, end)
        return "".join(f"{line}\n" for line in lines)

    def stop_strays(self, limit_s: float) -> None:
        """Stop units of this run directory that no record names; see `Supervisor`."""
        if not BOOTED.is_dir():
            return  # nor are there units: the report of another host's results is built here
        listed = self.manager.call(
            "systemctl", "list-units", "--all", "--plain", "--no-legend", f"{unit_prefix()}*.service"
        )
        for line in listed.splitlines():
            self._stop_unit(line.split()[0], limit_s)

    def _stop_unit(self, unit: str, limit_s: float) -> None:
        self.manager.call("systemctl", "stop", "--no-block", "--", unit, is_checked=False)
        deadline_s = time.monotonic() + limit_s + KILL_LIMIT_S  # the manager kills at its own limit_s
        while self.manager.state(unit).active_state not in ("inactive", "failed", "") or _members(unit):
            if time.monotonic() > deadline_s:
                pids = _members(unit)
                raise ServerError(
                    f"expected unit {unit} to end within {limit_s + KILL_LIMIT_S:.0f} s, but process "
                    f"{pids[0] if pids else '?'} of it still runs; end it by hand, it may hang in a driver"
                )
            time.sleep(POLL_S)
        self.manager.call("systemctl", "reset-failed", "--", unit, is_checked=False)


def unit_prefix() -> str:
    """Of the names of all units under this run directory."""
    return f"draftbench-{hashlib.sha256(str(host.run_directory()).encode()).hexdigest()[:8]}-"


def _unit_options(unit: str, spec: ServiceSpec) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if INHERITED.match(name)}
    environment |= {"PYTHONUNBUFFERED": "1", **spec.launch.environment, MARKER: spec.token}
    properties = {
        "Type": "exec",
        "Restart": "no",
        "KillMode": "control-group",
        "SendSIGKILL": "yes",
        "TimeoutStopSec": f"{spec.limits.stop_s:g}s",
        "LogRateLimitIntervalSec": "0",
        "MemoryAccounting": "yes",
        "CPUAccounting": "yes",
        "TasksMax": "infinity",
        "WorkingDirectory": os.getcwd(),
    }
    return [
        f"--unit={unit}",
        f"--description=draftbench {spec.campaign} {spec.service}",
        "--quiet",
        "--no-ask-password",
        *(f"--property={name}={value}" for name, value in properties.items()),
        *(f"--setenv={name}={value}" for name, value in environment.items()),
    ]


def _why(state: UnitState) -> str:
    text = RESULTS.get(state.result, f"its result is {state.result or 'unknown'}")
    return text.format(status=state.exit_status)


def control_groups(pid: int) -> set[str]:
    """Names of the control groups that a process is in, innermost and outer ones."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return set()
    return {part for line in text.splitlines() for part in line.rpartition(":")[2].split("/")}


def _members(unit: str) -> list[int]:
    return proc.living(lambda pid: unit in control_groups(pid))


def _number(text: str | None) -> int | None:
    """A counter; systemd says `[not set]` or the largest number for one that it does not keep."""
    return int(text) if text and text.isdigit() and int(text) < 2**64 - 1 else None


def _peak_bytes(pid: int) -> int:
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0
