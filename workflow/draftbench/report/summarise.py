"""Results in, `requests.csv`, `cells.csv` and `summary.json` out."""

from collections import defaultdict
from pathlib import Path

from draftbench.config import Campaign, ConcurrencyWorkload, Source
from draftbench.definitions import DEFINITIONS
from draftbench.files import write_atomic
from draftbench.records import CellResult
from draftbench.report import rounds
from draftbench.report.cells import cell_row, method_info
from draftbench.report.compare import (
    comparisons,
    comparisons_before_repetition,
    comparisons_with_line,
)
from draftbench.report.engine import engine_settings, rooms
from draftbench.report.environment import shared_and_different
from draftbench.report.gaps import gaps_of
from draftbench.report.group import CellIndex
from draftbench.report.load import LoadedCampaign
from draftbench.report.measures import present
from draftbench.report.outputs import count_exactness, output_pairs
from draftbench.report.pooled import acceptances, load_points, round_times, turn_points
from draftbench.report.results import load_results
from draftbench.report.sessions import asked_half_width
from draftbench.report.summary import (
    CellRow,
    Counts,
    Exactness,
    Kind,
    ModelInfo,
    Summary,
    WorkloadInfo,
)
from draftbench.report.tables import cells_csv, requests_csv
from draftbench.report.times import times_spent


def summarise(
    campaign_json: Path,
    specs_json: Path,
    results: Path,
    out: Path,
    *,
    is_partial: bool = False,
    client_sha256: str | None = None,
    can_measure_gaps: bool = True,
) -> Summary:
    """Read a campaign's results, write its tables and its summary into `out`.

    Args:
        campaign_json: the resolved campaign.
        specs_json: {cell name: spec}.
        results: directory of <cell>.json and <cell>.failed.json.
        is_partial: a missing cell becomes a named hole instead of an error.
        client_sha256: hash of today's measuring code; None compares the results with each other.
        out: directory, made when missing.
        can_measure_gaps: whether a staged target may be loaded to explain differing outputs; the
            embedded engine's only.

    Raises:
        ReportError: the results cannot be used as they are.
        ConfigError: a staged target or a prompt file does not fit.
    """
    loaded = load_results(
        campaign_json, specs_json, results, is_partial=is_partial, client_sha256=client_sha256
    )
    index = CellIndex.of(loaded.campaign, loaded.cells)
    pairs = list(output_pairs(index))
    is_ours = loaded.campaign.engine.kind == "embedded"
    gaps = gaps_of(pairs, loaded.campaign, results, can_measure=can_measure_gaps and is_ours)
    summary = _summary(loaded, index, count_exactness(pairs, gaps), is_partial=is_partial)
    write_atomic(out / "requests.csv", requests_csv(loaded))
    write_atomic(out / "cells.csv", cells_csv(summary.cells))
    write_atomic(out / "summary.json", summary.model_dump_json(indent=1) + "\n")
    return summary


def _summary(
    loaded: LoadedCampaign, index: CellIndex, exactness: list[Exactness], *, is_partial: bool
) -> Summary:
    campaign = loaded.campaign
    results = [cell.result for cell in loaded.cells if cell.result is not None]
    rows = [cell_row(cell, campaign) for cell in loaded.cells]
    shared, different = shared_and_different(results)
    return Summary(
        campaign=campaign.campaign,
        description=campaign.description,
        engine=campaign.engine.kind,
        engine_versions=sorted({result.identity.engine_version for result in results}),
        api=campaign.api,
        engine_settings=engine_settings(campaign, results),
        rooms=rooms(index),
        prompt_tokens=_prompt_tokens(campaign, results),
        warmup_tokens=campaign.warmup.max_tokens,
        sessions=campaign.sessions,
        max_sessions=campaign.session_limit,
        asked_half_width=asked_half_width(campaign),
        adaptive=loaded.adaptive,
        repeats=campaign.repeats,
        seed=campaign.seed,
        is_partial=is_partial,
        baseline=index.baseline,
        models={name: _model(campaign, name) for name in campaign.models},
        tps=list(campaign.tp),
        methods=[method_info(name, campaign) for name in campaign.methods],
        workloads=[_workload(campaign, name, results) for name in campaign.workloads],
        counts=_count(rows),
        cells=rows,
        comparisons=comparisons(index, exactness, campaign.seed),
        before_repetition=comparisons_before_repetition(index, campaign.seed),
        over_line=comparisons_with_line(index, exactness, campaign.seed, is_whole=True),
        over_line_before_repetition=comparisons_with_line(index, exactness, campaign.seed, is_whole=False),
        acceptance=acceptances(index),
        round_times=round_times(index),
        turns=turn_points(index),
        loads=load_points(index),
        exactness=exactness,
        times=times_spent(results),
        environment=shared,
        environment_differences=different,
        definitions=[[term, meaning] for term, meaning in (DEFINITIONS | rounds.DEFINITIONS).items()],
        stale_cells=loaded.stale_cells,
        unplanned_files=loaded.unplanned_files,
        first_started_at=min(result.started_at for result in results),
        last_ended_at=max(result.ended_at for result in results),
    )


def _prompt_tokens(campaign: Campaign, results: list[CellResult]) -> dict[Kind, tuple[int, int]]:
    """By kind of workload; kinds without a prompt whose tokens the server counted are left out."""
    counts: defaultdict[Kind, list[int]] = defaultdict(list)
    for result in results:
        kind = campaign.workloads[result.workload].kind
        counts[kind] += present(request.num_prompt_tokens for request in result.requests)
    return {kind: (min(found), max(found)) for kind, found in counts.items() if found}


def _model(campaign: Campaign, name: str) -> ModelInfo:
    target, drafter = campaign.models[name].target, campaign.models[name].drafter
    return ModelInfo(
        target=_source(target),
        drafter=_source(drafter) if drafter else "none",
        scale_to=target.scale_to,
        target_bytes=target.size_bytes,
        drafter_bytes=drafter.size_bytes if drafter else None,
    )


def _source(source: Source) -> str:
    return f"{source.source} ({source.file})" if source.file else source.source


def _workload(campaign: Campaign, name: str, results: list[CellResult]) -> WorkloadInfo:
    workload = campaign.workloads[name]
    sizes = [result.num_attempted for result in results if result.workload == name]
    return WorkloadInfo(
        name=name,
        kind=workload.kind,
        max_tokens=workload.max_tokens,
        ignore_eos=workload.ignore_eos,
        concurrency=workload.concurrency if isinstance(workload, ConcurrencyWorkload) else None,
        num_requests=max(sizes, default=None),
    )


def _count(rows: list[CellRow]) -> Counts:
    states = [row.state for row in rows]
    return Counts(
        num_cells=len(rows),
        num_ok_cells=states.count("ok"),
        num_requests_failed_cells=states.count("requests failed"),
        num_void_cells=states.count("void"),
        num_failed_cells=states.count("cell failed"),
        num_missing_cells=states.count("not run"),
        num_attempted=sum(row.num_attempted for row in rows),
        num_ok=sum(row.num_ok for row in rows),
        num_flagged_cells=sum(bool(row.flags) for row in rows),
    )
