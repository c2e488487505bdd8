"""Is the clock right, and how long will it take?"""

import ctypes
from pathlib import Path

from draftbench.client.prompts import load_prompts
from draftbench.config import AgenticWorkload, Campaign, Cell, ConcurrencyWorkload
from draftbench.plan import Plan, stored_spec

TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
TIMEX_BYTES = 512  # of struct timex, with room to spare
# What a request's tokens and a start are taken to need where nothing was measured: 60 tok/s and 150 s were
# seen with a 27B-class replica on one H200, 20 tok/s and 10 s with a 135M target on two CPU cores.
ASSUMED = {"sglang": (60.0, 150.0), "embedded": (20.0, 10.0)}
WARMUP_BATCHES = 3


def clock_note(_campaign: Campaign) -> str:
    """Whether a time server keeps the clock; only wall-clock times in results depend on it."""
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    return "not synchronised: dates in results may be wrong" if state == TIME_ERROR else "synchronised"


def hours_note(campaign: Campaign) -> str:
    """Pending cells and services, and a rough time for them."""
    plan = Plan(campaign)
    folder = Path("results") / campaign.campaign
    certain = {name: c for name, c in plan.cells.items() if c.service.session <= campaign.sessions}
    pending = [c for name, c in certain.items() if stored_spec(folder / f"{name}.json") != plan.specs[name]]
    tok_per_s, start_s = ASSUMED[campaign.engine.kind]
    num_starts = len({cell.service.name for cell in pending})
    total_s = num_starts * start_s + sum(_num_tokens(campaign, cell) for cell in pending) / tok_per_s
    return (
        f"{len(pending)} of {len(certain)} cells pending, {num_starts} service starts, about "
        f"{total_s / 3600:.1f} h if a request gets {tok_per_s:g} tok/s and a start takes {start_s:g} s"
        f"{_further(len(plan.cells) - len(certain))}"
    )


def _further(num_cells: int) -> str:
    """What an adaptive campaign may come to beyond that."""
    return f"; up to {num_cells} more cells where the intervals are still wide" if num_cells else ""


def _num_tokens(campaign: Campaign, cell: Cell) -> float:
    """Tokens that one request after the other, or one slot of a closed loop, has to wait for."""
    workload, warmup, num_slots = campaign.workloads[cell.workload], campaign.warmup, 1
    if isinstance(workload, AgenticWorkload):
        rounds = float(workload.num_turns)
    elif isinstance(workload, ConcurrencyWorkload):
        num_slots = workload.concurrency
        rounds = workload.num_requests / num_slots
    else:
        rounds = float(len(load_prompts(workload.prompts)))
    warmup_rounds = WARMUP_BATCHES * max(len(load_prompts(warmup.prompts)) / num_slots, 1)
    return rounds * workload.max_tokens * campaign.repeats + warmup_rounds * warmup.max_tokens
