"""What the systemd supervisor asks its tools for and reads from them; a real one is in tests/systemd."""

import json
import os
from pathlib import Path

import pytest
from tests.servers.factories import make_handle, make_spec

from draftbench.errors import ServerError
from draftbench.servers.base import MARKER, ServiceHandle, Spawned
from draftbench.servers.systemd import SystemdSupervisor, unit_prefix
from draftbench.servers.units import UnitManager

SYSTEMD_RUN = """#!/bin/sh
printf '%s\\n' "$@" > "$(dirname "$0")/asked"
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH: `systemd-run` notes its arguments, `systemctl` prints the file `shown`."""
    for name, text in (
        ("systemd-run", SYSTEMD_RUN),
        ("systemctl", '#!/bin/sh\ncat "$(dirname "$0")/shown"\n'),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "shown").write_text("ActiveState=active\nMainPID=42\nInvocationID=one\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def handle_of(unit: str, **changes: object) -> ServiceHandle:
    return make_handle(make_spec(), Spawned(pid=os.getpid(), unit=unit, invocation_id="one"), **changes)


def test_a_unit_has_the_launch_its_marker_and_of_the_shells_variables_those_of_engines(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.chdir(tools)
    spec = make_spec("sh", "-c", "echo $HOME", environment={"NCCL_P2P_DISABLE": "1"})
    spawned = SystemdSupervisor().spawn(spec)
    assert (spawned.pid, spawned.invocation_id) == (42, "one")
    options, program = (tools / "asked").read_text().split("\n--\n")
    assert program.splitlines()[1:] == ["-c", "echo $$HOME"]
    assert Path(program.splitlines()[0]).is_absolute()
    wanted = {
        f"--unit={spawned.unit}",
        f"--setenv=PATH={os.environ['PATH']}",
        "--setenv=NCCL_DEBUG=INFO",
        "--setenv=NCCL_P2P_DISABLE=1",
        f"--setenv={MARKER}={spec.token}",
        f"--property=WorkingDirectory={tools}",
        "--property=TasksMax=infinity",
        "--property=TimeoutStopSec=2s",
        "--property=Restart=no",
    }
    assert wanted <= set(options.splitlines())
    assert "HF_TOKEN" not in options


def test_every_start_has_a_unit_of_its_own(tools: Path) -> None:
    tokens = ("run:00000000", "run:00000001")
    units = {SystemdSupervisor().spawn(make_spec("sh", token=token)).unit for token in tokens}
    assert len(units) == 2


def test_units_of_another_run_directory_have_other_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefixes = set()
    for name in ("one", "another"):
        monkeypatch.setenv("DRAFTBENCH_RUN_DIR", str(tmp_path / name))
        prefixes.add(unit_prefix())
    assert len(prefixes) == 2


def test_a_unit_of_another_boot_does_not_run_though_one_of_its_name_does(tools: Path) -> None:
    handle = handle_of("draftbench-1.service")
    assert SystemdSupervisor().failure(handle) is None
    stale = handle.model_copy(update={"boot_id": "another"})
    assert SystemdSupervisor().failure(stale) == "its host was started anew"


def test_a_tool_that_fails_is_one_sentence_with_its_own_words(tools: Path) -> None:
    (tools / "systemctl").write_text("#!/bin/sh\necho Access denied >&2\nexit 4\n")
    with pytest.raises(ServerError, match="expected 'systemctl --user show' to succeed, got: Access denied;"):
        UnitManager("user").state("llm.service")


def test_a_message_may_hold_any_character_but_a_line_feed(tools: Path) -> None:
    messages = ["one\u2028two\u0085three", "four", ""]
    entries = [json.dumps({"__CURSOR": "c", "MESSAGE": text}, ensure_ascii=False) for text in messages]
    (tools / "lines").write_text("".join(f"{entry}\n" for entry in [*entries, '{"__CURSOR": "c"}']))
    (tools / "journalctl").write_text('#!/bin/sh\ncat "$(dirname "$0")/lines"\n')
    (tools / "journalctl").chmod(0o755)
    assert list(UnitManager("system").log_lines("one")) == [*messages, ""]


@pytest.mark.parametrize(
    ("shown", "usage"),
    [
        ("MemoryPeak=1000\nCPUUsageNSec=2500000000\n", (1000, 2.5)),
        ("MemoryPeak=[not set]\nCPUUsageNSec=[not set]\n", (None, None)),
        (f"MemoryPeak={2**64 - 1}\nCPUUsageNSec={2**64 - 1}\n", (None, None)),
    ],
)
def test_what_a_unit_used_is_its_managers_count(
    tools: Path, shown: str, usage: tuple[int | None, float | None]
) -> None:
    (tools / "shown").write_text(shown)
    used = SystemdSupervisor().usage(handle_of("no-such-unit.service"))
    assert (used["memory_peak_bytes"], used["cpu_s"]) == usage
