"""What goes wrong on a GPU host: each fault has a clear line, and nothing finished is lost, no process left.

What does not need a GPU is tested in tests/workflow and tests/servers.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.recovery.gpu_workspace import GpuWorkspace

ALL_CELLS = [f"tp8-{method}.{workload}" for method in ("ar", "dflash") for workload in ("pair", "short")]


def wait_for(condition: Callable[[], object], limit_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.05)


def measure(host: GpuWorkspace) -> tuple[int, str]:
    finished = host.snakemake("--cores", "1", "measured")
    return finished.code, finished.text


def assert_left_alone(host: GpuWorkspace) -> None:
    assert host.living_servers() == []
    assert host.on_gpus() == []


def assert_next_run_resumes(host: GpuWorkspace, kept: list[str]) -> None:
    """A healthy host finishes the campaign, and measures nothing again."""
    before = {cell: host.result(cell).stat().st_mtime_ns for cell in kept}
    host.behave()
    code, text = measure(host)
    assert code == 0, text
    assert host.cells() == ALL_CELLS
    assert {cell: host.result(cell).stat().st_mtime_ns for cell in kept} == before
    assert_left_alone(host)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(600)", "train.py"]
    ) as process:
        yield process
        process.kill()


def test_a_foreign_job_stops_a_run_before_anything_starts(
    host: GpuWorkspace, stranger: subprocess.Popen[bytes]
) -> None:
    host.gpus.show({5: [stranger.pid]})
    finished = host.snakemake("--cores", "1", "measured")
    assert finished.code == 1
    assert f"GPU 5 to be free, but process {stranger.pid} of user" in finished.error()
    assert host.starts() == []
    stranger.kill()
    stranger.wait()
    assert_next_run_resumes(host, kept=[])
    recorded = json.loads(host.result("tp8-ar.short").read_text())["identity"]["environment"]
    assert recorded["gpu_indices"] == list(range(8))


@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    [
        ("out-of-memory", "oom", "CUDA out of memory"),
        pytest.param("lying-health", "timeout", "expected a generated token", marks=pytest.mark.slow),
        pytest.param("hang", "timeout", "2 s", marks=pytest.mark.slow),
    ],
)
def test_a_faulty_service_is_reported_and_the_others_run(
    host: GpuWorkspace, fault: str, reason: str, words: str
) -> None:
    host.behave(dflash=fault)
    code, _ = measure(host)
    assert code == 1
    failure = host.failure("tp8-dflash.short")
    assert failure["reason"] == reason
    assert words in failure["message"]
    assert host.cells() == ["tp8-ar.pair", "tp8-ar.short"]
    assert_left_alone(host)
    assert_next_run_resumes(host, kept=["tp8-ar.pair", "tp8-ar.short"])


@pytest.mark.slow
def test_schedulers_that_outlive_a_stubborn_server_do_not_keep_the_gpus(host: GpuWorkspace) -> None:
    host.behave(ar="stubborn", dflash="stubborn")
    code, text = measure(host)
    assert code == 0, text
    assert host.cells() == ALL_CELLS
    assert len(host.starts()) == 2
    assert_left_alone(host)


def killed_in_a_cell(host: GpuWorkspace) -> list[str]:
    """End everything at once while the second cell is measured; the cells that were finished."""
    process = host.popen("--cores", "1", "measured")
    wait_for(host.cells)
    host.behave(token_s=0.3)
    seen = len(host.events("request"))
    wait_for(lambda: len(host.events("request")) > seen)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    for pid in (*host.living_servers(), *host.on_gpus()):
        os.kill(pid, signal.SIGKILL)
    return host.cells()


@pytest.mark.slow
def test_kill_9_of_everything_loses_nothing_that_is_finished(host: GpuWorkspace) -> None:
    kept = killed_in_a_cell(host)
    assert kept
    assert_next_run_resumes(host, kept)


def test_a_reboot_in_the_middle_loses_nothing_that_is_finished(host: GpuWorkspace) -> None:
    kept = killed_in_a_cell(host)
    host.reboot()
    assert_next_run_resumes(host, kept)


@pytest.fixture
def small_disk(host: GpuWorkspace) -> Iterator[Path]:
    """The results lie on a file system of 64 KiB."""
    if os.getuid() != 0:
        if os.environ.get("CI"):
            pytest.fail("mounting a small file system needs root, and under CI this test must run")
        pytest.skip("mounting a small file system needs root")
    folder = host.path / "results"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_told_and_loses_nothing_that_is_finished(host: GpuWorkspace, small_disk: Path) -> None:
    (small_disk / "small").mkdir()
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (56 << 10))
    code, _ = measure(host)
    assert code == 1
    logs = [host.log("measure", cell) for cell in ALL_CELLS if not host.result(cell).exists()]
    assert logs
    assert all("No space left on device" in log.splitlines()[-1] for log in logs)
    assert_left_alone(host)
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert_next_run_resumes(host, kept=host.cells())


def assert_audited(host: GpuWorkspace, cell: str) -> None:
    """A finished baseline holds what its server said along each output, and no doubt about it."""
    result = json.loads((host.path / f"results/small/{cell}.json").read_text())
    audited = [name for output in result["audit"]["outputs"] for name in output["request_ids"]]
    assert sorted(audited) == sorted(request["request_id"] for request in result["requests"])
    assert not [flag for flag in result["flags"] if flag.startswith("audit")]


@pytest.mark.slow
def test_results_survive_where_the_machine_starts_empty(host: GpuWorkspace, tmp_path: Path) -> None:
    """Half of the campaign on one machine, its results carried to another, the rest there."""
    first = host.snakemake("--cores", "1", *(f"results/small/tp8-ar.{w}.json" for w in ("pair", "short")))
    assert first.code == 0, first.text
    assert_audited(host, "tp8-ar.pair")
    other = GpuWorkspace(tmp_path / "other")
    other.path.mkdir()
    other.create()
    try:
        shutil.copytree(host.path / "results", other.path / "results")
        assert_next_run_resumes(other, kept=["tp8-ar.pair", "tp8-ar.short"])
        assert other.starts() == ["dflash"]
    finally:
        other.clean_up()
