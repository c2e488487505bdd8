"""Outputs against the baseline's, request by request, and counted by method."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from draftbench.records import CellResult, RequestRecord
from draftbench.report.group import CellIndex, PairKey, Setting, pair_requests
from draftbench.report.summary import Exactness, Kind
from draftbench.stats.exactness import (
    Divergence,
    LogitGap,
    NumberFormat,
    classify,
    first_divergence,
)
from draftbench.stats.quantiles import median


@dataclass(frozen=True)
class OutputPair:
    """Two outputs of one question.

    Attributes:
        setting, method, kind: where the pair belongs.
        is_baseline: the baseline against another run of itself.
        cell: name of the cell that holds `request`.
        request, reference: the output in question and the baseline's.
        divergence: where they part; None where they are equal.
    """

    setting: Setting
    method: str
    kind: Kind
    is_baseline: bool
    cell: str
    request: RequestRecord
    reference: RequestRecord
    divergence: Divergence | None


@dataclass(frozen=True)
class Gaps:
    """Measured logit gaps at the first differing tokens.

    Attributes:
        number_format: of the target; None where unknown.
        by_request: (cell, request id) -> gap.
    """

    number_format: NumberFormat | None
    by_request: Mapping[tuple[str, str], LogitGap]


def output_pairs(index: CellIndex) -> Iterator[OutputPair]:
    """Every comparison of outputs that the results allow."""
    if index.baseline is None:
        return
    for setting in index.settings:
        for workload, plan in index.campaign.workloads.items():
            references = _results(index, setting, index.baseline, workload)
            for method in index.campaign.methods:
                if method == index.baseline:
                    yield from _baseline_pairs(setting, method, plan.kind, references)
                    continue
                for session, result in _results(index, setting, method, workload).items():
                    if session in references:
                        pairs = _pair(pair_requests(result), pair_requests(references[session]), plan.kind)
                        for request, reference, divergence in pairs:
                            yield OutputPair(
                                setting, method, plan.kind, False, result.cell, request, reference, divergence
                            )


def _results(index: CellIndex, setting: Setting, method: str, workload: str) -> dict[int, CellResult]:
    found = ((session, index.find(setting, method, workload, session)) for session in index.sessions())
    return {session: cell.result for session, cell in found if cell is not None and cell.result is not None}


def _baseline_pairs(
    setting: Setting, method: str, kind: Kind, results: Mapping[int, CellResult]
) -> Iterator[OutputPair]:
    """Every later run of a question by the baseline against the first one."""
    first: dict[PairKey, RequestRecord] = {}
    for result in results.values():
        by_repeat: defaultdict[int, dict[PairKey, RequestRecord]] = defaultdict(dict)
        for key, request in pair_requests(result).items():
            by_repeat[key.repeat][key._replace(repeat=0)] = request
        for requests in by_repeat.values():
            if first:
                for request, reference, divergence in _pair(requests, first, kind):
                    yield OutputPair(setting, method, kind, True, result.cell, request, reference, divergence)
            first = first or requests


def _pair(
    requests: Mapping[PairKey, RequestRecord], references: Mapping[PairKey, RequestRecord], kind: Kind
) -> Iterator[tuple[RequestRecord, RequestRecord, Divergence | None]]:
    """Pairs with both outputs known; in a conversation none after the first difference."""
    parted: set[int] = set()
    for key in sorted(set(requests) & set(references), key=lambda key: (key.repeat, key.turn, key)):
        request, reference = requests[key], references[key]
        is_known = request.status == reference.status == "ok" and request.output_ids and reference.output_ids
        if not is_known or key.repeat in parted:
            continue
        divergence = first_divergence(reference.output_ids or [], request.output_ids or [])
        if divergence is not None and kind == "agentic":
            parted.add(key.repeat)
        yield request, reference, divergence


def count_exactness(pairs: Sequence[OutputPair], gaps: Gaps) -> list[Exactness]:
    """The pairs counted by setting, method and kind of workload."""
    groups: defaultdict[tuple[Setting, str, Kind, bool], list[OutputPair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.setting, pair.method, pair.kind, pair.is_baseline].append(pair)
    return [_count(members, gaps) for members in groups.values()]


def _count(pairs: Sequence[OutputPair], gaps: Gaps) -> Exactness:
    parted = [(pair, pair.divergence) for pair in pairs if pair.divergence is not None]
    kinds = [
        classify(gaps.by_request.get((pair.cell, pair.request.request_id)), gaps.number_format)
        for pair, _ in parted
    ]
    positions = [divergence.position for _, divergence in parted]
    return Exactness(
        model=pairs[0].setting.model,
        tp=pairs[0].setting.tp,
        method=pairs[0].method,
        kind=pairs[0].kind,
        num_compared=len(pairs),
        num_equal=len(pairs) - len(parted),
        num_ties=kinds.count("tie"),
        num_faults=kinds.count("fault"),
        num_unmeasured=kinds.count("not measured"),
        first_position=min(positions, default=None),
        median_position=median(positions),
        is_baseline=pairs[0].is_baseline,
    )
