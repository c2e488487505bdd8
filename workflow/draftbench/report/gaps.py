"""Logit gaps where outputs part: of the reference's audit, or of a file beside the results, or measured now.

A gap belongs to a result as much as its times do: with it in the results directory the report of an
archived campaign is the same on a machine without the models.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftbench.client.template import ChatTemplate
from draftbench.config import Campaign
from draftbench.files import sha256_file, write_atomic
from draftbench.records import CellResult, StrictModel
from draftbench.report.audited import audited_gap
from draftbench.report.conversations import input_texts
from draftbench.report.load import GAPS_FILE, read_record
from draftbench.report.outputs import GapKey, OutputPair
from draftbench.stats.exactness import LogitGap

WEIGHTS = "model.safetensors"
MAX_PASSES = 400
"""Teacher-forced passes at most; one serves all outputs that part from the same reference."""

if TYPE_CHECKING:
    from draftbench.report.teacher import Teacher

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
    parted = {pair.key: pair for pair in pairs if pair.candidates is not None}
    path = results / GAPS_FILE
    stored = read_record(path, GapFile).gaps if path.exists() else []
    known = {key: record for record in stored if _belongs(record, parted.get(key := _key(record)))}
    audited = {key: gap for key, pair in parted.items() if (gap := audited_gap(pair)) is not None}
    missing = [pair for key, pair in parted.items() if key not in known and key not in audited]
    if missing and can_measure:
        measured = list(_measure(missing, campaign))
        known |= {_key(record): record for record in measured}
        if measured:
            ordered = [known[key] for key in sorted(known)]
            write_atomic(path, GapFile(gaps=ordered).model_dump_json(indent=1) + "\n")
    return {key: LogitGap(record.gap, record.resolution) for key, record in known.items()} | audited


def _key(record: GapRecord) -> GapKey:
    return record.cell, record.request_id, record.reference_cell


def _belongs(record: GapRecord, pair: OutputPair | None) -> bool:
    """Whether a stored gap is of the present outputs and not of ones that were measured again since."""
    measured = (record.position, record.baseline_token, record.method_token)
    return pair is not None and pair.candidates == measured


@dataclass(frozen=True)
class _Target:
    """A served target: its folder, the number format it was served in, the hash of its weights."""

    model_path: str
    dtype: str
    weights_sha256: str

    @classmethod
    def of(cls, result: CellResult) -> "_Target | None":
        """The target that a result came from; None where the result does not tell."""
        info, hashes = result.identity.server_info, result.identity.environment.get("target_sha256")
        expected = hashes.get(WEIGHTS) if isinstance(hashes, Mapping) else None
        found = (info.get("model_path"), info.get("dtype"), expected)
        return cls(*map(str, found)) if all(isinstance(value, str) for value in found) else None

    def is_staged(self) -> bool:
        """Whether that very model still lies there."""
        weights = Path(self.model_path) / WEIGHTS
        return weights.exists() and sha256_file(weights) == self.weights_sha256


def _measure(pairs: Sequence[OutputPair], campaign: Campaign) -> Iterator[GapRecord]:
    """Gaps of pairs whose target is staged here, one pass for each reference."""
    by_target: defaultdict[_Target | None, list[OutputPair]] = defaultdict(list)
    for pair in pairs:
        by_target[_Target.of(pair.reference_result)].append(pair)
    for target, members in by_target.items():
        if target is not None and target.is_staged():
            yield from _measure_target(members, campaign, target)


def _measure_target(pairs: Sequence[OutputPair], campaign: Campaign, target: _Target) -> Iterator[GapRecord]:
    from draftbench.report.teacher import Teacher  # noqa: PLC0415 - torch only where a gap is measured

    by_reference: defaultdict[tuple[str, str], list[OutputPair]] = defaultdict(list)
    for pair in pairs:
        by_reference[pair.reference_result.cell, pair.reference.request_id].append(pair)
    logger.info("measuring logit gaps of %d outputs, %d passes", len(pairs), len(by_reference))
    model_path = Path(target.model_path)
    teacher = Teacher(model_path, target.dtype, max(_length(pair) for pair in pairs))
    template = ChatTemplate(model_path)
    for members in list(by_reference.values())[:MAX_PASSES]:
        texts = input_texts(campaign, members[0].reference_result, template)
        prompt_ids = teacher.encode(texts[members[0].reference.request_id])
        if len(prompt_ids) == members[0].reference.num_prompt_tokens:
            yield from _measure_reference(members, teacher, prompt_ids)
        else:
            logger.warning(
                "%s: request %s: the rebuilt prompt has %d tokens, the served one %s; no gap is measured",
                *(members[0].reference_result.cell, members[0].reference.request_id),
                *(len(prompt_ids), members[0].reference.num_prompt_tokens),
            )


def _measure_reference(
    pairs: Sequence[OutputPair], teacher: "Teacher", prompt_ids: Sequence[int]
) -> Iterator[GapRecord]:
    logits = teacher.logits(prompt_ids, pairs[0].reference.output_ids or [])
    for pair in pairs:
        position, baseline_token, method_token = pair.candidates or (0, 0, 0)
        gap = teacher.gap(logits[position], baseline_token, method_token)
        yield GapRecord(
            cell=pair.result.cell,
            request_id=pair.request.request_id,
            reference_cell=pair.reference_result.cell,
            position=position,
            baseline_token=baseline_token,
            method_token=method_token,
            gap=gap.gap,
            resolution=gap.resolution,
        )


def _length(pair: OutputPair) -> int:
    return (pair.reference.num_prompt_tokens or 0) + len(pair.reference.output_ids or [])
