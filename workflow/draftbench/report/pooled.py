"""Series for the figures, pooled over the sessions whose cells are whole."""

from collections import defaultdict
from collections.abc import Sequence

from draftbench.config import ConcurrencyWorkload
from draftbench.definitions import (
    chunk_gaps_s,
    pooled_histogram,
    pooled_tau,
    request_tok_per_s,
    steady_tok_per_s,
)
from draftbench.records import RequestRecord
from draftbench.report.cells import mark_of
from draftbench.report.environment import same_environment, same_machine
from draftbench.report.group import CellIndex, Setting
from draftbench.report.measures import busy_s, output_tokens, present, total_or_none
from draftbench.report.rounds import pooled_round_s, pooled_step_s, pooled_tau_before_repetition
from draftbench.report.summary import Acceptance, LoadPoint, RoundTime, TurnPoint
from draftbench.stats.quantiles import median, supported_quantile


def acceptances(index: CellIndex) -> list[Acceptance]:
    """Acceptance of each method on the single requests that are compared together: of all, and by type."""
    rows = []
    for setting in index.settings:
        for method in index.methods(setting):
            workloads = index.together(setting, method)
            requests = [
                request
                for workload in workloads
                for result in index.whole_results(setting, method, workload)
                for request in result.requests
            ]
            by_type: defaultdict[str, list[RequestRecord]] = defaultdict(list)
            for request in requests:
                by_type[request.prompt_type].append(request)
            if requests:
                rows.append(_acceptance(setting, method, workloads, None, requests))
                rows += [
                    _acceptance(setting, method, workloads, kind, by_type[kind]) for kind in sorted(by_type)
                ]
    return rows


def _acceptance(
    setting: Setting,
    method: str,
    workloads: Sequence[str],
    prompt_type: str | None,
    requests: Sequence[RequestRecord],
) -> Acceptance:
    histograms = present(request.accept_histogram for request in requests)
    rounds = total_or_none(request.num_rounds for request in requests)
    proposed = total_or_none(request.num_proposed_tokens for request in requests)
    return Acceptance(
        model=setting.model,
        tp=setting.tp,
        method=method,
        workloads=list(workloads),
        prompt_type=prompt_type,
        num_prompts=len({request.prompt_id for request in requests}),
        tau=pooled_tau(requests),
        tau_before_repetition=pooled_tau_before_repetition(requests) if rounds else None,
        num_rounds=rounds or 0,
        histogram=pooled_histogram(requests) if len(histograms) == len(requests) else None,
        proposed_per_round=proposed / rounds if proposed is not None and rounds else None,
    )


def round_times(index: CellIndex) -> list[RoundTime]:
    """How long a round of each drafting method takes, and a step of the baseline beside it, by workload."""
    return [
        row
        for setting in index.settings
        for method in index.methods(setting)
        if method != index.baseline
        for workload in index.campaign.workloads
        if (row := _round_time(index, setting, method, workload)) is not None
    ]


def _round_time(index: CellIndex, setting: Setting, method: str, workload: str) -> RoundTime | None:
    """Over the sessions in which both were measured in one environment, as speedups are.

    None without such a session, or where rounds are not known.
    """
    if index.baseline is None:
        return None
    ours = {result.session: result for result in index.whole_results(setting, method, workload)}
    theirs = {result.session: result for result in index.whole_results(setting, index.baseline, workload)}
    common = [
        session
        for session in sorted(ours.keys() & theirs.keys())
        if same_environment(ours[session], theirs[session])
    ]
    requests = [request for session in common for request in ours[session].requests]
    round_s = pooled_round_s(requests)
    step_s = pooled_step_s([request for session in common for request in theirs[session].requests])
    if round_s is None or step_s is None:
        return None
    return RoundTime(
        model=setting.model,
        tp=setting.tp,
        method=method,
        workload=workload,
        num_sessions=len(common),
        num_split_sessions=sum(not same_machine(ours[session], theirs[session]) for session in common),
        round_s=round_s,
        step_s=step_s,
        tau=pooled_tau(requests),
    )


def turn_points(index: CellIndex) -> list[TurnPoint]:
    """Every turn of every scenario by method."""
    rows = []
    for setting in index.settings:
        for workload in index.workloads("agentic"):
            for method in index.methods(setting):
                by_turn: defaultdict[int, list[RequestRecord]] = defaultdict(list)
                for result in index.whole_results(setting, method, workload):
                    for request in result.requests:
                        by_turn[request.turn].append(request)
                rows += [
                    _turn(setting, method, workload, turn, requests)
                    for turn, requests in sorted(by_turn.items())
                ]
    return rows


def _turn(
    setting: Setting, method: str, workload: str, turn: int, requests: Sequence[RequestRecord]
) -> TurnPoint:
    seconds = sum(request.e2e_s or 0.0 for request in requests)
    tokens = sum(request.num_output_tokens or 0 for request in requests)
    cached = total_or_none(request.num_cached_tokens for request in requests)
    prompts = total_or_none(request.num_prompt_tokens for request in requests)
    return TurnPoint(
        model=setting.model,
        tp=setting.tp,
        method=method,
        workload=workload,
        turn=turn,
        num_requests=len(requests),
        ttft_median_s=median(present(request.ttft_s for request in requests)),
        tok_per_s=tokens / seconds if seconds > 0 else None,
        prompt_tokens_median=median(present(request.num_prompt_tokens for request in requests)),
        cached_share=cached / prompts if cached is not None and prompts else None,
    )


def load_points(index: CellIndex) -> list[LoadPoint]:
    """Every concurrency workload by method; a method without a whole cell has a mark."""
    rows = []
    for setting in index.settings:
        for workload in index.workloads("concurrency"):
            for method in index.methods(setting):
                cells = [index.find(setting, method, workload, session) for session in index.sessions()]
                planned = [cell for cell in cells if cell is not None]
                if planned:
                    row = _load(index, setting, method, workload)
                    rows.append(
                        row if row.num_sessions else row.model_copy(update={"mark": mark_of(planned[0])})
                    )
    return rows


def _load(index: CellIndex, setting: Setting, method: str, workload: str) -> LoadPoint:
    plan = index.campaign.workloads[workload]
    assert isinstance(plan, ConcurrencyWorkload)  # noqa: S101 - by its kind
    results = list(index.whole_results(setting, method, workload))
    requests = [request for result in results for request in result.requests]
    tokens = sum(output_tokens(result) for result in results)
    seconds = sum(busy_s(result, is_concurrent=True) for result in results)
    ttft = present(request.ttft_s for request in requests)
    gaps = [gap for request in requests for gap in chunk_gaps_s(request.chunks)]
    steady = present(steady_tok_per_s(result.requests, plan.concurrency) for result in results)
    return LoadPoint(
        model=setting.model,
        tp=setting.tp,
        method=method,
        workload=workload,
        concurrency=plan.concurrency,
        num_sessions=len(results),
        num_requests=len(requests),
        tok_per_s=tokens / seconds if seconds > 0 else None,
        steady_tok_per_s=sum(steady) / len(steady) if steady and len(steady) == len(results) else None,
        request_tok_per_s=median(present(request_tok_per_s(request) for request in requests)),
        ttft_median_s=median(ttft),
        ttft_max_s=max(ttft, default=None),
        chunk_gap_p99_s=supported_quantile(gaps, 0.99),
        mark=None,
    )
