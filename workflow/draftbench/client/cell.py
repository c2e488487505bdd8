"""Measure one cell: warm up, flush, measure, and find out whether the numbers may stand."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from draftbench.client import server, validity
from draftbench.client.audit import audit_outputs
from draftbench.client.code_hash import client_sha256
from draftbench.client.journal import Journal, num_window_tokens, summarise_journal
from draftbench.client.telemetry import Sampler, find_doubts
from draftbench.client.template import ChatTemplate
from draftbench.client.warmup import warm_up
from draftbench.client.workload import Runs, Sender, verify_size_of
from draftbench.config import Campaign, Cell
from draftbench.errors import MeasurementError, ServerError
from draftbench.records import (
    CellResult,
    JournalStats,
    OutputAudits,
    RequestRecord,
    ServiceIdentity,
    Warmup,
)

logger = logging.getLogger(__name__)
FLUSH_LIMIT_S = 30.0


@dataclass
class _Outcome:
    """What the warm-up and the measured repeats gave; times are monotonic seconds.

    Attributes:
        texts: request id -> the model's input text.
    """

    warmup: Warmup
    log_start: Any
    start_s: float
    end_s: float = 0.0
    records: list[RequestRecord] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    journal: JournalStats | None = None
    audit: OutputAudits | None = None

    def fields(self) -> dict[str, Any]:
        """Its part of a `CellResult`."""
        statuses = Counter(record.status for record in self.records)
        return {
            "warmup": self.warmup,
            "window_s": [min(r.send_s for r in self.records), max(r.end_s for r in self.records)],
            "requests": self.records,
            "num_attempted": len(self.records),
            **{f"num_{status}": statuses[status] for status in ("ok", "failed", "short", "invalid")},
            "flags": self.flags,
            "violations": self.violations,
            "journal": self.journal,
            "audit": self.audit,
        }


def measure_cell(
    campaign: Campaign,
    cell: Cell,
    *,
    spec: dict[str, Any],
    base_url: str,
    model_dir: Path | str,
    order_index: int,
    identify: Callable[[], ServiceIdentity],
    journal: Journal | None = None,
    model_name: str = "target",
) -> CellResult:
    """Measure one cell against a server that is ready.

    Args:
        campaign: the plan; prompt files are read relative to the working directory.
        cell: which service and workload.
        spec: what decides the cell's meaning, stored as it is.
        base_url: `http://host:port` of the server.
        model_dir: the staged target, for its chat template.
        order_index: place of the cell in the campaign's order.
        identify: says who serves; called before and after, its `pid` is watched.
        journal: the server's log; None where there is none to read.
        model_name: the name the target is served under.

    Returns:
        The result, also when requests failed: `violations` is then not empty, and the cell has no throughput.

    Raises:
        ConfigError: a prompt file or chat template does not fit.
        MeasurementError: a warm-up request failed.
        ServerError: `identify` or the flush failed.
    """
    sender = Sender(campaign, cell, base_url.rstrip("/"), model_name, ChatTemplate(model_dir))
    runs = Runs(sender)
    started_at, start_s = _now(), time.monotonic()
    before = identify()
    with Sampler(before.pid) as sampler:
        outcome = _run(runs, sender, journal)
    _check_server(outcome, sender, journal, before=before, after=identify())
    telemetry = sampler.telemetry()
    outcome.flags += find_doubts(telemetry, outcome.start_s, outcome.end_s, sampler.foreign_gpu_pids)
    ended_at, end_s = _now(), time.monotonic()
    _audit(outcome, sender, before)
    return CellResult(
        **_names(campaign, cell),
        order_index=order_index,
        spec=spec,
        client_sha256=client_sha256(),
        started_at=started_at,
        ended_at=ended_at,
        start_s=start_s,
        end_s=end_s,
        identity=before,
        max_in_flight=sender.in_flight.most,
        telemetry=telemetry,
        **outcome.fields(),
    )


def _names(campaign: Campaign, cell: Cell) -> dict[str, Any]:
    """What tells a cell's result from any other."""
    return {
        "campaign": campaign.campaign,
        "cell": cell.name,
        "service": cell.service.name,
        "workload": cell.workload,
        "session": cell.service.session,
    }


def void_reason(result: CellResult) -> str | None:
    """Why a cell has no numbers, or None when it has: any violation makes them void."""
    return "; ".join(result.violations) or None


def _run(runs: Runs, sender: Sender, journal: Journal | None) -> _Outcome:
    """Warm up, then the measured repeats; each of them starts with an empty cache."""

    def flush() -> None:
        server.flush_cache(sender.base_url, FLUSH_LIMIT_S)

    warmup = warm_up(sender.campaign.warmup, runs.run_warmup, flush)
    logger.info("warm-up: %s tok/s", ", ".join(f"{speed:.1f}" for speed in warmup.batch_tok_per_s))
    outcome = _Outcome(warmup, journal.mark() if journal else None, time.monotonic())
    for repeat in range(sender.campaign.repeats):
        flush()
        sender.sent_prompts.clear()
        sender.settle(repeat)
        records = runs.run_repeat(repeat)
        logger.info("repeat %d: %d of %d ok", repeat, sum(r.status == "ok" for r in records), len(records))
        cold = [record for record in records if record.turn <= 1]
        outcome.records.extend(records)
        outcome.texts |= sender.sent_prompts
        outcome.violations.extend(validity.cache_violations(cold, sender.sent_prompts))
    outcome.end_s = time.monotonic()
    if not warmup.converged:
        outcome.flags.append(f"warmup-not-settled: {len(warmup.batch_tok_per_s)} batches")
    outcome.flags += [*validity.cache_flags(outcome.records), *validity.chunk_flags(outcome.records)]
    outcome.violations += [
        *validity.request_violations(outcome.records),
        *validity.in_flight_violations(outcome.records, sender.in_flight.most, runs.concurrency),
    ]
    return outcome


def _check_server(
    outcome: _Outcome,
    sender: Sender,
    journal: Journal | None,
    *,
    before: ServiceIdentity,
    after: ServiceIdentity,
) -> None:
    """Add what identity and log say of the server while it was measured."""
    outcome.violations += validity.identity_violations(before, after)
    if journal is None:
        return
    try:
        text = journal.read(outcome.log_start, journal.mark())
    except MeasurementError as error:
        outcome.violations.append(f"log-replaced: {error}")
        return
    verify_size = before.server_info.get("speculative_num_draft_tokens")
    if not isinstance(verify_size, int):
        verify_size = verify_size_of(sender.campaign.methods[sender.cell.service.method])
    stats = summarise_journal(text, verify_size)
    total = sum(record.num_output_tokens or 0 for record in outcome.records)
    changes = {
        "coverage": num_window_tokens(text) / total if total else None,
        "server_accept_length": _server_accept_length(sender.base_url),
    }
    outcome.journal = stats.model_copy(update=changes)
    outcome.flags += validity.journal_flags(outcome.journal, outcome.records)
    outcome.violations += validity.journal_violations(outcome.journal)


def _audit(outcome: _Outcome, sender: Sender, identity: ServiceIdentity) -> None:
    """Let a baseline's server say how near its choices were to others, where it can and the cell stands."""
    is_baseline = sender.campaign.methods[sender.cell.service.method].algorithm == "ar"
    can_tell = identity.engine == "sglang" and sender.campaign.api == "generate"
    if is_baseline and can_tell and not outcome.violations:
        outcome.audit, doubts = audit_outputs(sender.base_url, outcome.records, outcome.texts)
        outcome.flags += doubts


def _server_accept_length(base_url: str) -> float | None:
    try:
        return server.mean_accept_length(server.server_info(base_url))
    except ServerError as error:
        logger.warning("no cross-check of the accept length: %s", error)
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
