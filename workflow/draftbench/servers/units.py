"""systemd as its command-line tools show it: unit properties and journals, of the system or of a user."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from draftbench.errors import ServerError

Manager = Literal["system", "user"]
COMMAND_LIMIT_S = 60.0
# Lines of the unit's processes; what the manager says of it has another field.
OWN_LINES = "_SYSTEMD_INVOCATION_ID={}"


@dataclass(frozen=True)
class UnitState:
    """What the manager knows of a unit; an empty text where it knows nothing.

    Attributes:
        load_state: `not-found` where there is no such unit.
        active_state: `active`, `activating`, `deactivating`, `inactive`, `failed`.
        result: why it ended, `success` also for a unit that never ran.
        invocation_id: of its present or last run; empty once it was stopped cleanly.
    """

    load_state: str
    active_state: str
    result: str
    main_pid: int
    exit_status: str
    invocation_id: str

    @property
    def is_running(self) -> bool:
        """It runs, or is about to."""
        return self.active_state in ("active", "activating", "reloading")


@dataclass(frozen=True)
class UnitManager:
    """One service manager of this host.

    Attributes:
        scope: `system`, or `user` for the units of this user.
    """

    scope: Manager

    def state(self, unit: str) -> UnitState:
        """What is known of a unit now."""
        names = ("LoadState", "ActiveState", "Result", "MainPID", "ExecMainStatus", "InvocationID")
        values = self.properties(unit, *names)
        load, active, result, pid, status, invocation = (values.get(name, "") for name in names)
        return UnitState(load, active, result, int(pid or 0), status, invocation)

    def properties(self, unit: str, *names: str) -> dict[str, str]:
        """Properties by name; one that this systemd does not know is missing."""
        text = self.call("systemctl", "show", "--property", ",".join(names), "--", unit)
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def call(self, program: str, *arguments: str, is_checked: bool = True) -> str:
        """Output of `systemctl`, `systemd-run` or `journalctl` for this manager.

        Raises:
            ServerError: it is missing, hangs, or (with `is_checked`) fails.
        """
        # The journal is one for all managers; a user sees in it what he may.
        scope = [] if program == "journalctl" else [f"--{self.scope}"]
        command = [program, *scope, *arguments]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServerError(
                f"expected {program} to answer, got: {error}; "
                "use supervisor.kind process where systemd does not run"
            ) from None
        if is_checked and done.returncode != 0:
            said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
            raise ServerError(
                f"expected '{program} --{self.scope} {arguments[0]}' to succeed, got: {said}; "
                "check the rights of this user and supervisor.manager in the campaign"
            )
        return done.stdout

    def log_lines(self, invocation_id: str, cursor: str = "", end: str = "") -> Iterator[str]:
        """What one run of a unit has logged after `cursor` up to `end`, oldest first; all of it without."""
        after = ["--after-cursor", cursor] if cursor else []
        self.call("journalctl", "--sync", is_checked=False)  # only root may, and it only makes the end exact
        text = self.call(
            "journalctl",
            "--quiet",
            "--all",
            "--output=json",
            "--output-fields=MESSAGE",
            *after,
            OWN_LINES.format(invocation_id),
            is_checked=False,
        )
        for line in filter(None, text.split("\n")):  # a message may hold other ends of lines, as U+2028
            entry = json.loads(line)
            yield _message(entry.get("MESSAGE"))
            if end and entry["__CURSOR"] == end:
                return

    def log_end(self, invocation_id: str) -> str:
        """Cursor of the last line that one run of a unit has logged; empty where there is none."""
        self.call("journalctl", "--sync", is_checked=False)
        arguments = ("--quiet", "--output=json", "--output-fields=__CURSOR", "--lines=1")
        text = self.call("journalctl", *arguments, OWN_LINES.format(invocation_id), is_checked=False)
        return str(json.loads(text.splitlines()[-1])["__CURSOR"]) if text.strip() else ""


def _message(value: object) -> str:
    """The text of a field: journald gives bytes that are no plain text as a list of numbers."""
    if isinstance(value, list):
        return bytes(value).decode(errors="replace")
    return "" if value is None else str(value)
