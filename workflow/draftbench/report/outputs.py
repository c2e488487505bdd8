"""Outputs against the baseline's, request by request, and counted by method."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from draftbench.records import CellResult, RequestRecord
from draftbench.report.group import CellIndex, PairKey, Setting, pair_requests
from draftbench.report.near_ties import num_near_ties
from draftbench.report.summary import Exactness, Kind
from draftbench.stats.exactness import Divergence, LogitGap, classify, first_divergence
from draftbench.stats.quantiles import median

GapKey = tuple[str, str, str]
Gaps = Mapping[GapKey, LogitGap]
"""(cell of the output, its request id, cell of the reference) -> gap where the two part."""

Run = tuple[CellResult, Mapping[PairKey, RequestRecord]]
"""One pass over a workload's questions, with the result that holds it."""


@dataclass(frozen=True)
class OutputGroup:
    """What is counted together.

    Attributes:
        setting, method, kind: where the outputs belong.
        is_baseline: the baseline against another run of itself.
    """

    setting: Setting
    method: str
    kind: Kind
    is_baseline: bool


@dataclass(frozen=True)
class OutputPair:
    """Two outputs of one question.

    Attributes:
        group: what they are counted with.
        result, reference_result: the results that hold them.
        request, reference: the output in question and the baseline's.
        divergence: where they part; None where they are equal.
    """

    group: OutputGroup
    result: CellResult
    reference_result: CellResult
    request: RequestRecord
    reference: RequestRecord
    divergence: Divergence | None

    @property
    def key(self) -> GapKey:
        """What names the pair in `Gaps`."""
        return self.result.cell, self.request.request_id, self.reference_result.cell

    @property
    def num_compared_tokens(self) -> int:
        """Tokens of the baseline's output up to and with the first that differs."""
        length = len(self.reference.output_ids or [])
        return length if self.divergence is None else min(self.divergence.position + 1, length)

    @property
    def candidates(self) -> tuple[int, int, int] | None:
        """Position where the outputs part, the baseline's token and the method's.

        None where they do not part, or one of them has ended there.
        """
        parted = self.divergence
        if parted is None or parted.baseline_token is None or parted.method_token is None:
            return None
        return parted.position, parted.baseline_token, parted.method_token


def output_pairs(index: CellIndex) -> Iterator[OutputPair]:
    """Every comparison of outputs that the results allow."""
    if index.baseline is None:
        return
    for setting in index.settings:
        for workload, plan in index.campaign.workloads.items():
            references = _results(index, setting, index.baseline, workload)
            for method in index.methods(setting):
                group = OutputGroup(setting, method, plan.kind, method == index.baseline)
                if group.is_baseline:
                    yield from _baseline_pairs(group, references)
                    continue
                results = _results(index, setting, method, workload)
                for session in sorted(set(results) & set(references)):
                    yield from _pair(group, _whole_run(results[session]), _whole_run(references[session]))


def _results(index: CellIndex, setting: Setting, method: str, workload: str) -> dict[int, CellResult]:
    found = ((session, index.find(setting, method, workload, session)) for session in index.sessions())
    return {session: cell.result for session, cell in found if cell is not None and cell.result is not None}


def _whole_run(result: CellResult) -> Run:
    return result, pair_requests(result)


def _baseline_pairs(group: OutputGroup, results: Mapping[int, CellResult]) -> Iterator[OutputPair]:
    """Every later run of a question by the baseline against the first one."""
    runs = [run for _, result in sorted(results.items()) for run in _runs_by_repeat(result)]
    for run in runs[1:]:
        yield from _pair(group, run, runs[0])


def _runs_by_repeat(result: CellResult) -> list[Run]:
    by_repeat: defaultdict[int, dict[PairKey, RequestRecord]] = defaultdict(dict)
    for key, request in pair_requests(result).items():
        by_repeat[key.repeat][key._replace(repeat=0)] = request
    return [(result, requests) for _, requests in sorted(by_repeat.items())]


def _pair(group: OutputGroup, run: Run, reference_run: Run) -> Iterator[OutputPair]:
    """Pairs with both outputs known; in a conversation none after the first that is not equal."""
    (result, requests), (reference_result, references) = run, reference_run
    parted: set[int] = set()
    for key in sorted(set(requests) & set(references), key=lambda key: (key.repeat, key.turn, key)):
        request, reference = requests[key], references[key]
        ids, reference_ids = request.output_ids, reference.output_ids
        is_known = request.status == reference.status == "ok" and bool(ids) and bool(reference_ids)
        divergence = first_divergence(reference_ids or [], ids or [])
        is_comparable = is_known and key.repeat not in parted
        if group.kind == "agentic" and (divergence is not None or not is_known):
            parted.add(key.repeat)
        if is_comparable:
            yield OutputPair(group, result, reference_result, request, reference, divergence)


def count_exactness(pairs: Sequence[OutputPair], gaps: Gaps) -> list[Exactness]:
    """The pairs counted by group."""
    groups: defaultdict[OutputGroup, list[OutputPair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.group].append(pair)
    return [_count(group, members, gaps) for group, members in groups.items()]


def _count(group: OutputGroup, pairs: Sequence[OutputPair], gaps: Gaps) -> Exactness:
    positions = [pair.divergence.position for pair in pairs if pair.divergence is not None]
    parted = [gaps.get(pair.key) for pair in pairs if pair.divergence is not None]
    kinds = [classify(gap) for gap in parted]
    tie_gaps = [gap.gap for gap, kind in zip(parted, kinds, strict=True) if gap is not None and kind == "tie"]
    limits = [gap.resolution for gap in parted if gap is not None]
    return Exactness(
        model=group.setting.model,
        tp=group.setting.tp,
        method=group.method,
        kind=group.kind,
        num_compared=len(pairs),
        num_prompts=len({pair.reference.prompt_id for pair in pairs}),
        num_equal=len(pairs) - len(positions),
        num_tokens=sum(len(pair.reference.output_ids or []) for pair in pairs),
        num_compared_tokens=sum(pair.num_compared_tokens for pair in pairs),
        num_ties=kinds.count("tie"),
        largest_tie_gap=max(tie_gaps, default=None),
        tie_limit=max(limits, default=None),
        near_tie_share=_near_tie_share(pairs),
        num_faults=kinds.count("fault"),
        num_unmeasured=kinds.count("not measured"),
        first_position=min(positions, default=None),
        median_position=median(positions),
        is_baseline=group.is_baseline,
    )


def _near_tie_share(pairs: Sequence[OutputPair]) -> float | None:
    """Over all tokens of the baseline's audited outputs; None without any."""
    counted = [
        (num, len(pair.reference.output_ids or []))
        for pair in pairs
        if (num := num_near_ties(pair.reference_result.audit, pair.reference.request_id)) is not None
    ]
    tokens = sum(length for _, length in counted)
    return sum(num for num, _ in counted) / tokens if tokens else None
