"""Measure one cell: warm up, flush, measure, and find out whether the numbers may stand."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from draftbench.client import server, validity
from draftbench.client.code_hash import client_sha256
from draftbench.client.journal import Journal, num_window_tokens, summarise_journal
from draftbench.client.telemetry import Sampler, find_doubts
from draftbench.client.template import ChatTemplate
from draftbench.client.warmup import warm_up
from draftbench.client.workload import Runs, Sender
from draftbench.config import Campaign, Cell
from draftbench.errors import MeasurementError, ServerError
from draftbench.records import CellResult, JournalStats, RequestRecord, ServiceIdentity

logger = logging.getLogger(__name__)
FLUSH_LIMIT_S = 30.0


@dataclass
class _Repeats:
    """What the measured repeats gave."""

    records: list[RequestRecord]
    violations: list[str]


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
    base_url = base_url.rstrip("/")
    sender = Sender(campaign, cell, base_url, model_name, ChatTemplate(model_dir))
    runs = Runs(sender)
    started_at, start_s = _now(), time.monotonic()
    before = identify()
    with Sampler(before.pid) as sampler:
        warmup = warm_up(
            campaign.warmup, runs.run_warmup, lambda: server.flush_cache(base_url, FLUSH_LIMIT_S)
        )
        logger.info("warm-up: %s tok/s", ", ".join(f"{speed:.1f}" for speed in warmup.batch_tok_per_s))
        log_start = journal.mark() if journal else None
        measured_s = time.monotonic()
        repeats = _run_repeats(runs, sender, campaign.repeats)
        records = repeats.records
        end_s = time.monotonic()
    after = identify()
    stats, log_violations = _read_journal(journal, log_start, records, before)
    telemetry = sampler.telemetry()
    flags = [] if warmup.converged else [f"warmup-not-settled: {len(warmup.batch_tok_per_s)} batches"]
    flags += validity.cache_flags(records)
    flags += validity.chunk_flags(records)
    flags += validity.journal_flags(stats, records) if stats else []
    flags += find_doubts(telemetry, measured_s, end_s, sampler.foreign_gpu_pids)
    statuses = [record.status for record in records]
    return CellResult(
        campaign=campaign.campaign,
        cell=cell.name,
        service=cell.service.name,
        workload=cell.workload,
        session=cell.service.session,
        order_index=order_index,
        spec=spec,
        client_sha256=client_sha256(),
        started_at=started_at,
        ended_at=_now(),
        start_s=start_s,
        end_s=time.monotonic(),
        window_s=[min(record.send_s for record in records), max(record.end_s for record in records)],
        identity=before,
        warmup=warmup,
        requests=records,
        num_attempted=len(records),
        num_ok=statuses.count("ok"),
        num_failed=statuses.count("failed"),
        num_short=statuses.count("short"),
        num_invalid=statuses.count("invalid"),
        max_in_flight=sender.in_flight.most,
        flags=flags,
        violations=[
            *validity.request_violations(records),
            *validity.in_flight_violations(records, sender.in_flight.most, runs.concurrency),
            *validity.identity_violations(before, after),
            *repeats.violations,
            *log_violations,
        ],
        journal=stats,
        telemetry=telemetry,
    )


def void_reason(result: CellResult) -> str | None:
    """Why a cell has no numbers, or None when it has: any violation makes them void."""
    return "; ".join(result.violations) or None


def _run_repeats(runs: Runs, sender: Sender, num_repeats: int) -> _Repeats:
    """The measured requests; each repeat starts with an empty cache."""
    repeats = _Repeats([], [])
    for repeat in range(num_repeats):
        server.flush_cache(sender.base_url, FLUSH_LIMIT_S)
        sender.sent_prompts.clear()
        sender.settle(repeat)
        records = runs.run_repeat(repeat)
        logger.info("repeat %d: %d of %d ok", repeat, sum(r.status == "ok" for r in records), len(records))
        cold = sorted((record for record in records if record.turn <= 1), key=lambda record: record.send_s)
        repeats.records.extend(records)
        repeats.violations.extend(validity.cache_violations(cold, sender.sent_prompts))
    return repeats


def _read_journal(
    journal: Journal | None, start: Any, records: Sequence[RequestRecord], identity: ServiceIdentity
) -> tuple[JournalStats | None, list[str]]:
    """Statistics of the log since `start`, and the violations that it shows."""
    if journal is None:
        return None, []
    try:
        text = journal.read(start, journal.mark())
    except MeasurementError as error:
        return None, [f"log-replaced: {error}"]
    num_draft_tokens = identity.server_info.get("speculative_num_draft_tokens")
    stats = summarise_journal(text, num_draft_tokens if isinstance(num_draft_tokens, int) else None)
    total = sum(record.num_output_tokens or 0 for record in records)
    changes = {
        "coverage": num_window_tokens(text) / total if total else None,
        "server_accept_length": _server_accept_length(identity.base_url),
    }
    stats = stats.model_copy(update=changes)
    return stats, validity.journal_violations(stats)


def _server_accept_length(base_url: str) -> float | None:
    try:
        return server.mean_accept_length(server.server_info(base_url))
    except ServerError as error:
        logger.warning("no cross-check of the accept length: %s", error)
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
