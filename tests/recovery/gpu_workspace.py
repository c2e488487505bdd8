"""A host of eight fake GPUs on which the real workflow runs a small campaign with a fake SGLang."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.servers.fake_gpus import FakeGpus
from tests.workflow.workspace import Workspace, small_campaign

FAKE = Path(__file__).with_name("fake_sglang.py")


def gpu_campaign(**changes: Any) -> dict[str, Any]:
    """Two services on all eight GPUs x two workloads."""
    campaign = small_campaign()
    del campaign["methods"]["ddtree-b8"]
    campaign |= {
        "engine": {"kind": "sglang", "version": "0.5.17", "python": "./fake-python"},
        "tp": [8],
        "limits": {"ready_s": 5, "stop_s": 1, "idle_s": 2, "request_s": 20, "gpu_release_s": 5},
    }
    return campaign | changes


class GpuWorkspace(Workspace):
    """A workspace with GPUs; `small` is the campaign's name, its cells are tp8-<method>.<workload>."""

    @property
    def gpus(self) -> FakeGpus:
        return FakeGpus(self.path / "host")

    def create(self, campaign: dict[str, Any] | None = None) -> "GpuWorkspace":
        super().create(campaign or gpu_campaign())
        (self.path / "fake-python").write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
        self.gpus.install()
        return self

    def environment(self) -> dict[str, str]:
        return super().environment() | {"PATH": self.gpus.path, "FAKE_GPUS": str(self.gpus.state)}

    def cells(self) -> list[str]:
        """Names of the cells that have a result."""
        found = (self.path / "results/small").glob("*.json")
        return sorted(path.stem for path in found if not path.stem.endswith(".failed"))

    def on_gpus(self) -> list[int]:
        """Processes that still compute on a GPU."""
        pids = [p for listed in json.loads(self.gpus.state.read_text())["pids"].values() for p in listed]
        return [pid for pid in pids if is_alive(pid)]

    def clean_up(self) -> None:
        super().clean_up()
        for pid in self.on_gpus():
            os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
