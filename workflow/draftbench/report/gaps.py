"""Logit gaps where outputs part: kept in a file beside the results, measured where they are missing.

A gap belongs to a result as much as its times do: with it in the results directory the report of an
archived campaign is the same on a machine without the models.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from draftbench.config import Campaign
from draftbench.files import sha256_file, write_atomic
from draftbench.records import CellResult, StrictModel
from draftbench.report.conversations import input_texts
from draftbench.report.load import GAPS_FILE, read_record
from draftbench.report.outputs import GapKey, OutputPair
from draftbench.stats.exactness import Divergence, LogitGap

MAX_PASSES = 400
"""Teacher-forced passes at most; one serves all outputs that part from the same reference."""

logger = logging.getLogger(__name__)


class GapRecord(StrictModel):
    """One measured gap, with what it was measured on."""

    cell: str
    request_id: str
    reference_cell: str
    position: int
    baseline_token: int
    method_token: int
    gap: float
    resolution: float


class GapFile(StrictModel):
    """All measured gaps of a campaign."""

    gaps: list[GapRecord]


def gaps_of(
    pairs: Sequence[OutputPair], campaign: Campaign, results: Path, *, can_measure: bool
) -> dict[GapKey, LogitGap]:
    """The gap of every pair that parts, as far as it is known or can be measured now.

    Writes newly measured ones beside the results.

    Args:
        pairs: outputs with their references.
        campaign: whose prompts they answer.
        results: directory of the results, which may hold the file.
        can_measure: whether staged targets may be loaded for the missing ones.

    Raises:
        ReportError: the file is damaged.
        ConfigError: a staged target or a prompt file does not fit.
    """
    parted = {pair.key: pair for pair in pairs if _tokens(pair) is not None}
    path = results / GAPS_FILE
    stored = read_record(path, GapFile).gaps if path.exists() else []
    known = {key: record for record in stored if _belongs(record, parted.get(key := _key(record)))}
    missing = [pair for key, pair in parted.items() if key not in known]
    if missing and can_measure:
        measured = list(_measure(missing, campaign))
        known |= {_key(record): record for record in measured}
        if measured:
            ordered = [known[key] for key in sorted(known)]
            write_atomic(path, GapFile(gaps=ordered).model_dump_json(indent=1) + "\n")
    return {key: LogitGap(record.gap, record.resolution) for key, record in known.items()}


def _key(record: GapRecord) -> GapKey:
    return record.cell, record.request_id, record.reference_cell


def _tokens(pair: OutputPair) -> tuple[int, int, int] | None:
    """Position and both tokens where a pair parts; None where it does not, or one output has ended there."""
    parted: Divergence | None = pair.divergence
    if parted is None or parted.baseline_token is None or parted.method_token is None:
        return None
    return parted.position, parted.baseline_token, parted.method_token


def _belongs(record: GapRecord, pair: OutputPair | None) -> bool:
    """Whether a stored gap is of the present outputs and not of ones that were measured again since."""
    measured = (record.position, record.baseline_token, record.method_token)
    return pair is not None and _tokens(pair) == measured


def _measure(pairs: Sequence[OutputPair], campaign: Campaign) -> Iterator[GapRecord]:
    """Gaps of pairs whose target is staged here, one pass for each reference."""
    by_target: defaultdict[tuple[str, str], list[OutputPair]] = defaultdict(list)
    for pair in pairs:
        target = _staged_target(pair.reference_result)
        if target is not None:
            by_target[target].append(pair)
    for (model_path, dtype), members in by_target.items():
        yield from _measure_target(members, campaign, Path(model_path), dtype)


def _staged_target(result: CellResult) -> tuple[str, str] | None:
    """Folder and dtype of the target that a result came from, if that very model still lies there."""
    info, hashes = result.identity.server_info, result.identity.environment.get("target_sha256")
    model_path, dtype = info.get("model_path"), info.get("dtype")
    if not isinstance(model_path, str) or not isinstance(dtype, str) or not isinstance(hashes, Mapping):
        return None
    weights = Path(model_path) / "model.safetensors"
    return (model_path, dtype) if weights.exists() and _is_same(weights, hashes) else None


def _is_same(weights: Path, hashes: Mapping[str, object]) -> bool:
    return sha256_file(weights) == hashes.get(weights.name)


def _measure_target(
    pairs: Sequence[OutputPair], campaign: Campaign, model_path: Path, dtype: str
) -> Iterator[GapRecord]:
    from draftbench.report.teacher import Teacher  # noqa: PLC0415 - torch only where a gap is measured

    by_reference: defaultdict[tuple[str, str], list[OutputPair]] = defaultdict(list)
    for pair in pairs:
        by_reference[pair.reference_result.cell, pair.reference.request_id].append(pair)
    longest = max(_length(pair) for pair in pairs)
    teacher = Teacher(model_path, dtype, longest + 1)
    for members in list(by_reference.values())[:MAX_PASSES]:
        reference, result = members[0].reference, members[0].reference_result
        prompt_ids = teacher.encode(input_texts(campaign, result, model_path)[reference.request_id])
        if len(prompt_ids) != reference.num_prompt_tokens:
            logger.warning(
                "%s: request %s: rebuilt prompt of %d tokens, served were %s; its gaps are not measured",
                result.cell,
                reference.request_id,
                len(prompt_ids),
                reference.num_prompt_tokens,
            )
            continue
        logits = teacher.logits(prompt_ids, reference.output_ids or [])
        for pair in members:
            position, baseline_token, method_token = _tokens(pair) or (0, 0, 0)
            gap = teacher.gap(logits[position], baseline_token, method_token)
            yield GapRecord(
                cell=pair.result.cell,
                request_id=pair.request.request_id,
                reference_cell=result.cell,
                position=position,
                baseline_token=baseline_token,
                method_token=method_token,
                gap=gap.gap,
                resolution=gap.resolution,
            )


def _length(pair: OutputPair) -> int:
    return (pair.reference.num_prompt_tokens or 0) + len(pair.reference.output_ids or [])
