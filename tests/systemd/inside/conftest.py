"""Tests that run inside the box, where PID 1 is a systemd of their own; outside nothing here is collected."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.servers.factories import make_handle, make_spec

from draftbench.servers.base import ServiceHandle
from draftbench.servers.systemd import SystemdSupervisor

if os.environ.get("DRAFTBENCH_INSIDE_BOX") != "1":
    collect_ignore_glob = ["*.py"]

Spawn = Callable[..., ServiceHandle]
UNITS = Path("/etc/systemd/system")


def systemctl(*arguments: str) -> str:
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip()


@pytest.fixture
def supervisor() -> Iterator[SystemdSupervisor]:
    keeper = SystemdSupervisor("system")
    yield keeper
    keeper.stop_strays(1.0)


@pytest.fixture
def spawn(supervisor: SystemdSupervisor, tmp_path: Path) -> Spawn:
    """Start a Python program as a service."""

    def start(program: str, **options: object) -> ServiceHandle:
        number = len(list(tmp_path.glob("*.token")))
        (tmp_path / f"{number}.token").touch()
        argv = (sys.executable, "-S", "-u", "-c", program, *options.pop("arguments", ()))
        spec = make_spec(*argv, log=tmp_path / "server.log", token=f"run:{number:08d}", **options)
        return make_handle(spec, supervisor.spawn(spec))

    return start


@pytest.fixture
def resident() -> Iterator[str]:
    """A unit that is nobody's business but the campaign's that names it."""
    name = "resident.service"
    (UNITS / name).write_text("[Service]\nExecStart=/bin/sleep 600\n")
    systemctl("daemon-reload")
    systemctl("start", name)
    yield name
    systemctl("stop", name)
