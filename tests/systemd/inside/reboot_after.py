"""The next run after a reboot."""

from tests.systemd.inside.conftest import systemctl

from draftbench.servers.base import ServiceHandle
from draftbench.servers.displacement import restore_displaced, state_directory
from draftbench.servers.systemd import SystemdSupervisor


def recorded() -> ServiceHandle:
    return ServiceHandle.model_validate_json((state_directory() / "handle.json").read_bytes())


def test_the_service_is_known_to_have_ended_with_its_host() -> None:
    supervisor = SystemdSupervisor("system")
    assert supervisor.failure(recorded()) == "its host was started anew"
    supervisor.stop(recorded(), 1.0)


def test_the_journal_of_the_boot_before_is_still_there() -> None:
    assert SystemdSupervisor("system").log_since(recorded(), "") == "up\n"


def test_the_resident_is_started_again() -> None:
    assert systemctl("is-active", "resident.service") == "inactive"
    restore_displaced()
    assert systemctl("is-active", "resident.service") == "active"
