"""What is started, what is on record of it, and what supervisors and guards can do."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from draftbench.config import Limits
from draftbench.servers.units import Manager

HOST = "127.0.0.1"
# Set in every server's environment, inherited by its children: tells ours from others after any accident.
MARKER = "DRAFTBENCH_SERVICE_TOKEN"
# Names of the variables that steer CUDA and the libraries of an engine.
ENGINE_VARIABLE = r"(CUDA|NCCL|NVSHMEM|SGLANG|TORCH|PYTORCH|TRITON|FLASHINFER)_\w+"


@dataclass(frozen=True)
class Launch:
    """How a service is started, decided by engine, model, method and TP size.

    Attributes:
        argv: the argument list, port included.
        environment: variables beside the inherited ones.
        expected: what `/server_info` must say; None for a key means null or absent.
        engine: `embedded` or `sglang`.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    expected: Mapping[str, Any]
    engine: str


@dataclass(frozen=True)
class ServiceSpec:
    """One start of one service.

    Attributes:
        service: its name in the campaign.
        fingerprint: equal for starts that are interchangeable: of `launch` without its port.
        token: of this start alone; the value of `MARKER`.
        num_gpus: TP size where the engine runs on GPUs, else 0.
        log: file that gets the server's output, where the supervisor has no log of its own.
    """

    campaign: str
    service: str
    launch: Launch
    port: int
    fingerprint: str
    token: str
    num_gpus: int
    log: Path
    limits: Limits


class Spawned(BaseModel):
    """What a supervisor says of a start.

    Attributes:
        pid: the server's main process.
        invocation_id: systemd's, where a unit serves.
        unit: the unit's name.
        manager: whose unit it is, the system's or the user's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    pid: int
    invocation_id: str | None = None
    unit: str | None = None
    manager: Manager | None = None


class ServiceHandle(BaseModel):
    """What is on record of a started service; lies as JSON in the run directory while it lives.

    Attributes:
        pid_start_ticks: field 22 of /proc/<pid>/stat, so that a reused pid is never taken for ours.
        held: what guards noted before the start, by guard.
        is_ready: it has answered a real generation and its identity was right.
        environment: see `environment.capture`; filled when it is ready.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    campaign: str
    service: str
    fingerprint: str
    token: str
    supervisor: Literal["process", "systemd"]
    spawned: Spawned
    pid_start_ticks: int
    boot_id: str
    port: int
    engine: str
    argv: tuple[str, ...]
    expected: dict[str, Any]
    log: str
    started_at: str = Field(description="wall clock, ISO 8601, UTC")
    held: dict[str, Any] = Field(default_factory=dict)
    is_ready: bool = False
    environment: dict[str, Any] = Field(default_factory=dict)

    @property
    def base_url(self) -> str:
        """Where it answers."""
        return f"http://{HOST}:{self.port}"


class Supervisor(Protocol):
    """Keeps a service alive, independently of the process that started it."""

    @property
    def kind(self) -> Literal["process", "systemd"]:
        """Its name in the campaign."""

    def spawn(self, spec: ServiceSpec) -> Spawned:
        """Start it and return at once.

        Raises:
            ServerError: it could not be started.
        """

    def failure(self, handle: ServiceHandle) -> str | None:
        """Why it no longer runs, as the middle of a sentence; None while it runs."""

    def owns(self, handle: ServiceHandle, pid: int) -> bool:
        """Whether a process belongs to the service."""

    def stop(self, handle: ServiceHandle, limit_s: float) -> None:
        """SIGTERM, wait `limit_s`, SIGKILL of all its processes; returns when none is left.

        Raises:
            ServerError: a process could not be ended; the sentence names its pid.
        """

    def log_cursor(self, handle: ServiceHandle) -> str:
        """The present end of its log."""

    def log_since(self, handle: ServiceHandle, cursor: str, end: str = "") -> str:
        """What it has logged from `cursor` to `end`.

        An empty cursor stands for the start of its log, an empty end for now.

        Raises:
            MeasurementError: the log was cut off before the cursor.
        """

    def stop_strays(self, limit_s: float) -> None:
        """Stop what an interrupted start has left behind without a record."""


class Guard(Protocol):
    """Something that a service needs for itself: its port, its GPUs."""

    name: str

    def before_start(self, spec: ServiceSpec) -> Any:
        """Check that it is free; the result is kept in the handle's `held` under the guard's name.

        Raises:
            ServerError: it is in use; the sentence names by whom.
        """

    def after_stop(self, handle: ServiceHandle, limit_s: float) -> None:
        """Wait until it is free again.

        Raises:
            ServerError: it is still in use after `limit_s`; the sentence names by whom.
        """
