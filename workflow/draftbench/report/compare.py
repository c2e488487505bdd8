"""Every method against the baseline of the same model, TP size and session, paired by prompt.

Trees are also compared with the linear block, in the same way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from draftbench.files import sha256_text
from draftbench.records import CellResult, RequestRecord
from draftbench.report.cells import NOT_RUN, is_whole, mark_of, message_of
from draftbench.report.environment import same_environment, same_machine
from draftbench.report.group import CellIndex, Setting, pair_requests
from draftbench.report.load import LoadedCell
from draftbench.report.measures import busy_s, has_token_times, output_tokens, time_to_tokens_s
from draftbench.report.summary import Comparison, Evidence, Exactness, Kind
from draftbench.stats.exactness import num_tokens_before_repetition
from draftbench.stats.speedup import PairedTotals, compare, relative_half_width

Totals = dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]
"""Unit of the inner resampling -> [method tokens, method s, baseline tokens, baseline s, requests]."""

Unit = Literal["prompt", "turn", "run"]
UNITS: dict[Kind, Unit] = {"single": "prompt", "agentic": "turn", "concurrency": "run"}
"""What is resampled inside a session; a concurrent run is one measurement, whatever its requests."""


@dataclass(frozen=True)
class Scope:
    """What one comparison covers.

    Attributes:
        setting, method: what is compared there.
        reference: with what: the baseline or, of a tree, the linear block.
        workload: its name; None for several together.
        workloads: the workloads summed.
        kind: their kind.
        is_whole: all tokens; else those before either output repeats an 8-gram.
    """

    setting: Setting
    method: str
    reference: str
    workload: str | None
    workloads: tuple[str, ...]
    kind: Kind
    is_whole: bool = True


@dataclass(frozen=True)
class Hole:
    """Why a session gives no comparison."""

    mark: str
    reason: str


class Measured(NamedTuple):
    """What one session gives a comparison.

    Attributes:
        totals: see `Totals`.
        is_split: whether the method and the baseline ran on different machines of the same kind.
    """

    totals: Totals
    is_split: bool


def comparisons(index: CellIndex, exactness: Sequence[Exactness], seed: int) -> list[Comparison]:
    """All comparisons: each workload, and the single-request workloads together."""
    faulty = _faulty(exactness)
    fault = Hole("fault", "its text differs from the baseline's by more than rounding")
    return [
        _outcome(scope, fault)
        if (*scope.setting, scope.method) in faulty
        else _compare_sessions(index, scope, seed)
        for scope in _scopes(index)
    ]


def comparisons_before_repetition(index: CellIndex, seed: int) -> list[Comparison]:
    """The comparisons of single requests, up to where the output of the method or of the baseline repeats.

    Both have the same tokens then, a request's first ones: how many is decided by texts and not by times. The
    time is until they had arrived, which for a method that emits several at once is up to a round too long.
    """
    return [
        _compare_sessions(index, replace(scope, is_whole=False), seed)
        for scope in _scopes(index)
        if scope.kind == "single"
    ]


def comparisons_with_line(
    index: CellIndex, exactness: Sequence[Exactness], seed: int, *, is_whole: bool
) -> list[Comparison]:
    """Every tree against the linear block over the single-request workloads together.

    The quotient of two speedups over AR is another thing where one method has more sessions.

    Args:
        index: the cells.
        exactness: whose faults leave a method without a number.
        seed: of the draws.
        is_whole: all tokens; else those before either output repeats an 8-gram.
    """
    algorithms = {name: method.algorithm for name, method in index.campaign.methods.items()}
    faulty = _faulty(exactness)
    rows = []
    for scope in _scopes(index):
        lines = [name for name in index.methods(scope.setting) if algorithms[name] == "dflash"]
        if scope.workload is not None or algorithms[scope.method] != "ddtree" or not lines:
            continue
        if not faulty & {(*scope.setting, scope.method), (*scope.setting, lines[0])}:
            paired = replace(scope, reference=lines[0], is_whole=is_whole)
            rows.append(_compare_sessions(index, paired, seed))
    return rows


def _faulty(exactness: Sequence[Exactness]) -> set[tuple[str, int, str]]:
    """(model, TP, method) whose texts differ by more than rounding."""
    return {(row.model, row.tp, row.method) for row in exactness if row.num_faults}


def _scopes(index: CellIndex) -> Iterator[Scope]:
    if index.baseline is None:
        return
    for setting in index.settings:
        for method in index.methods(setting):
            if method == index.baseline:
                continue
            together = index.together(setting, method)
            if together:
                yield Scope(setting, method, index.baseline, None, together, "single")
            planned = {key[2] for key in index.by_key if key[:2] == (setting, method)}
            for name, workload in index.campaign.workloads.items():
                if name in planned:
                    yield Scope(setting, method, index.baseline, name, (name,), workload.kind)


def _compare_sessions(index: CellIndex, scope: Scope, seed: int) -> Comparison:
    sessions = [outcome for outcome in _session_outcomes(index, scope) if outcome is not None]
    holes = [outcome for outcome in sessions if isinstance(outcome, Hole)]
    measured = [outcome for outcome in sessions if not isinstance(outcome, Hole)]
    if not measured:
        return _outcome(scope, holes[0])
    units = sorted(set.intersection(*(set(one.totals) for one in measured)))
    if not units:
        return _outcome(scope, Hole("unpaired", "the method and the baseline answered no common prompt"))
    totals = [one.totals for one in measured]
    evidence = _evidence(totals, units, UNITS[scope.kind], _scope_seed(scope, seed))
    num_split = sum(one.is_split for one in measured)
    return _outcome(
        scope, holes[0] if holes else None, evidence, num_excluded=len(holes), num_split=num_split
    )


def _outcome(
    scope: Scope,
    hole: Hole | None,
    evidence: Evidence | None = None,
    *,
    num_excluded: int = 0,
    num_split: int = 0,
) -> Comparison:
    return Comparison(
        model=scope.setting.model,
        tp=scope.setting.tp,
        method=scope.method,
        reference=scope.reference,
        workload=scope.workload,
        workloads=list(scope.workloads),
        evidence=evidence,
        mark=hole.mark if hole and evidence is None else None,
        reason=hole.reason if hole else None,
        num_excluded_sessions=num_excluded,
        num_split_sessions=num_split,
    )


def _session_outcomes(index: CellIndex, scope: Scope) -> Iterator[Measured | Hole | None]:
    for session in index.sessions():
        methods = [index.find(scope.setting, scope.method, name, session) for name in scope.workloads]
        baselines = [index.find(scope.setting, scope.reference, name, session) for name in scope.workloads]
        prefix = "AR " if scope.reference == index.baseline else f"{scope.reference} "
        yield _pair_session(methods, baselines, scope, prefix)


def _pair_session(
    methods: list[LoadedCell | None], baselines: list[LoadedCell | None], scope: Scope, prefix: str
) -> Measured | Hole | None:
    """Totals of one session; why there are none; None where the campaign plans none."""
    if all(cell is None for cell in methods):
        return None
    totals: Totals = {}
    is_split = False
    for method, baseline in zip(methods, baselines, strict=True):
        ours, theirs = _whole_result(method, ""), _whole_result(baseline, prefix)
        if isinstance(ours, Hole):
            return ours
        if isinstance(theirs, Hole):
            return theirs
        if not same_environment(ours, theirs):
            return Hole("other host", "the method and the baseline ran in different environments")
        if not scope.is_whole and not (has_token_times(ours) and has_token_times(theirs)):
            return Hole("no ids", "the server told no token ids, or not how many tokens a chunk carried")
        _add_totals(totals, ours, theirs, scope)
        is_split = is_split or not same_machine(ours, theirs)
    return Measured(totals, is_split)


def _whole_result(cell: LoadedCell | None, prefix: str) -> CellResult | Hole:
    """The result whose numbers may be used, or why there is none; `prefix` says whose it is in the mark."""
    if cell is None:
        return Hole(f"{prefix}{NOT_RUN}", "not planned in every session and workload")
    if cell.result is None or not is_whole(cell.result):
        return Hole(f"{prefix}{mark_of(cell)}", f"{cell.plan.name}: {message_of(cell)}")
    return cell.result


def _add_totals(totals: Totals, method: CellResult, baseline: CellResult, scope: Scope) -> None:
    """Add a pair of cells to `totals`, by unit: the prompt, the turn, or the cell as a whole."""
    if scope.kind == "concurrency":
        row = [output_tokens(method), busy_s(method, is_concurrent=True)]
        row += [output_tokens(baseline), busy_s(baseline, is_concurrent=True), len(method.requests)]
        totals["cell"] = np.array(row, dtype=np.float64)
        return
    ours, theirs = pair_requests(method), pair_requests(baseline)
    for key in sorted(set(ours) & set(theirs)):
        one, other = ours[key], theirs[key]
        unit = f"{key.prompt_id} turn {key.turn}" if scope.kind == "agentic" else key.prompt_id
        row = _all_tokens(one, other) if scope.is_whole else _tokens_before_repetition(one, other)
        totals[unit] = totals.get(unit, np.zeros(5)) + np.array(row, dtype=np.float64)


def _all_tokens(one: RequestRecord, other: RequestRecord) -> list[float]:
    return [one.num_output_tokens or 0, one.e2e_s or 0, other.num_output_tokens or 0, other.e2e_s or 0, 1]


def _tokens_before_repetition(one: RequestRecord, other: RequestRecord) -> list[float]:
    num_tokens = min(num_tokens_before_repetition(request.output_ids or []) for request in (one, other))
    return [num_tokens, time_to_tokens_s(one, num_tokens), num_tokens, time_to_tokens_s(other, num_tokens), 1]


def _evidence(sessions: list[Totals], units: list[str], unit: Unit, seed: int) -> Evidence:
    table = np.array([[totals[unit] for unit in units] for totals in sessions])
    speedup = compare(
        PairedTotals(table[..., 0], table[..., 1], table[..., 2], table[..., 3]),
        seed=seed,
    )
    return Evidence(
        ratio=speedup.ratio,
        low=speedup.low,
        high=speedup.high,
        verdict=speedup.verdict,
        num_sessions=len(sessions),
        unit=unit,
        num_units=len(units),
        num_requests=int(table[..., 4].sum()),
        num_tokens=int(table[..., 0].sum()),
        per_unit=list(speedup.per_prompt),
        per_session=list(speedup.per_session),
        half_width=relative_half_width(speedup),
    )


def _scope_seed(scope: Scope, seed: int) -> int:
    """Each comparison's own draws, the same whatever else the campaign compares."""
    name = f"{seed}/{scope.setting.model}/{scope.setting.tp}/{scope.method}/{scope.workload}"
    return int(sha256_text(name)[:8], 16)
