"""The systemd supervisor and the displacing of units, tested inside a real systemd.

Needs root, a cgroup2 mount and Debian's systemd. Without them these tests are skipped; under CI they fail.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SYSTEMD = Path("/usr/lib/systemd/systemd")


def missing() -> str | None:
    if os.getuid() != 0:
        return "these tests need root"
    if not SYSTEMD.exists():
        return f"these tests need {SYSTEMD} (apt-get install systemd dbus)"
    if not any(line.split()[2] == "cgroup2" for line in Path("/proc/mounts").read_text().splitlines()):
        return "these tests need a cgroup2 mount"
    return None


@dataclass(frozen=True)
class Box:
    disk: Path

    def call(self, verb: str, *arguments: str, limit_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        command = [str(HERE / "box"), verb, str(self.disk), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=False, cwd=HERE.parent.parent
        )

    def boot(self) -> None:
        done = self.call("boot", str(self.disk))
        assert done.returncode == 0, done.stderr

    def run_tests(self, *names: str) -> None:
        """Run test files inside, and show what they say when they fail."""
        variables = [
            "DRAFTBENCH_INSIDE_BOX=1",
            f"DRAFTBENCH_STATE_DIR={self.disk}/state",
            f"DRAFTBENCH_RUN_DIR={self.disk}/run",
            "PYTHONDONTWRITEBYTECODE=1",
            "HOME=/root",
        ]
        pytest_call = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        paths = [str(HERE / "inside" / name) for name in names]
        done = self.call("enter", "env", *variables, *pytest_call, *paths, limit_s=280.0)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    reason = missing()
    if reason is not None:
        if os.environ.get("CI"):
            pytest.fail(f"{reason}, and under CI they must run")
        pytest.skip(reason)
    disk = Path(tempfile.mkdtemp(prefix="draftbench-box-", dir="/var/tmp"))
    made = Box(disk)
    try:
        made.boot()
        yield made
    finally:
        done = made.call("discard")
        shutil.rmtree(disk)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def sentinel() -> Iterator[Path]:
    """A file in the host's /tmp that was there before the boot."""
    path = Path(tempfile.mkdtemp(prefix="draftbench-sentinel-", dir="/tmp"))
    yield path
    path.rmdir()


def test_the_hosts_files_survive_a_boot(sentinel: Path, box: Box) -> None:
    assert sentinel.is_dir()
    assert not box.call("enter", "ls", str(sentinel)).stdout
    assert box.call("enter", "touch", str(HERE / "written")).returncode != 0


def test_the_supervisor_keeps_its_promises_under_a_real_systemd(box: Box) -> None:
    box.run_tests("test_supervisor.py", "test_user_manager.py")


def test_residents_step_aside_and_come_back_under_a_real_systemd(box: Box) -> None:
    box.run_tests("test_displacement.py")


def test_the_workflow_displaces_a_resident_and_restores_it(box: Box) -> None:
    box.run_tests("test_units_of_a_campaign.py")


def test_a_reboot_ends_the_service_and_brings_the_resident_back(box: Box) -> None:
    box.run_tests("reboot_before.py")
    assert box.call("cut").returncode == 0
    box.boot()
    box.run_tests("reboot_after.py")


def test_nothing_of_the_box_is_left(box: Box) -> None:
    other = Box(Path(tempfile.mkdtemp(prefix="draftbench-box-", dir="/var/tmp")))
    other.boot()
    assert other.call("discard").returncode == 0
    assert not [line for line in Path("/proc/mounts").read_text().splitlines() if str(other.disk) in line]
    shutil.rmtree(other.disk)
