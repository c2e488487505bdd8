"""How requests arrive: a closed loop with a fixed number in flight, and sessions turn by turn."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from draftbench.client.plan import Message, RequestPlan
from draftbench.client.prompts import Scenario
from draftbench.records import RequestRecord

# A cell with a failure has no throughput; after this many, a broken server is not waited for any longer.
MAX_FAILURES = 3
TURN_S = 2e-4
UNKNOWN = (
    *("http_status", "finish_reason", "num_prompt_tokens", "num_cached_tokens", "num_output_tokens"),
    *("first_token_s", "last_token_s", "ttft_s", "tpot_s", "e2e_s", "output_ids"),
    *("num_rounds", "num_accepted_tokens", "num_proposed_tokens", "accept_histogram", "tau"),
)
Measure = Callable[[RequestPlan], RequestRecord]


class InFlight:
    """Counts requests under way, from before a request is sent until after its record is complete."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._now -= 1


class _Queue:
    """Hands each plan to one worker, and stops handing out after too many failures."""

    def __init__(self, num_plans: int) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self._num_plans = num_plans
        self._num_failures = 0
        self.last_error = ""

    def take(self) -> int | None:
        with self._lock:
            if self._next >= self._num_plans or self._num_failures >= MAX_FAILURES:
                return None
            self._next += 1
            return self._next - 1

    def note(self, record: RequestRecord) -> None:
        with self._lock:
            if record.status == "failed":
                self._num_failures += 1
                self.last_error = record.error or ""


def run_closed_loop(
    plans: Sequence[RequestPlan], concurrency: int, measure: Measure, in_flight: InFlight
) -> list[RequestRecord]:
    """Send `plans` in order, `concurrency` in flight; one thread a request, each sent as a slot frees.

    Returns:
        One record per plan, in the plans' order. After `MAX_FAILURES` failed requests no more are sent; the
        rest is recorded as failed.
    """
    queue = _Queue(len(plans))
    records: list[RequestRecord | None] = [None] * len(plans)

    def work() -> None:
        while (index := queue.take()) is not None:
            with in_flight:
                record = measure(plans[index])
            records[index] = record
            queue.note(record)

    with _short_turns(), ThreadPoolExecutor(concurrency, thread_name_prefix="request") as pool:
        workers = [pool.submit(work) for _ in range(concurrency)]
    for worker in workers:
        worker.result()
    reason = f"not sent, because {MAX_FAILURES} requests failed before: {queue.last_error}"
    return [record or not_sent(plan, reason) for plan, record in zip(plans, records, strict=True)]


@contextmanager
def _short_turns() -> Iterator[None]:
    """Let no thread hold the interpreter's lock for long while others have bytes to read.

    With the usual 5 ms, one that parses a backlog keeps the others from their sockets, where arrivals merge.
    """
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(usual_s)


def run_session(
    scenario: Scenario,
    first: RequestPlan,
    render: Callable[[Sequence[Message]], str],
    measure: Measure,
    in_flight: InFlight,
) -> list[RequestRecord]:
    """Hold one conversation: each real reply is fed back before the next turn.

    Args:
        scenario: the user's turns.
        first: what all turns share; request id, prompt id and turn are completed here.
        render: makes the model's input of a conversation, for the APIs that take text.
        measure: sends one request.
        in_flight: counts it.

    Returns:
        One record per turn. A turn that is not ok ends the session; those after it are recorded as failed.
    """
    messages = scenario.opening()
    records: list[RequestRecord] = []
    failed_turn: int | None = None
    for turn, text in enumerate(scenario.turns, start=1):
        plan = replace(
            first,
            request_id=f"{first.request_id}-t{turn}",
            prompt_id=f"{scenario.scenario}-turn-{turn}",
            turn=turn,
        )
        if failed_turn is not None:
            records.append(not_sent(plan, f"turn {failed_turn} failed"))
            continue
        messages = [*messages, {"role": "user", "content": text}]
        with in_flight:
            record = measure(replace(plan, messages=tuple(messages), prompt=render(messages)))
        records.append(record)
        messages.append({"role": "assistant", "content": record.text})
        if record.status != "ok":
            failed_turn = turn
    return records


def not_sent(plan: RequestPlan, reason: str) -> RequestRecord:
    """The record of a request that was given up before it was sent; its times are those of giving up."""
    now_s = time.monotonic()
    return RequestRecord(
        **plan.record_fields(),
        **dict.fromkeys(UNKNOWN),
        status="failed",
        error=reason,
        send_s=now_s,
        end_s=now_s,
        chunks=[],
        text="",
    )
