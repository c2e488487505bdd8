"""At most one service on this host: started idempotently, identified, stopped.

Port free -> other resources free -> start -> ready by a real generation -> identity checked -> serve ->
SIGTERM, wait, SIGKILL -> resources free again. What serves now is on record in the run directory.
"""

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from draftbench import host
from draftbench.config import Campaign, Limits, Service
from draftbench.config import Supervisor as SupervisorSettings
from draftbench.errors import DraftbenchError, ServerDied
from draftbench.files import write_atomic
from draftbench.records import ServiceIdentity
from draftbench.servers import environment, health
from draftbench.servers.base import Guard, ServiceHandle, ServiceSpec, Supervisor
from draftbench.servers.displacement import Displacement, restore_displaced
from draftbench.servers.gpu import GpuGuard
from draftbench.servers.guards import PortGuard, choose_port
from draftbench.servers.launch import StagedPaths, build_launch, fingerprint
from draftbench.servers.process import ProcessSupervisor, token_prefix
from draftbench.servers.sglang_environment import capture_sglang
from draftbench.servers.systemd import SystemdSupervisor

logger = logging.getLogger(__name__)


def make_supervisor(settings: SupervisorSettings) -> Supervisor:
    """The supervisor that a campaign names."""
    if settings.kind == "process":
        return ProcessSupervisor()
    return SystemdSupervisor(settings.manager)


def make_guards(campaign: Campaign) -> list[Guard]:
    """What is checked before a start and waited for after a stop, in this order."""
    settings = campaign.supervisor
    displaced: list[Guard] = [Displacement(settings.manager, settings.displace)] if settings.displace else []
    return [*displaced, PortGuard(), GpuGuard()]


@dataclass
class ServiceKeeper:
    """Starts and stops the one service of this host.

    Attributes:
        repository: directory of the workflow; servers log under its `logs/server/`.
    """

    campaign: Campaign
    repository: Path = Path()
    supervisor: Supervisor = field(init=False)
    guards: Sequence[Guard] = field(init=False)

    def __post_init__(self) -> None:
        self.supervisor = make_supervisor(self.campaign.supervisor)
        self.guards = make_guards(self.campaign)

    @property
    def limits(self) -> Limits:
        """Of the campaign."""
        return self.campaign.limits

    def current(self) -> ServiceHandle | None:
        """What is on record, alive or not."""
        try:
            return ServiceHandle.model_validate_json(_record_path().read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            logger.warning("%s is damaged; its service, if any, is found by its marker", _record_path())
            return None

    def ensure(self, service: Service, staged: StagedPaths, facts: dict[str, Any]) -> ServiceHandle:
        """The service, healthy: left alone where it serves already, else started anew.

        Args:
            service: which one.
            staged: folders of its models.
            facts: recorded with its environment: hashes of the models.

        Raises:
            DraftbenchError: it could not be started; nothing of it is left running.
        """
        wanted = fingerprint(build_launch(self.campaign, service, staged, port=0))
        present = self.current()
        if present is not None and present.fingerprint == wanted and self._serves(present, service):
            logger.info("%s serves already, process %d", service.name, present.spawned.pid)
            return present
        self.stop()
        return self._start(service, staged, wanted, facts)

    def is_alive(self, handle: ServiceHandle) -> bool:
        """Its process runs; whether it serves is another question."""
        return self._supervisor_of(handle).failure(handle) is None

    def stop(self) -> None:
        """Stop what is on record and what an interrupted start left behind; wait for the resources.

        Raises:
            ServerError: a process or a resource could not be freed.
        """
        handle = self.current()
        if handle is not None:
            self._supervisor_of(handle).stop(handle, self.limits.stop_s)
            for guard in self.guards:
                guard.after_stop(handle, self.limits.gpu_release_s)
            logger.info("%s stopped", handle.service)
        self.supervisor.stop_strays(self.limits.stop_s)
        _record_path().unlink(missing_ok=True)

    def end(self) -> None:
        """Stop, and put the host back as it was: the end of every run."""
        try:
            self.stop()
        finally:
            restore_displaced()

    def identity(self, handle: ServiceHandle) -> ServiceIdentity:
        """Who answers at the service's address now.

        Raises:
            ServerError: it has died or another server answers.
        """
        info = health.check_identity(handle, self.supervisor)
        return ServiceIdentity(
            service=handle.service,
            base_url=handle.base_url,
            argv=list(handle.argv),
            engine=handle.engine,
            engine_version=str(info.get("version") or "unknown"),
            pid=handle.spawned.pid,
            pid_start_ticks=handle.pid_start_ticks,
            boot_id=handle.boot_id,
            invocation_id=handle.spawned.invocation_id,
            started_at=handle.started_at,
            server_info=info,
            environment=handle.environment,
        )

    def _supervisor_of(self, handle: ServiceHandle) -> Supervisor:
        """Another campaign's service may have another supervisor than this one's, or another manager."""
        manager = handle.spawned.manager
        if handle.supervisor == self.supervisor.kind and manager in (None, self.campaign.supervisor.manager):
            return self.supervisor
        return make_supervisor(SupervisorSettings(kind=handle.supervisor, manager=manager or "system"))

    def _serves(self, handle: ServiceHandle, service: Service) -> bool:
        is_same = (handle.campaign, handle.service) == (self.campaign.campaign, service.name)
        return is_same and handle.is_ready and health.is_healthy(handle, self.supervisor)

    def _start(
        self, service: Service, staged: StagedPaths, wanted: str, facts: dict[str, Any]
    ) -> ServiceHandle:
        spec = self._specify(service, staged, wanted)
        held = {guard.name: guard.before_start(spec) for guard in self.guards}
        handle = self._spawn(spec, held)
        try:
            health.wait_ready(handle, self.supervisor, self.limits.ready_s)
            recorded = environment.capture(self.repository) | facts
            if self.campaign.engine.kind == "sglang":
                recorded |= capture_sglang(self.campaign.engine, spec.num_gpus)
        except DraftbenchError:
            self.stop()
            raise
        handle = handle.model_copy(update={"is_ready": True, "environment": recorded})
        _write_record(handle)
        logger.info("%s serves at %s, process %d", service.name, handle.base_url, handle.spawned.pid)
        return handle

    def _specify(self, service: Service, staged: StagedPaths, wanted: str) -> ServiceSpec:
        port = choose_port(self.campaign.port)
        return ServiceSpec(
            campaign=self.campaign.campaign,
            service=service.name,
            launch=build_launch(self.campaign, service, staged, port),
            port=port,
            fingerprint=wanted,
            token=token_prefix() + uuid.uuid4().hex,
            num_gpus=service.tp if self.campaign.engine.kind == "sglang" else 0,
            log=self.repository / "logs" / "server" / self.campaign.campaign / f"{service.name}.log",
            limits=self.limits,
        )

    def _spawn(self, spec: ServiceSpec, held: dict[str, Any]) -> ServiceHandle:
        spawned = self.supervisor.spawn(spec)
        ticks = host.start_ticks(spawned.pid)
        if ticks is None:
            raise ServerDied(f"{spec.service}: expected it to run, but it ended at once; see {spec.log}")
        handle = ServiceHandle(
            campaign=spec.campaign,
            service=spec.service,
            fingerprint=spec.fingerprint,
            token=spec.token,
            supervisor=self.supervisor.kind,
            spawned=spawned,
            pid_start_ticks=ticks,
            boot_id=host.boot_id(),
            port=spec.port,
            engine=spec.launch.engine,
            argv=spec.launch.argv,
            expected=dict(spec.launch.expected),
            log=str(spec.log),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            held=held,
        )
        _write_record(handle)
        return handle


def _record_path() -> Path:
    return host.run_directory() / "service.json"


def _write_record(handle: ServiceHandle) -> None:
    write_atomic(_record_path(), handle.model_dump_json(indent=1) + "\n")
