"""The systemd supervisor with a user's manager instead of the system's."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.factories import make_handle, make_spec
from tests.systemd.inside.conftest import systemctl

from draftbench import host
from draftbench.servers.systemd import SystemdSupervisor


@pytest.fixture
def user_manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A manager for root's own units; the box has no login service that would start one."""
    directory = Path(f"/run/user/{os.getuid()}")
    directory.mkdir(mode=0o700, parents=True)
    # The journal knows a user's units by the name of the service that their manager runs in.
    unit = f"user@{os.getuid()}.service"
    options = [f"--unit={unit}", f"--slice=user-{os.getuid()}.slice", "--property=Delegate=yes"]
    options += ["--property=Type=notify", f"--setenv=XDG_RUNTIME_DIR={directory}"]
    command = ["systemd-run", "--quiet", *options, "/usr/lib/systemd/systemd", "--user"]
    subprocess.run(command, check=True, timeout=30)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    yield
    systemctl("stop", unit)


def test_a_service_lives_and_ends_under_a_users_manager(user_manager: None, tmp_path: Path) -> None:
    supervisor = SystemdSupervisor("user")
    program = (sys.executable, "-S", "-u", "-c", "import time; print('up'); time.sleep(600)")
    spec = make_spec(*program, log=tmp_path / "server.log")
    handle = make_handle(spec, supervisor.spawn(spec))
    deadline_s = time.monotonic() + 10
    while supervisor.log_since(handle, "") != "up\n":
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert supervisor.failure(handle) is None
    assert supervisor.owns(handle, handle.spawned.pid)
    supervisor.stop(handle, 2.0)
    assert host.start_ticks(handle.spawned.pid) is None
    assert Path(handle.log).read_text() == "up\n"
