"""What supervisor `systemd` needs: the right to start units, a manager that stays, the units to displace."""

import os
import subprocess

from draftbench.config import Campaign
from draftbench.errors import ConfigError
from draftbench.servers.units import UnitManager


def check_systemd(campaign: Campaign) -> None:
    """Units can be started and the displaced ones exist; nothing to check for other supervisors.

    Raises:
        DraftbenchError: a right or a unit is missing.
    """
    settings = campaign.supervisor
    if settings.kind != "systemd":
        return
    manager = UnitManager(settings.manager)
    probe = f"draftbench-preflight-{os.getpid()}"
    manager.call(
        "systemd-run", "--quiet", "--collect", "--wait", "--no-ask-password", f"--unit={probe}", "true"
    )
    if settings.manager == "user":
        _check_linger()
    for unit in settings.displace:
        if manager.state(unit).load_state == "not-found":
            raise ConfigError(
                f"supervisor.displace: expected a unit of the {settings.manager} manager, got {unit}, "
                "which it does not know; correct the name or remove it"
            )


def _check_linger() -> None:
    """Without it the user's manager, and the campaign's server, end with the last login session."""
    command = ["loginctl", "show-user", str(os.getuid()), "--property=Linger", "--value"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"supervisor.manager: expected loginctl to say whether this user lingers, got: {error}; "
            "use manager system, or supervisor.kind process"
        ) from None
    if done.stdout.strip() != "yes":
        raise ConfigError(
            "supervisor.manager: expected lingering for this user, got none, so that a logout would end the "
            "server; run loginctl enable-linger"
        )
