"""Resident units that step aside for a service and come back at the end, whatever happens in between.

What is stopped is written to the disk before it is stopped. A run that was interrupted, by a failure, a
signal or a reboot, leaves that note; the next run's end starts the units again.
"""

import logging
import os
import time
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from draftbench import host
from draftbench.errors import ConfigError, ServerError
from draftbench.files import write_json
from draftbench.servers.base import ServiceHandle, ServiceSpec
from draftbench.servers.units import Manager, UnitManager

logger = logging.getLogger(__name__)
POLL_S = 0.1
STOP_LIMIT_S = 180.0
START_LIMIT_S = 60.0


class StoppedUnit(BaseModel):
    """One note.

    Attributes:
        unit: what was stopped.
        stopped_at: wall clock, ISO 8601, UTC.
        boot_id: of the boot in which it was stopped.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    unit: str
    stopped_at: str
    boot_id: str


class Notes(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stopped: tuple[StoppedUnit, ...] = ()


def state_directory() -> Path:
    """Where notes lie that outlive a reboot; `DRAFTBENCH_STATE_DIR` moves it."""
    chosen = os.environ.get("DRAFTBENCH_STATE_DIR")
    if chosen:
        return Path(chosen)
    if os.getuid() == 0:
        return Path("/var/lib/draftbench")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "draftbench"


def restore_displaced() -> None:
    """Start again every unit that any run has stopped and not started since, whatever its campaign.

    Raises:
        ServerError: one did not start; its note stays, and all others were started.
    """
    failures = []
    scopes: tuple[Manager, ...] = ("system", "user")
    for scope in scopes:
        try:
            Displacement(scope, ()).restore()
        except ServerError as error:
            failures.append(error)
    if failures:
        raise failures[0]


class Displacement:
    """Stops the units that a campaign names, and no others; a guard that stands before all others."""

    name = "displaced"

    def __init__(self, scope: Manager, units: tuple[str, ...]) -> None:
        self.manager = UnitManager(scope)
        self.units = units
        self.path = state_directory() / f"displaced-{scope}.json"

    def before_start(self, spec: ServiceSpec) -> list[str]:
        """Stop those that run, where the service needs GPUs; the result names them. See `Guard`."""
        if spec.num_gpus == 0:
            return []
        running = []
        for unit in self.units:
            state = self.manager.state(unit)
            if state.load_state == "not-found":
                raise ConfigError(
                    f"supervisor.displace: expected a unit of the {self.manager.scope} manager, got {unit}, "
                    "which it does not know; correct the name or remove it"
                )
            if state.is_running:
                running.append(unit)
        self._note(running)
        for unit in running:
            self._stop(unit)
        return running

    def after_stop(self, handle: ServiceHandle, limit_s: float) -> None:
        """Nothing: they come back at the end of the run, not between its services."""

    def restore(self) -> None:
        """Start every unit that a note names, and remove the note.

        Raises:
            ServerError: one did not start; its note stays.
        """
        failures = []
        left = []
        for note in self._read().stopped:
            try:
                self._start(note.unit)
                logger.info("%s, stopped at %s, runs again", note.unit, note.stopped_at)
            except ServerError as error:
                failures.append(error)
                left.append(note)
        self._write(left)
        if failures:
            raise failures[0]

    def _note(self, units: list[str]) -> None:
        known = self._read().stopped
        names = {note.unit for note in known}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        new = [StoppedUnit(unit=u, stopped_at=now, boot_id=host.boot_id()) for u in units if u not in names]
        self._write([*known, *new])

    def _read(self) -> Notes:
        try:
            return Notes.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return Notes()
        except ValidationError:
            raise ServerError(
                f"{self.path}: expected notes of stopped units, got something else; "
                "start the resident services by hand, then remove the file"
            ) from None

    def _write(self, notes: list[StoppedUnit]) -> None:
        if notes:
            write_json(self.path, Notes(stopped=tuple(notes)).model_dump(mode="json"))
        else:
            self.path.unlink(missing_ok=True)

    def _stop(self, unit: str) -> None:
        self.manager.call("systemctl", "stop", "--no-block", "--", unit)
        deadline_s = time.monotonic() + STOP_LIMIT_S
        while self.manager.state(unit).active_state not in ("inactive", "failed"):
            if time.monotonic() > deadline_s:
                raise ServerError(
                    f"expected resident unit {unit} to stop within {STOP_LIMIT_S:.0f} s, it did not; "
                    f"see systemctl status {unit}",
                    "timeout",
                )
            time.sleep(POLL_S)
        logger.info("%s steps aside", unit)

    def _start(self, unit: str) -> None:
        self.manager.call("systemctl", "start", "--no-block", "--", unit)
        deadline_s = time.monotonic() + START_LIMIT_S
        while (state := self.manager.state(unit)).active_state != "active":
            is_late = time.monotonic() > deadline_s
            if state.active_state == "failed" or (is_late and not state.is_running):
                raise ServerError(
                    f"expected resident unit {unit} to run again, it is {state.active_state}; "
                    f"see systemctl status {unit}, then start it by hand"
                )
            if is_late:  # it loads its model for longer than a run should wait
                return
            time.sleep(POLL_S)
