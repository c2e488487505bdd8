"""The end of a run starts all units that stepped aside, of both managers, whatever becomes of one."""

import os
from pathlib import Path

import pytest
from tests.workflow.workspace import small_campaign

from draftbench.config import load_campaign
from draftbench.errors import ServerError
from draftbench.servers.displacement import Notes, StoppedUnit, restore_displaced
from draftbench.servers.lifecycle import ServiceKeeper

FAKE_SYSTEMCTL = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
echo ActiveState=active
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of notes and of a manager whose units all run."""
    tool = tmp_path / "systemctl"
    tool.write_text(FAKE_SYSTEMCTL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DRAFTBENCH_STATE_DIR", str(tmp_path))
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
