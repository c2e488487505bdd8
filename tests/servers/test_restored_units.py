"""The end of a run starts all units that stepped aside, of both managers, whatever becomes of one."""

import os
from pathlib import Path

import pytest

from draftbench.errors import ServerError
from draftbench.servers.displacement import Notes, StoppedUnit, restore_displaced

FAKE_SYSTEMCTL = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
echo ActiveState=active
"""


def test_notes_of_one_manager_that_cannot_be_read_keep_no_unit_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "systemctl"
    tool.write_text(FAKE_SYSTEMCTL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DRAFTBENCH_STATE_DIR", str(tmp_path))
    note = StoppedUnit(unit="llm.service", stopped_at="2026-01-01T00:00:00+00:00", boot_id="one")
    (tmp_path / "displaced-system.json").write_text("{")
    (tmp_path / "displaced-user.json").write_text(Notes(stopped=(note,)).model_dump_json())
    with pytest.raises(ServerError, match=r"displaced-system\.json: expected notes of stopped units"):
        restore_displaced()
    assert "--user start --no-block -- llm.service" in (tmp_path / "calls").read_text().splitlines()
    assert not (tmp_path / "displaced-user.json").exists()
