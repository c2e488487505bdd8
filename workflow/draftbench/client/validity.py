"""Whether a cell's numbers may stand: broken rules make them void, doubts are printed beside them.

Each entry reads `name: detail`; the names are keys of `definitions.CELL_VIOLATIONS` and `CELL_FLAGS`.
"""

import math
from collections.abc import Mapping, Sequence

from draftbench import definitions
from draftbench.client.workload import common_prefix_length
from draftbench.records import JournalStats, RequestRecord, ServiceIdentity

# Tokens that a common beginning may hold beyond its share of the text: special tokens are long texts.
PREFIX_SLACK_TOKENS = 8
JOURNAL_TOLERANCE = 0.02
MIN_COVERAGE = 0.8
MIN_LINES = 10  # the first window began before the cell; among ten it moves the mean by little
IDENTITY_FIELDS = (
    *("service", "base_url", "argv", "engine", "engine_version"),
    *("pid", "pid_start_ticks", "boot_id", "invocation_id", "started_at"),
)


def request_violations(records: Sequence[RequestRecord]) -> list[str]:
    """Requests that are not ok, by status."""
    found = []
    for status in ("failed", "short", "invalid"):
        bad = [record for record in records if record.status == status]
        if bad:
            found.append(f"requests-{status}: {len(bad)} of {len(records)}, the first: {bad[0].error}")
    return found


def in_flight_violations(records: Sequence[RequestRecord], counted: int, concurrency: int) -> list[str]:
    """A closed loop fills its slots and never has more under way, by its own count and the records' times."""
    sent = [record for record in records if record.end_s > record.send_s]
    by_times = definitions.max_in_flight(sent)
    if max(counted, by_times) > concurrency:
        return [f"in-flight-exceeded: {max(counted, by_times)} with a concurrency of {concurrency}"]
    if min(counted, by_times) < concurrency:
        return [f"in-flight-not-reached: {min(counted, by_times)} with a concurrency of {concurrency}"]
    return []


def identity_violations(before: ServiceIdentity, after: ServiceIdentity) -> list[str]:
    """The server that answered last is the one that answered first."""
    changed = [name for name in IDENTITY_FIELDS if getattr(before, name) != getattr(after, name)]
    return [f"identity-changed: {', '.join(changed)}"] if changed else []


def cache_violations(records: Sequence[RequestRecord], prompts: Mapping[str, str]) -> list[str]:
    """Requests that found more in the cache than the beginning they share with prompts sent since the flush.

    Prompts of one template begin alike, and a server may reuse that beginning. Its tokens are bounded by its
    share of the prompt's text, rounded up, and a few more.

    Args:
        records: requests that must be cold, all after one flush.
        prompts: input texts by request id of all that was sent after that flush, in the order of sending.
    """
    cold = {record.request_id: record for record in records}
    earlier: list[str] = []
    found = []
    for request_id, text in prompts.items():
        record = cold.get(request_id)
        if record is not None:
            allowed = allowed_cached_tokens(text, record.num_prompt_tokens or 0, earlier)
            if (record.num_cached_tokens or 0) > allowed:
                detail = f"{record.num_cached_tokens} of {record.num_prompt_tokens} prompt tokens"
                found.append(f"cache-warm: {request_id} found {detail}, allowed {allowed}")
        earlier.append(text)
    return found[:1]


def allowed_cached_tokens(text: str, num_prompt_tokens: int, earlier: Sequence[str]) -> int:
    """Most tokens of a cold prompt that may come from the cache; 0 where nothing was sent before it."""
    shared = max((common_prefix_length(text, other) for other in earlier), default=0)
    if not shared:
        return 0
    return math.ceil(num_prompt_tokens * shared / len(text)) + PREFIX_SLACK_TOKENS


def cache_flags(records: Sequence[RequestRecord]) -> list[str]:
    """Cached tokens that are not told, and later turns of a session that found none."""
    done = [record for record in records if record.status in ("ok", "short")]
    flags = []
    if any(record.num_cached_tokens is None for record in done):
        flags.append("cached-tokens-unknown: the server does not tell them")
    cold = [record for record in done if record.turn > 1 and record.num_cached_tokens == 0]
    if cold:
        flags.append(f"session-cache-cold: {len(cold)} later turns found nothing in the cache")
    return flags


def chunk_flags(records: Sequence[RequestRecord]) -> list[str]:
    """Requests whose chunks the server did not count."""
    uncounted = sum(not record.has_chunk_counts for record in records if record.status == "ok")
    return [f"chunk-counts-unknown: {uncounted} of {len(records)} requests"] if uncounted else []


def journal_flags(stats: JournalStats, records: Sequence[RequestRecord]) -> list[str]:
    """The log's accept length and the requests' differ, though the log saw most of the tokens.

    A log covers whole windows of rounds: the first began before the cell, the last one is never printed. So a
    short cell cannot be compared, and in any other one window may count another's accept length: the
    windows' spread over their number comes on top of the tolerance.
    """
    by_requests = definitions.pooled_tau(records)
    by_log = stats.accept_length
    if by_requests is None or by_log is None or stats.num_lines < MIN_LINES:
        return []
    if (stats.coverage or 0.0) < MIN_COVERAGE:
        return []
    by_edges = (stats.window_spread or 0.0) / stats.num_lines
    if abs(by_log - by_requests) <= JOURNAL_TOLERANCE * by_requests + by_edges:
        return []
    return [f"journal-differs: accept length {by_log:.3f} in the log, {by_requests:.3f} by the requests"]


def journal_violations(stats: JournalStats) -> list[str]:
    """Lines of the log that make the cell's numbers void."""
    return [f"log-{problem}" for problem in stats.problems]
