"""What every printed number means, as code and as the sentence that the report prints beside it.

Pure functions of records. A quantity that is undefined is None, never 0 and never NaN.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from draftbench.records import Chunk, RequestRecord

# Share of a run's tokens that a window must hold to stand for a steady state.
MIN_STEADY_SHARE = 0.25

DEFINITIONS: dict[str, str] = {
    "ttft_s": (
        "Time to first token: from writing the request to a standing connection to the arrival of the first "
        "generated token (content, reasoning, tool call, or a token that decodes to nothing), never of a "
        "role, comment or usage event."
    ),
    "tpot_s": (
        "Time per output token: from the first to the last chunk with tokens, divided by the tokens after "
        "the first chunk; undefined when all tokens came in one chunk."
    ),
    "e2e_s": ("End-to-end time: from writing the request to the arrival of the last generated token."),
    "chunk_gap_s": (
        "Chunk gap: time between two chunks of one request that carried tokens. Under speculation a chunk "
        "carries several tokens, so this is no time per token."
    ),
    "gap_per_token_s": (
        "Gap per token: each chunk gap divided by the tokens of the chunk that ended it, counted once for "
        "each of these tokens."
    ),
    "request_tok_per_s": (
        "Output speed of one request: its output tokens by the server's usage, divided by its end-to-end "
        "time."
    ),
    "total_tok_per_s": (
        "Total output speed: output tokens of all requests divided by the time from the first send to the "
        "last token."
    ),
    "steady_tok_per_s": (
        "Steady-state speed: tokens in the window in which all slots of the closed loop were decoding, "
        "from the latest first token of the first requests to the first end after the last send, divided "
        "by that window's length; undefined when there is no such window, or when less than a quarter of "
        "all tokens arrived in it: a few chunks are no steady state."
    ),
    "num_rounds": (
        "Rounds: target verifications of a request. The first token comes from the prefill and belongs to "
        "no round."
    ),
    "num_accepted_tokens": "Accepted: draft tokens kept; a round emits its accepted tokens and one more.",
    "tau": (
        "Tau: emitted tokens per round, (accepted + rounds) / rounds, the bonus token included, pooled "
        "over requests as a ratio of sums; autoregressive decoding has 1."
    ),
    "accept_histogram": "Accept histogram: entry k counts the rounds that kept exactly k draft tokens.",
}

CHECKS: dict[str, str] = {
    "ttft-after-e2e": "the first token came after the end",
    "gap-negative": "a chunk came before the one it follows",
    "gaps-not-span": "the gaps do not sum to the time from the first to the last chunk within 1 ms",
    "chunks-not-usage": "the chunks' tokens do not sum to the usage",
    "ids-not-usage": "there are not as many output ids as tokens in the usage",
    "tokens-over-limit": "more tokens than were asked for",
    "token-count-went-back": "the server's running count of tokens fell",
    "rounds-not-usage": "1 + rounds + accepted is not the usage, and the last round does not explain it",
    "rounds-missing": "a speculative method, but the server counted no rounds",
    "rounds-unexpected": "no speculative method, but the server counted rounds",
    "histogram-not-rounds": "the accept histogram does not sum to the rounds",
    "histogram-not-accepted": "the accept histogram's draft tokens do not sum to the accepted ones",
    "accepted-over-proposed": "more draft tokens accepted than proposed",
    "tau-out-of-range": "tau is not between 1 and the block size (for trees: depth + 1)",
}

CELL_VIOLATIONS: dict[str, str] = {
    "requests-failed": "requests failed, so the cell has no throughput",
    "requests-short": "requests ended before the asked length",
    "requests-invalid": "requests broke a cross-check",
    "in-flight-exceeded": "more requests were in flight than the workload has slots",
    "in-flight-not-reached": "the slots of the closed loop were never all filled",
    "identity-changed": "another server answered at the end than at the start",
    "cache-warm": "a request that must be cold found its prompt in the server's cache",
    "log-replaced": "the server's log was replaced while the cell ran",
    "log-retraction": "the server took back running requests for lack of memory",
    "log-kv-full": "the server's key-value cache was full",
    "log-out-of-memory": "something ran out of memory",
    "log-xid": "the GPU driver reported a fault",
    "log-restart": "the server started while the cell ran",
    "log-crash": "a part of the server crashed while the cell ran",
}

CELL_FLAGS: dict[str, str] = {
    "warmup-not-settled": "the warm-up ended before two batches agreed",
    "cached-tokens-unknown": "the server does not tell how much of a prompt came from its cache",
    "session-cache-cold": "later turns of a session found nothing in the server's cache",
    "chunk-counts-unknown": "the server does not count tokens by chunk, so TPOT is undefined",
    "journal-differs": "accept length in the log and by the requests differ by more than 2 %",
    "audit-incomplete": "some outputs got no log probabilities, so where texts part from them is not judged",
    "clock-drop": "a clock fell by more than 3 % during the cell",
    "gpu-throttled": "the GPU slowed down for heat or by a hardware limit",
    "gpu-power-capped": "the GPU ran into its power limit",
    "foreign-cpu-load": "other processes used more than a tenth of the CPU cores",
    "foreign-gpu-load": "other processes used the server's GPU",
    "cpu-steal": "the hypervisor took CPU time away",
}

SPAN_TOLERANCE_S = 1e-3


@dataclass(frozen=True)
class Drafting:
    """What is known of the server's method before it answers.

    Attributes:
        is_speculative: None where nothing is known, so nothing is checked.
        max_accepted: draft tokens that one round can keep: block size - 1, for trees their depth.
    """

    is_speculative: bool | None = None
    max_accepted: int | None = None


def ttft_s(send_s: float, chunks: Sequence[Chunk]) -> float | None:
    """Time to first token."""
    return chunks[0].time_s - send_s if chunks else None


def tpot_s(chunks: Sequence[Chunk]) -> float | None:
    """Time per output token over the tokens after the first chunk."""
    num_later = sum(chunk.num_tokens for chunk in chunks[1:])
    return (chunks[-1].time_s - chunks[0].time_s) / num_later if num_later > 0 else None


def chunk_gaps_s(chunks: Sequence[Chunk]) -> list[float]:
    """Times between chunks, one fewer than there are chunks."""
    return [later.time_s - earlier.time_s for earlier, later in itertools.pairwise(chunks)]


def gaps_per_token_s(chunks: Sequence[Chunk]) -> list[float]:
    """Each gap shared among the tokens that ended it, one value per token after the first chunk."""
    gaps = zip(chunk_gaps_s(chunks), chunks[1:], strict=True)
    return [gap / chunk.num_tokens for gap, chunk in gaps for _ in range(chunk.num_tokens)]


def request_tok_per_s(record: RequestRecord) -> float | None:
    """Output speed of one request."""
    if record.num_output_tokens is None or not record.e2e_s:
        return None
    return record.num_output_tokens / record.e2e_s


def total_tok_per_s(records: Sequence[RequestRecord]) -> float | None:
    """Output speed of requests together; None unless every one of them is ok.

    Repeats are timed one by one: the pause between them, in which the cache is flushed, does not count.
    """
    if not records or any(record.status != "ok" for record in records):
        return None
    repeats = {record.repeat for record in records}
    span_s = sum(_span_s([record for record in records if record.repeat == repeat]) for repeat in repeats)
    return sum(record.num_output_tokens or 0 for record in records) / span_s if span_s > 0 else None


def _span_s(records: Sequence[RequestRecord]) -> float:
    """From the first send to the last token."""
    last_s = max(record.last_token_s or record.send_s for record in records)
    return last_s - min(record.send_s for record in records)


def steady_window_s(records: Sequence[RequestRecord], concurrency: int) -> tuple[float, float] | None:
    """Start and end of the time in which every slot of a closed loop was decoding, within one repeat.

    From the latest first token of the `concurrency` requests sent first to the first end after the last send.
    """
    by_send = sorted(records, key=lambda record: record.send_s)
    first_tokens = [record.first_token_s for record in by_send[:concurrency]]
    known = [time_s for time_s in first_tokens if time_s is not None]
    if len(known) < concurrency or max_in_flight(records) < concurrency:
        return None
    start_s, last_send_s = max(known), by_send[-1].send_s
    end_s = min(record.end_s for record in records if record.end_s >= last_send_s)
    return (start_s, end_s) if end_s > start_s else None


def steady_tok_per_s(records: Sequence[RequestRecord], concurrency: int) -> float | None:
    """Output speed of one repeat inside its steady-state window; None where that holds too few tokens."""
    window = steady_window_s(records, concurrency)
    if window is None:
        return None
    start_s, end_s = window
    chunks = [chunk for record in records for chunk in record.chunks]
    num_tokens = sum(chunk.num_tokens for chunk in chunks if start_s < chunk.time_s <= end_s)
    if num_tokens < MIN_STEADY_SHARE * sum(chunk.num_tokens for chunk in chunks):
        return None
    return num_tokens / (end_s - start_s)


def tau(num_rounds: int | None, num_accepted: int | None) -> float | None:
    """Emitted tokens per round."""
    if not num_rounds or num_accepted is None:
        return None
    return (num_accepted + num_rounds) / num_rounds


def pooled_tau(records: Sequence[RequestRecord]) -> float | None:
    """Tau of several requests as a ratio of sums; 1 where each of them is autoregressive."""
    counted = [record for record in records if record.num_rounds and record.num_accepted_tokens is not None]
    if not counted:
        return 1.0 if records and all(record.tau == 1.0 for record in records) else None
    num_rounds = sum(record.num_rounds or 0 for record in counted)
    return tau(num_rounds, sum(record.num_accepted_tokens or 0 for record in counted))


def pooled_histogram(records: Sequence[RequestRecord]) -> list[int]:
    """Accept histograms added up; empty where there is none."""
    histograms = [record.accept_histogram or [] for record in records]
    return [sum(column) for column in itertools.zip_longest(*histograms, fillvalue=0)]


def max_in_flight(records: Sequence[RequestRecord]) -> int:
    """Most requests that were under way at one time; one that ends as another starts is not counted twice."""
    changes = [(record.send_s, 1) for record in records] + [(record.end_s, -1) for record in records]
    running = itertools.accumulate(change for _, change in sorted(changes))
    return max(running, default=0)


def check_request(record: RequestRecord, drafting: Drafting) -> list[str]:
    """Names of the cross-checks of `CHECKS` that a complete record breaks."""
    return [
        name
        for name, is_broken in (
            *_time_checks(record),
            *_count_checks(record),
            *_round_checks(record, drafting),
        )
        if is_broken
    ]


Check = tuple[str, bool]


def _time_checks(record: RequestRecord) -> list[Check]:
    gaps = chunk_gaps_s(record.chunks)
    first, last = record.first_token_s, record.last_token_s
    is_span_known = first is not None and last is not None
    span_s = (last or 0.0) - (first or 0.0)
    late = record.ttft_s is not None and record.e2e_s is not None and record.ttft_s > record.e2e_s
    return [
        ("ttft-after-e2e", late),
        ("gap-negative", any(gap < 0 for gap in gaps)),
        ("gaps-not-span", is_span_known and abs(sum(gaps) - span_s) > SPAN_TOLERANCE_S),
    ]


def _count_checks(record: RequestRecord) -> list[Check]:
    total, ids = record.num_output_tokens, record.output_ids
    num_in_chunks = sum(chunk.num_tokens for chunk in record.chunks)
    return [
        ("chunks-not-usage", record.has_chunk_counts and total is not None and num_in_chunks != total),
        ("ids-not-usage", ids is not None and total is not None and len(ids) != total),
        ("tokens-over-limit", total is not None and total > record.max_tokens),
    ]


def _round_checks(record: RequestRecord, drafting: Drafting) -> list[Check]:
    rounds, accepted, total = record.num_rounds, record.num_accepted_tokens, record.num_output_tokens
    has_rounds = bool(rounds)
    needs_rounds = drafting.is_speculative is True and (total or 0) > 1
    checks = [
        ("rounds-missing", needs_rounds and not has_rounds),
        ("rounds-unexpected", drafting.is_speculative is False and has_rounds),
    ]
    if not rounds or accepted is None:
        return checks
    histogram = record.accept_histogram
    most = drafting.max_accepted if drafting.max_accepted is not None else _deepest(histogram)
    if total is not None and most is not None:
        # The last round may have verified more than the request's limit let it emit.
        checks.append(("rounds-not-usage", not 0 <= 1 + rounds + accepted - total <= most))
    if histogram is not None:
        checks.append(("histogram-not-rounds", sum(histogram) != rounds))
        kept = sum(k * num for k, num in enumerate(histogram))
        checks.append(("histogram-not-accepted", kept != accepted))
    if record.num_proposed_tokens is not None:
        checks.append(("accepted-over-proposed", accepted > record.num_proposed_tokens))
    is_too_high = drafting.max_accepted is not None and (record.tau or 1.0) > drafting.max_accepted + 1
    is_too_deep = drafting.max_accepted is not None and (_deepest(histogram) or 0) > drafting.max_accepted
    return [*checks, ("tau-out-of-range", (record.tau or 1.0) < 1.0 or is_too_high or is_too_deep)]


def _deepest(histogram: Sequence[int] | None) -> int | None:
    """Most draft tokens that any round kept."""
    return max((k for k, num in enumerate(histogram) if num), default=0) if histogram is not None else None
