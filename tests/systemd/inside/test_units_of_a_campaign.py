"""The real workflow on eight fake GPUs under a real systemd, with a resident service on GPU 0."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.recovery.gpu_workspace import GpuWorkspace, gpu_campaign
from tests.systemd.inside.conftest import systemctl


@pytest.fixture
def host(tmp_path: Path, resident: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuWorkspace]:
    """The resident computes on GPU 0, and the campaign displaces it."""
    monkeypatch.setenv("DRAFTBENCH_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = GpuWorkspace(tmp_path).create()
    campaign = gpu_campaign()
    # A unit gets no variable that the campaign does not name.
    campaign["engine"]["environment"] = {k: v for k, v in made.environment().items() if k.startswith("FAKE_")}
    campaign["supervisor"] = {"kind": "systemd", "displace": [resident]}
    made.configure(campaign)
    made.gpus.show({0: [int(systemctl("show", resident, "-p", "MainPID", "--value"))]})
    yield made
    made.clean_up()


def test_the_resident_is_back_after_a_campaign_with_a_failed_service(
    host: GpuWorkspace, resident: str
) -> None:
    host.behave(dflash="out-of-memory")
    finished = host.snakemake("--cores", "1", "measured")
    assert finished.code == 1
    assert host.cells() == ["tp8-ar.pair", "tp8-ar.short"], finished.text
    failure = host.failure("tp8-dflash.short")
    assert failure["reason"] == "oom"
    assert "CUDA out of memory" in failure["message"]
    assert systemctl("is-active", resident) == "active"
    assert host.living_servers() == []


def test_the_resident_is_back_after_ctrl_c(host: GpuWorkspace, resident: str) -> None:
    host.behave(token_s=0.3)
    process = host.popen("--cores", "1", "measured")
    deadline_s = time.monotonic() + 60
    while not host.events("request"):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    assert systemctl("is-active", resident) == "inactive"
    os.killpg(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode != 0, text
    assert systemctl("is-active", resident) == "active"
    assert host.living_servers() == []
    assert host.on_gpus() == []
