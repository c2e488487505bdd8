"""Specs and handles of services, for tests of what stands below the keeper."""

from pathlib import Path

from draftbench import host
from draftbench.config import Limits
from draftbench.servers.base import Launch, ServiceHandle, ServiceSpec, Spawned

LIMITS = Limits(stop_s=2.0, gpu_release_s=1.0)


def make_spec(
    *argv: str,
    num_gpus: int = 0,
    environment: dict[str, str] | None = None,
    log: Path = Path("server.log"),
    token: str = "run:0123456789abcdef",  # noqa: S107 - tells starts apart, opens nothing
) -> ServiceSpec:
    launch = Launch(argv=argv or ("server",), environment=environment or {}, expected={}, engine="sglang")
    return ServiceSpec(
        campaign="test",
        service="tp8-ar",
        launch=launch,
        port=30000,
        fingerprint="",
        token=token,
        num_gpus=num_gpus,
        log=log,
        limits=LIMITS,
    )


def make_handle(spec: ServiceSpec, spawned: Spawned | None = None, **changes: object) -> ServiceHandle:
    pid = spawned.pid if spawned else 1
    values = {
        "campaign": spec.campaign,
        "service": spec.service,
        "fingerprint": "",
        "token": spec.token,
        "supervisor": "systemd" if spawned and spawned.unit else "process",
        "spawned": spawned or Spawned(pid=pid),
        "pid_start_ticks": host.start_ticks(pid) or 1,
        "boot_id": host.boot_id(),
        "port": spec.port,
        "engine": spec.launch.engine,
        "argv": spec.launch.argv,
        "expected": {},
        "log": str(spec.log),
        "started_at": "2026-01-01T00:00:00+00:00",
    }
    return ServiceHandle.model_validate(values | changes)
