"""Batches before the measurement, until the server's speed has settled."""

import time
from collections.abc import Callable, Sequence

from draftbench.config import WarmupPlan
from draftbench.errors import MeasurementError
from draftbench.records import RequestRecord, Warmup

RunBatch = Callable[[int], Sequence[RequestRecord]]


def warm_up(
    plan: WarmupPlan,
    run_batch: RunBatch,
    flush: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
) -> Warmup:
    """Run batches until two in a row agree within the plan's tolerance, or there have been enough.

    The cache is flushed before each batch: a batch that finds the one before in the cache is faster without
    the server being warmer.

    Args:
        plan: how many batches at least and at most, and the tolerance.
        run_batch: sends batch number `i` in the workload's shape and returns its records.
        flush: drops the server's cache.
        clock: seconds, of any origin.

    Raises:
        MeasurementError: a warm-up request failed; there is nothing to measure then.
    """
    speeds: list[float] = []
    while len(speeds) < plan.max_batches:
        flush()
        start_s = clock()
        records = run_batch(len(speeds))
        span_s = clock() - start_s
        _refuse_failures(records)
        speeds.append(sum(record.num_output_tokens or 0 for record in records) / span_s)
        if len(speeds) >= plan.min_batches and has_settled(speeds, plan.tolerance):
            return Warmup(batch_tok_per_s=speeds, converged=True)
    return Warmup(batch_tok_per_s=speeds, converged=False)


def has_settled(speeds: Sequence[float], tolerance: float) -> bool:
    """Whether the last two batches differ by no more than `tolerance` of the faster one."""
    if len(speeds) < 2:
        return False
    slower, faster = sorted(speeds[-2:])
    return faster - slower <= tolerance * faster


def _refuse_failures(records: Sequence[RequestRecord]) -> None:
    for record in records:
        if record.status in ("failed", "invalid"):
            raise MeasurementError(
                f"expected the warm-up request {record.request_id} to succeed, got {record.status}: "
                f"{record.error}; look into the server's log"
            )
