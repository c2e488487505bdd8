"""From a loaded cell to its row: totals and medians, or the word that stands in their place.

A cell in which a request failed has no throughput and no median: what is left are survivors.
"""

from typing import Any

from draftbench.config import Campaign, ConcurrencyWorkload
from draftbench.definitions import pooled_tau, request_tok_per_s, steady_tok_per_s
from draftbench.records import CellResult
from draftbench.report.load import LoadedCell
from draftbench.report.measures import (
    cell_tok_per_s,
    joules_per_token,
    output_tokens,
    present,
    total_or_none,
)
from draftbench.report.summary import CellRow, MethodInfo
from draftbench.stats.exactness import repeated_ngram_share
from draftbench.stats.quantiles import median, supported_quantile

FAILURE_MARKS = {"oom": "OOM"}
NOT_RUN = "n/r"


def method_info(name: str, campaign: Campaign) -> MethodInfo:
    """A method with its label: the field's usual spelling where the name is the usual one."""
    method = campaign.methods[name]
    usual = {
        "ar": "AR",
        "dflash": "DFlash",
        f"ddtree-b{method.budget}": f"DDTree-{method.budget}",
    }
    return MethodInfo(
        name=name, label=usual.get(name, name), algorithm=method.algorithm, budget=method.budget
    )


def is_whole(result: CellResult | None) -> bool:
    """Whether a cell's numbers may be used: every request ok and no rule broken."""
    return result is not None and result.num_ok == result.num_attempted and not result.violations


def mark_of(cell: LoadedCell) -> str | None:
    """The short word for a cell without a number; None where it has one."""
    if cell.result is not None:
        if cell.result.num_ok < cell.result.num_attempted:
            return f"{cell.result.num_ok}/{cell.result.num_attempted} ok"
        return "void" if cell.result.violations else None
    if cell.failure is not None:
        return FAILURE_MARKS.get(cell.failure.reason, cell.failure.reason)
    return NOT_RUN


def message_of(cell: LoadedCell) -> str | None:
    """The sentence behind a mark: the first failed request's error, the broken rules, or the failure."""
    if cell.result is not None:
        errors = [
            request.error or ", ".join(request.violations) or request.status
            for request in cell.result.requests
            if request.status != "ok"
        ]
        return errors[0] if errors else "; ".join(cell.result.violations) or None
    if cell.failure is not None:
        return cell.failure.message
    return "no result and no record of a failure"


def cell_row(cell: LoadedCell, campaign: Campaign) -> CellRow:
    """Everything that the report says of one cell."""
    workload = campaign.workloads[cell.plan.workload]
    result = cell.result
    values: dict[str, Any] = {
        "cell": cell.plan.name,
        "model": cell.plan.service.model,
        "tp": cell.plan.service.tp,
        "method": cell.plan.service.method,
        "session": cell.plan.service.session,
        "workload": cell.plan.workload,
        "kind": workload.kind,
        "concurrency": workload.concurrency if isinstance(workload, ConcurrencyWorkload) else None,
        "state": _state(cell),
        "mark": mark_of(cell),
        "message": message_of(cell) if mark_of(cell) else None,
    }
    numbers = _numbers(result if is_whole(result) else None, concurrency=values["concurrency"])
    return CellRow(**values, **_measured(result), **numbers)


def _state(cell: LoadedCell) -> str:
    if cell.result is None:
        return "not run" if cell.failure is None else "cell failed"
    if cell.result.num_ok < cell.result.num_attempted:
        return "requests failed"
    return "void" if cell.result.violations else "ok"


def _measured(result: CellResult | None) -> dict[str, Any]:
    """What a cell says of itself whether or not its numbers count."""
    counts = ("num_attempted", "num_ok", "num_failed", "num_short", "num_invalid")
    lists = ("flags", "violations")
    stamps = ("order_index", "started_at", "ended_at")
    values: dict[str, Any] = {name: getattr(result, name, 0) for name in counts}
    values |= {name: getattr(result, name, []) for name in lists}
    values |= {name: getattr(result, name, None) for name in stamps}
    has_journal = result is not None and result.journal is not None
    values["problems"] = result.journal.problems if has_journal else []  # type: ignore[union-attr]
    return values


def _numbers(result: CellResult | None, *, concurrency: int | None) -> dict[str, Any]:
    requests = [] if result is None else result.requests
    is_concurrent = concurrency is not None
    ttft = present(request.ttft_s for request in requests)
    repetition = present(repeated_ngram_share(request.output_ids or []) for request in requests)
    return {
        "output_tokens": None if result is None else output_tokens(result),
        "tok_per_s": None if result is None else cell_tok_per_s(result, is_concurrent=is_concurrent),
        "steady_tok_per_s": steady_tok_per_s(requests, concurrency) if requests and concurrency else None,
        "request_tok_per_s": median(present(request_tok_per_s(request) for request in requests)),
        "ttft_median_s": median(ttft),
        "ttft_p90_s": supported_quantile(ttft, 0.9),
        "ttft_p99_s": supported_quantile(ttft, 0.99),
        "ttft_max_s": max(ttft, default=None),
        "tpot_median_s": median(present(request.tpot_s for request in requests)),
        "e2e_median_s": median(present(request.e2e_s for request in requests)),
        "joules_per_token": None if result is None else joules_per_token(result),
        "num_rounds": total_or_none(request.num_rounds for request in requests),
        "tau": pooled_tau(requests),
        "num_cached_tokens": total_or_none(request.num_cached_tokens for request in requests),
        "repeated_8gram_share": sum(repetition) / len(repetition) if repetition else None,
    }
