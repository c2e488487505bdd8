"""Resident units step aside and come back, under a real systemd."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.servers.factories import make_spec
from tests.systemd.inside.conftest import UNITS, systemctl

from draftbench.errors import ConfigError, ServerError
from draftbench.servers.displacement import Displacement

GPU_SPEC = make_spec(num_gpus=1)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTBENCH_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state" / "displaced-system.json"


def make_unit(name: str, text: str) -> str:
    (UNITS / name).write_text(f"[Service]\n{text}\n")
    systemctl("daemon-reload")
    return name


def test_a_resident_steps_aside_and_comes_back(state: Path, resident: str) -> None:
    displacement = Displacement("system", (resident,))
    assert displacement.before_start(GPU_SPEC) == [resident]
    assert systemctl("is-active", resident) == "inactive"
    displacement.restore()
    assert systemctl("is-active", resident) == "active"
    assert not state.exists()


def test_a_service_without_gpus_displaces_nobody(state: Path, resident: str) -> None:
    assert Displacement("system", (resident,)).before_start(make_spec(num_gpus=0)) == []
    assert systemctl("is-active", resident) == "active"


def test_a_unit_that_did_not_run_is_not_started_at_the_end(state: Path, resident: str) -> None:
    systemctl("stop", resident)
    displacement = Displacement("system", (resident,))
    assert displacement.before_start(GPU_SPEC) == []
    displacement.restore()
    assert systemctl("is-active", resident) == "inactive"


def test_a_unit_that_is_not_named_is_never_stopped(state: Path, resident: str) -> None:
    other = make_unit("other.service", "ExecStart=/bin/sleep 600")
    systemctl("start", other)
    Displacement("system", (resident,)).before_start(GPU_SPEC)
    assert systemctl("is-active", other) == "active"
    systemctl("stop", other)


def test_the_intent_is_on_the_disk_before_the_stop(state: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    name = make_unit("watched.service", f"ExecStart=/bin/sleep 600\nExecStop=/bin/cp {state} {seen}")
    systemctl("start", name)
    Displacement("system", (name,)).before_start(GPU_SPEC)
    assert [note["unit"] for note in json.loads(seen.read_text())["stopped"]] == [name]


def test_the_next_run_starts_what_an_interrupted_one_has_stopped(state: Path, resident: str) -> None:
    Displacement("system", (resident,)).before_start(GPU_SPEC)
    next_run = Displacement("system", (resident,))
    assert next_run.before_start(GPU_SPEC) == []
    next_run.restore()
    assert systemctl("is-active", resident) == "active"


def test_a_unit_that_does_not_come_back_stays_noted(state: Path, resident: str) -> None:
    broken = make_unit("broken.service", "ExecStart=/bin/sleep 600")
    systemctl("start", broken)
    displacement = Displacement("system", (broken, resident))
    displacement.before_start(GPU_SPEC)
    make_unit(broken, "ExecStart=/bin/false\nType=oneshot")
    with pytest.raises(ServerError, match=r"resident unit broken\.service to run again, it is failed"):
        displacement.restore()
    assert systemctl("is-active", resident) == "active"
    assert [note["unit"] for note in json.loads(state.read_text())["stopped"]] == [broken]


def test_an_unknown_unit_is_one_sentence(state: Path) -> None:
    with pytest.raises(ConfigError, match=r"got nobody\.service, which it does not know"):
        Displacement("system", ("nobody.service",)).before_start(GPU_SPEC)


def test_a_damaged_note_is_not_overwritten(state: Path, resident: str) -> None:
    state.parent.mkdir()
    state.write_text("{")
    with pytest.raises(ServerError, match="start the resident services by hand"):
        Displacement("system", (resident,)).before_start(GPU_SPEC)
    assert state.read_text() == "{"
    assert subprocess.run(["systemctl", "is-active", "--quiet", resident], check=False).returncode == 0
