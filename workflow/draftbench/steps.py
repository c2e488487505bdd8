"""The three steps that the workflow runs one by one: stage a model, start a service, measure a cell.

A run is one invocation of Snakemake. Its session directory on tmpfs holds what the steps share: the campaign,
the specs of its cells, and the tokens that say what was done in this run. No token outlives its run.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from draftbench.client.cell import measure_cell
from draftbench.config import Campaign, Cell, Service
from draftbench.errors import DraftbenchError, MeasurementError, ServerError, StagingError
from draftbench.files import write_atomic, write_json
from draftbench.plan import Plan, stored_spec
from draftbench.records import CellFailure, CellResult
from draftbench.servers.base import ServiceHandle
from draftbench.servers.journal import ServiceJournal
from draftbench.servers.lifecycle import ServiceKeeper
from draftbench.staging.place import campaign_root
from draftbench.staging.stage import StagedModel, stage_model

logger = logging.getLogger(__name__)
CAMPAIGN_FILE = "campaign.json"
SPECS_FILE = "specs.json"
# In the client's sentences about requests that took too long; a request's record has no other word for it.
LIMIT_WORDS = ("total limit of", "the idle limit")


def write_session(session: Path, plan: Plan) -> None:
    """Leave the campaign and its specs for the steps of this run.

    Where `auto` stages models is settled here: asked again, with servers and models in memory, it could be
    another place, and a service that serves would be replaced by one that loads a copy from there.
    """
    session.mkdir(parents=True, exist_ok=True)
    settled = plan.campaign.model_copy(update={"staging_root": str(campaign_root(plan.campaign))})
    write_json(session / CAMPAIGN_FILE, settled.model_dump(mode="json"))
    write_json(session / SPECS_FILE, plan.specs)


def result_path(campaign: Campaign, cell_name: str) -> Path:
    """Where a cell's result stands."""
    return Path("results") / campaign.campaign / f"{cell_name}.json"


def failure_path(campaign: Campaign, cell_name: str) -> Path:
    """Where stands why a cell has no result."""
    return Path("results") / campaign.campaign / f"{cell_name}.failed.json"


@dataclass(frozen=True)
class Steps:
    """The steps of one run.

    Attributes:
        session: the run's directory.
    """

    session: Path

    @cached_property
    def plan(self) -> Plan:
        """The run's campaign, which was checked when the run began."""
        return Plan(Campaign.model_validate_json((self.session / CAMPAIGN_FILE).read_bytes()))

    @property
    def campaign(self) -> Campaign:
        """Of the plan."""
        return self.plan.campaign

    def stage(self, model: str, token: Path) -> StagedModel:
        """Stage a model and say so in `token`; a staged one is left alone.

        Raises:
            DraftbenchError: it cannot be staged; each missing cell of its services has a record of why.
        """
        try:
            staged = self._stage(model)
        except DraftbenchError as error:
            self._record_failures((s for s in self.plan.services.values() if s.model == model), error)
            raise
        write_atomic(token, staged.model_dump_json() + "\n")
        return staged

    def start(self, service_name: str, token: Path) -> ServiceHandle:
        """Have a service serve and say so in `token`; a healthy one is left alone.

        Raises:
            DraftbenchError: it does not serve; each of its missing cells has a record of why.
        """
        service = self.plan.services[service_name]
        try:
            handle = self._ensure(service)
        except DraftbenchError as error:
            self._record_failures([service], error)
            raise
        write_atomic(token, handle.model_dump_json() + "\n")
        return handle

    def measure(self, cell_name: str) -> CellResult:
        """Measure a cell and store its result; its service is started where it does not serve.

        Raises:
            DraftbenchError: there is no result; a record beside its place says why.
        """
        cell = self.plan.cells[cell_name]
        path, failure = result_path(self.campaign, cell_name), failure_path(self.campaign, cell_name)
        try:
            result = self._measure(cell)
            _refuse_failed_requests(result)
        except DraftbenchError as error:
            self._record_failure(cell, error)
            raise
        failure.unlink(missing_ok=True)
        write_atomic(path, result.model_dump_json(indent=1) + "\n")
        return result

    def _measure(self, cell: Cell) -> CellResult:
        handle = self._ensure(cell.service)
        keeper = self._keeper
        try:
            return measure_cell(
                self.campaign,
                cell,
                spec=self.plan.specs[cell.name],
                base_url=handle.base_url,
                model_dir=handle.expected["model_path"],
                order_index=self.plan.order[cell.name],
                identify=lambda: keeper.identity(handle),
                journal=ServiceJournal(keeper.supervisor, handle),
            )
        except MeasurementError:
            keeper.identity(handle)  # where the server has died, that is the reason to be told
            raise

    @cached_property
    def _keeper(self) -> ServiceKeeper:
        return ServiceKeeper(self.campaign)

    def _ensure(self, service: Service) -> ServiceHandle:
        staged = self._stage(service.model)
        facts = {"target_sha256": staged.target_sha256, "drafter_sha256": staged.drafter_sha256}
        return self._keeper.ensure(service, staged, facts)

    def _stage(self, model: str) -> StagedModel:
        return stage_model(self.campaign.models[model], campaign_root(self.campaign), self.campaign.methods)

    def _record_failures(self, services: Iterable[Service], error: DraftbenchError) -> None:
        """For every cell of these services that has no result."""
        affected = list(services)
        for name, cell in self.plan.cells.items():
            if cell.service not in affected:
                continue
            if stored_spec(result_path(self.campaign, name)) != self.plan.specs[name]:
                self._record_failure(cell, error)

    def _record_failure(self, cell: Cell, error: DraftbenchError) -> None:
        failure = CellFailure(
            campaign=self.campaign.campaign,
            cell=cell.name,
            service=cell.service.name,
            workload=cell.workload,
            reason=_reason(error),
            message=str(error),
            failed_at=datetime.now(UTC).isoformat(timespec="seconds"),
            spec=self.plan.specs[cell.name],
        )
        write_json(failure_path(self.campaign, cell.name), failure.model_dump(mode="json"))


def _reason(error: DraftbenchError) -> str:
    """One word for the report."""
    if isinstance(error, ServerError):
        return error.reason
    if isinstance(error, MeasurementError) and any(words in str(error) for words in LIMIT_WORDS):
        return "timeout"
    return "staging" if isinstance(error, StagingError) else "error"


def _refuse_failed_requests(result: CellResult) -> None:
    """A cell whose requests did not all end as asked is measured again, so it has no result.

    Raises:
        MeasurementError: a request failed or ended short.
    """
    bad = [record for record in result.requests if record.status in ("failed", "short")]
    if bad:
        first = bad[0]
        raise MeasurementError(
            f"{result.cell}: expected {result.num_attempted} requests to succeed, but {len(bad)} did not; "
            f"the first, {first.request_id} ({first.prompt_id}), {first.status}: {first.error}"
        )
