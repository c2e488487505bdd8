"""GPUs before a start and after a stop: nobody else computes on them, and their memory is free.

GPUs are counted as NVML counts them, by bus. In a container the processes of other containers cannot be
seen, so memory decides where pids do not.
"""

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from draftbench import host
from draftbench.errors import ServerError
from draftbench.servers import proc
from draftbench.servers.base import ServiceHandle, ServiceSpec

POLL_S = 0.5
QUERY_LIMIT_S = 60.0
# What a driver keeps for itself on an idle GPU, and how much of it may come and go.
IDLE_MIB = 2048
TOLERANCE_MIB = 256
# A process that has just been ended stays on NVML's list for a moment; a living stranger does not go away.
STRANGER_GRACE_S = 5.0


@dataclass(frozen=True)
class Gpu:
    """One GPU now.

    Attributes:
        index: as NVML counts.
        pids: of the processes that compute on it.
    """

    index: int
    uuid: str
    name: str
    total_mib: int
    used_mib: int
    pids: tuple[int, ...]


class GpuReader(Protocol):
    """Where the state of the GPUs comes from."""

    def __call__(self) -> list[Gpu]:
        """All GPUs of this host, by index.

        Raises:
            ServerError: they cannot be asked.
        """


def read_gpus() -> list[Gpu]:
    """All GPUs of this host as `nvidia-smi` shows them.

    Raises:
        ServerError: it is missing or fails.
    """
    pids: dict[str, list[int]] = {}
    for uuid, pid in query("--query-compute-apps=gpu_uuid,pid"):
        if pid.isdigit():
            pids.setdefault(uuid, []).append(int(pid))
    return [
        Gpu(int(index), uuid, name, int(total), int(used), tuple(pids.get(uuid, ())))
        for index, uuid, name, total, used in query("--query-gpu=index,uuid,name,memory.total,memory.used")
    ]


def query(what: str) -> list[list[str]]:
    """Rows of one CSV query of `nvidia-smi`.

    Raises:
        ServerError: it is missing or fails.
    """
    if shutil.which("nvidia-smi") is None:
        raise ServerError(
            "expected nvidia-smi on PATH to see this host's GPUs, got no such program; install the NVIDIA "
            "driver, start a container with its GPUs and their utilities"
        )
    try:
        answer = subprocess.run(
            ["nvidia-smi", what, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=QUERY_LIMIT_S,
            check=True,
        )
    except subprocess.SubprocessError as error:
        output = getattr(error, "stdout", None) or getattr(error, "stderr", None) or error
        raise ServerError(
            f"expected nvidia-smi {what} to answer, got: {' '.join(str(output).split())}; check the driver"
        ) from None
    return [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines() if line.strip()]


def choose_gpus(gpus: Sequence[Gpu], count: int, environment: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that a server of `count` GPUs will use: the first ones that CUDA may see.

    Raises:
        ServerError: there are fewer.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    # Empty, it hides all of them.
    names = [str(gpu.index) for gpu in gpus] if visible is None else visible.split(",")
    by_name = {str(gpu.index): gpu for gpu in gpus} | {gpu.uuid: gpu for gpu in gpus}
    chosen = [by_name[name.strip()] for name in names if name.strip() in by_name][:count]
    if len(chosen) < count:
        where = "" if visible is None else f" in CUDA_VISIBLE_DEVICES={visible}"
        raise ServerError(
            f"expected {count} GPUs for tp {count}, got {len(chosen)}{where}; lower tp in the campaign"
        )
    return chosen


@dataclass
class GpuGuard:
    """A service has its GPUs for itself, and gives them back; see `Guard`."""

    read: GpuReader = read_gpus
    stranger_grace_s: float = STRANGER_GRACE_S
    name: str = "gpu"

    def before_start(self, spec: ServiceSpec) -> dict[str, Any] | None:
        """Wait for GPUs that nobody uses; the result has their indices and used memory."""
        if spec.num_gpus == 0:
            return None
        environment = os.environ | spec.launch.environment
        indices = [gpu.index for gpu in choose_gpus(self.read(), spec.num_gpus, environment)]
        gpus = self._wait(indices, dict.fromkeys(indices, IDLE_MIB), spec.limits.gpu_release_s, spec.service)
        return {"used_mib": {str(gpu.index): gpu.used_mib for gpu in gpus}}

    def after_stop(self, handle: ServiceHandle, limit_s: float) -> None:
        """Wait until the service's GPUs have no process and as much memory as before its start."""
        held = handle.held.get(self.name)
        if held is None or handle.boot_id != host.boot_id():
            return
        levels = {int(index): used + TOLERANCE_MIB for index, used in held["used_mib"].items()}
        self._wait(list(levels), levels, limit_s, handle.service)

    def _wait(self, indices: list[int], levels: dict[int, int], limit_s: float, service: str) -> list[Gpu]:
        """Poll until no process is on the GPUs and at most `levels` MiB are used; their last state."""
        started_s = time.monotonic()
        while True:
            gpus = [gpu for gpu in self.read() if gpu.index in indices]
            problem = next((p for gpu in gpus if (p := _occupied(gpu, levels[gpu.index]))), None)
            if problem is None:
                return gpus
            waited_s = time.monotonic() - started_s
            if waited_s > (min(limit_s, self.stranger_grace_s) if problem.is_living else limit_s):
                raise ServerError(
                    f"{service}: {problem.fact} after {waited_s:.0f} s; {problem.remedy}", "gpu"
                )
            time.sleep(POLL_S)


@dataclass(frozen=True)
class _Problem:
    fact: str
    remedy: str
    is_living: bool


def _occupied(gpu: Gpu, level_mib: int) -> _Problem | None:
    """Who or what is still on a GPU; None where it is free."""
    living = [pid for pid in gpu.pids if host.start_ticks(pid) is not None]
    if living:
        pid = living[0]
        who = f"process {pid} of user {owner(pid)} ({proc.command(pid)})"
        fact = f"expected GPU {gpu.index} to be free, but {who} computes on it"
        return _Problem(fact, "wait for it, or end it if it is yours", is_living=True)
    if gpu.used_mib > level_mib:
        unseen = (
            f" by processes that cannot be seen here ({', '.join(map(str, gpu.pids))})" if gpu.pids else ""
        )
        fact = (
            f"expected at most {level_mib} MiB in use on GPU {gpu.index}, but {gpu.used_mib} MiB are{unseen}"
        )
        return _Problem(fact, "look at nvidia-smi on the host itself", is_living=False)
    return None


def owner(pid: int) -> str:
    """Name of the user whose process it is, for sentences."""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return "unknown"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
