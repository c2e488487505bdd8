"""Ask a server, after all was measured, how near each of its choices was to another one.

Two questions for each output: what the server decodes after the prompt, with log probabilities, and what a
prefill pass over the whole known output says. The second gives the gaps. Where both see the same context,
the change of a gap from one to the other is what two computations of it differ by on that server.
"""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from draftbench.client import server
from draftbench.client.logprobs import Continuation, Row, decode, rows_along
from draftbench.errors import MeasurementError, ServerError
from draftbench.records import GapNoise, NearTie, OutputAudit, OutputAudits, RequestRecord

logger = logging.getLogger(__name__)
MARGIN = 2.0
"""Logits. Tokens whose gap is wider are no near tie, and positions without another one are not kept."""
DECODED_TOKENS = 32
DECODED_TOKENS_OF_CELL = 160
FLUSH_LIMIT_S = 30.0
REQUEST_LIMIT_S = 30.0
CELL_LIMIT_S = 60.0
MAX_FAILURES = 3
DECIMALS = 6

Outputs = Mapping[tuple[int, ...], Sequence[RequestRecord]]


def audit_outputs(
    base_url: str, records: Sequence[RequestRecord], texts: Mapping[str, str]
) -> tuple[OutputAudits | None, list[str]]:
    """Audit each distinct output; whatever the server does becomes a flag.

    Args:
        base_url: `http://host:port` of the server, which is idle.
        records: the cell's.
        texts: request id -> the model's input text.

    Returns:
        The audits, None where no output has one; and the flags.
    """
    by_text = _distinct_outputs(records, texts)
    num_outputs = sum(map(len, by_text.values()))
    audit, start_s = _Audit(base_url), time.monotonic()
    try:
        # Prefixes that decoding left in the cache would enter the prefill passes.
        server.flush_cache(base_url, FLUSH_LIMIT_S)
        audit.run(by_text)
    except ServerError as error:
        audit.fail(error)
    num_missing = num_outputs - len(audit.outputs)
    flags = []
    if num_missing:
        flags.append(f"audit-incomplete: {num_missing} of {num_outputs} outputs, {audit.reason}")
    if not audit.outputs:
        return None, flags
    duration_s = time.monotonic() - start_s
    noise = _noise(audit.changes)
    return OutputAudits(margin=MARGIN, noise=noise, outputs=audit.outputs, duration_s=duration_s), flags


def _distinct_outputs(records: Sequence[RequestRecord], texts: Mapping[str, str]) -> Mapping[str, Outputs]:
    """Input text -> output ids -> the requests with both."""
    found: defaultdict[str, defaultdict[tuple[int, ...], list[RequestRecord]]]
    found = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.status == "ok" and record.output_ids and record.request_id in texts:
            found[texts[record.request_id]][tuple(record.output_ids)].append(record)
    return found


@dataclass
class _Audit:
    """The audit of a cell under way.

    Attributes:
        outputs: what was audited so far.
        changes: of gaps, from decoding to the prefill pass.
        reason: why outputs are missing.
    """

    base_url: str
    outputs: list[OutputAudit] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    reason: str = ""
    _num_failures: int = 0
    _num_decoded: int = 0
    _end_s: float = field(default_factory=lambda: time.monotonic() + CELL_LIMIT_S)

    def fail(self, error: Exception) -> None:
        """Note an output that has no audit, and the first reason."""
        logger.warning("an output is not audited: %s", error)
        self.reason = self.reason or f"the first: {error}"
        self._num_failures += 1

    def run(self, by_text: Mapping[str, Outputs]) -> None:
        """Audit outputs until all are done, the time is over, or the server has failed too often."""
        for text, outputs in by_text.items():
            if self._num_failures >= MAX_FAILURES:
                return
            if time.monotonic() > self._end_s:
                self.reason = self.reason or f"not done within {CELL_LIMIT_S:g} s"
                return
            try:
                self._take(text, outputs)
            except (ServerError, MeasurementError) as error:
                self.fail(error)

    def _take(self, text: str, outputs: Outputs) -> None:
        """Audit the outputs of one input."""
        longest = max(map(len, outputs))
        num_left = DECODED_TOKENS_OF_CELL - self._num_decoded
        num_tokens = max(min(DECODED_TOKENS, longest, num_left), 1)
        decoded = decode(self.base_url, text, num_tokens, REQUEST_LIMIT_S)
        self._num_decoded += num_tokens
        for output_ids, records in outputs.items():
            num_expected = records[0].num_prompt_tokens
            if len(decoded.prompt_ids) != num_expected:
                raise MeasurementError(
                    f"expected a prompt of {num_expected} tokens, got {len(decoded.prompt_ids)}"
                )
            rows = rows_along(self.base_url, decoded.prompt_ids, output_ids, REQUEST_LIMIT_S)
            self.changes += gap_changes(decoded, output_ids, rows)
            request_ids = [record.request_id for record in records]
            near = list(near_ties(output_ids, rows))
            self.outputs.append(OutputAudit(request_ids=request_ids, near_ties=near))


def gap_changes(decoded: Continuation, output_ids: Sequence[int], rows: Sequence[Row]) -> Iterator[float]:
    """Gap of the two tokens that decoding found best, less their gap in the prefill pass.

    At every position with the same context in both, but the first: that row is a prefill's both times. A
    second-best token that is no candidate of the prefill pass has no gap there, so its position is left out.

    Args:
        decoded: what the server decoded.
        output_ids: the known output.
        rows: candidates before each of its tokens.
    """
    for position, (row, other) in enumerate(zip(decoded.rows, rows, strict=False)):
        best, second, *_ = row
        if position > 0 and best in other and second in other:
            yield (row[best] - row[second]) - (other[best] - other[second])
        if decoded.output_ids[position] != output_ids[position]:
            return


def near_ties(output_ids: Sequence[int], rows: Sequence[Row]) -> Iterator[NearTie]:
    """Positions where the output's token is not the only choice within the margin."""
    for position, (token_id, row) in enumerate(zip(output_ids, rows, strict=True)):
        best = max(row.values())
        gaps = [round(best - logprob, DECIMALS) for logprob in row.values()]
        if gaps[1] <= MARGIN or next(iter(row)) != token_id:
            yield NearTie(position=position, token_ids=list(row), gaps=gaps)


def _noise(changes: Sequence[float]) -> GapNoise | None:
    if not changes:
        return None
    rms = math.sqrt(math.fsum(change**2 for change in changes) / len(changes))
    return GapNoise(num_positions=len(changes), rms=rms, largest=max(map(abs, changes)))
