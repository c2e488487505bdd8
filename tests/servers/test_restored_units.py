"""The end of a run starts all units that stepped aside, of both managers, whatever becomes of one."""

import os
from pathlib import Path

import pytest
from tests.servers.factories import make_spec
from tests.workflow.workspace import small_campaign

from draftbench.config import load_campaign
from draftbench.errors import ServerError
from draftbench.servers import displacement, systemd
from draftbench.servers.displacement import Notes, StoppedUnit, restore_displaced
from draftbench.servers.lifecycle import ServiceKeeper

FAKE_SYSTEMCTL = """#!/bin/sh
cd "$(dirname "$0")"
echo "$@" >> calls
[ "$2" != stop ] || echo failed > state
echo ActiveState=$(cat state)
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Notes, and a manager whose units are all as the file `state` says; `failed` once one was stopped."""
    tool = tmp_path / "systemctl"
    tool.write_text(FAKE_SYSTEMCTL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DRAFTBENCH_STATE_DIR", str(tmp_path))
    (tmp_path / "state").write_text("active")
    return tmp_path


def notes(*units: str) -> str:
    stopped = [StoppedUnit(unit=u, stopped_at="2026-01-01T00:00:00+00:00", boot_id="one") for u in units]
    return Notes(stopped=tuple(stopped)).model_dump_json()


def test_notes_of_one_manager_that_cannot_be_read_keep_no_unit_of_the_other(state: Path) -> None:
    (state / "displaced-system.json").write_text("{")
    (state / "displaced-user.json").write_text(notes("llm.service"))
    with pytest.raises(ServerError, match=r"displaced-system\.json: expected notes of stopped units"):
        restore_displaced()
    assert "--user start --no-block -- llm.service" in (state / "calls").read_text().splitlines()
    assert not (state / "displaced-user.json").exists()


def test_units_come_back_also_where_the_service_cannot_be_stopped(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_keeper: ServiceKeeper) -> None:
        raise ServerError("it hangs in a driver")

    (state / "displaced-system.json").write_text(notes("llm.service"))
    monkeypatch.setattr(ServiceKeeper, "stop", fail)
    with pytest.raises(ServerError, match="hangs in a driver"):
        ServiceKeeper(load_campaign(small_campaign(), "small")).end()
    assert "--system start --no-block -- llm.service" in (state / "calls").read_text().splitlines()


def test_a_unit_that_fails_while_it_stops_has_stepped_aside(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(displacement, "STOP_LIMIT_S", 1.0)
    asked = displacement.Displacement("user", ("llm.service",))
    assert asked.before_start(make_spec(num_gpus=1)) == ["llm.service"]
    assert "--user stop --no-block -- llm.service" in (state / "calls").read_text().splitlines()


STOPS_SLOWLY = """#!/bin/sh
cd "$(dirname "$0")"
echo "$@" >> calls
[ "$2" != stop ] || echo deactivating > state
echo ActiveState=$(cat state)
[ "$2" != show ] || [ "$(cat state)" != deactivating ] || echo inactive > state
"""


def test_a_unit_has_stepped_aside_only_when_it_has_ended(state: Path) -> None:
    (state / "systemctl").write_text(STOPS_SLOWLY)
    displacement.Displacement("user", ("llm.service",)).before_start(make_spec(num_gpus=1))
    verbs = [line.split()[1] for line in (state / "calls").read_text().splitlines()]
    assert verbs == ["show", "stop", "show", "show"]


@pytest.mark.parametrize("became", ["failed", "inactive"])
def test_a_unit_that_does_not_come_back_is_named_and_stays_noted(
    state: Path, monkeypatch: pytest.MonkeyPatch, became: str
) -> None:
    monkeypatch.setattr(displacement, "START_LIMIT_S", 0.0 if became == "inactive" else 600.0)
    (state / "state").write_text(became)
    (state / "displaced-user.json").write_text(notes("llm.service", "other.service"))
    with pytest.raises(ServerError, match=rf"unit llm\.service to run again, it is {became}; see systemctl"):
        restore_displaced()
    left = Notes.model_validate_json((state / "displaced-user.json").read_bytes()).stopped
    assert [note.unit for note in left] == ["llm.service", "other.service"]
    assert "--user start --no-block -- other.service" in (state / "calls").read_text().splitlines()


def test_a_unit_that_loads_for_long_is_not_waited_for(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(displacement, "START_LIMIT_S", 0.0)
    (state / "state").write_text("activating")
    (state / "displaced-user.json").write_text(notes("llm.service"))
    restore_displaced()
    assert not (state / "displaced-user.json").exists()


@pytest.mark.parametrize(
    ("uid", "directory"), [(0, "/var/lib/draftbench"), (1000, "/home/somebody/state/draftbench")]
)
def test_notes_lie_where_a_reboot_leaves_them(
    monkeypatch: pytest.MonkeyPatch, uid: int, directory: str
) -> None:
    monkeypatch.delenv("DRAFTBENCH_STATE_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/somebody/state")
    monkeypatch.setattr(os, "getuid", lambda: uid)
    assert displacement.state_directory() == Path(directory)


@pytest.mark.parametrize("has_systemd", [False, True])
def test_only_a_host_that_systemd_runs_is_asked_for_units_at_the_end(
    state: Path, monkeypatch: pytest.MonkeyPatch, has_systemd: bool
) -> None:
    monkeypatch.setattr(systemd, "BOOTED", state if has_systemd else state / "none")
    (state / "state").write_text("failed")
    keeper = ServiceKeeper(load_campaign(small_campaign() | {"supervisor": {"kind": "systemd"}}, "small"))
    keeper.end()
    assert ((state / "calls").exists()) is has_systemd
