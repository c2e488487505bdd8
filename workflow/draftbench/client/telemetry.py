"""Samples at 1 Hz of what could disturb a measurement, and the doubts that follow from them."""

import itertools
import logging
import os
import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

from draftbench.client import gpu
from draftbench.client.processes import cpu_mhz, cpu_seconds, cpu_times, process_tree
from draftbench.records import Telemetry

logger = logging.getLogger(__name__)
COLUMNS = [
    *("time_s", "cpu_mhz", "busy_cores", "server_cores", "client_cores", "foreign_cores", "steal_cores"),
    *("load_1min", "sampler_ms"),
]
INTERVAL_S = 1.0
RESCAN_EVERY = 10  # samples between looks at the list of processes, which cost more than a sample
CLOCK_DROP = 0.03
FOREIGN_SHARE = 0.1  # of the machine's cores, on average
STEAL_SHARE = 0.02
NUM_WINDOWS = 5
MIN_WINDOW_SAMPLES = 3


@dataclass(frozen=True)
class _Reading:
    """Counters at one moment; CPU seconds since boot or since a process began."""

    time_s: float
    busy_s: float
    steal_s: float
    client_s: float
    server_s: dict[int, float]


class Sampler:
    """A thread that samples while it is entered; a context manager."""

    def __init__(self, server_pid: int, interval_s: float = INTERVAL_S) -> None:
        self._server_pid = server_pid
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._samples: list[list[float | None]] = []
        self._gpu: gpu.GpuReader | None = None
        self._stack = ExitStack()
        self.foreign_gpu_pids: set[int] = set()

    def __enter__(self) -> "Sampler":
        query = gpu.find_query()
        if query is not None:
            self._gpu = self._stack.enter_context(gpu.GpuReader(query, self._interval_s))
        self._columns = [*COLUMNS, *(self._gpu.columns() if self._gpu else [])]
        self._scan()
        self._last = self._read()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._scan()
        self._stack.close()

    def telemetry(self) -> Telemetry:
        """The samples up to now."""
        return Telemetry(interval_s=self._interval_s, columns=self._columns, samples=list(self._samples))

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            start_s = time.thread_time()
            if len(self._samples) % RESCAN_EVERY == RESCAN_EVERY - 1:
                self._scan()
            sample = self._sample()
            sample[len(COLUMNS) - 1] = 1000 * (time.thread_time() - start_s)
            self._samples.append(sample)

    def _scan(self) -> None:
        self._server_pids = process_tree(self._server_pid)
        if self._gpu is not None:
            self.foreign_gpu_pids |= gpu.foreign_processes(self._server_pids)

    def _read(self) -> _Reading:
        times = cpu_times()
        servers = cpu_seconds(self._server_pids)
        return _Reading(time.monotonic(), times.busy_s, times.steal_s, time.process_time(), servers)

    def _sample(self) -> list[float | None]:
        now = self._read()
        before, self._last = self._last, now
        span_s = now.time_s - before.time_s
        busy, steal = (now.busy_s - before.busy_s) / span_s, (now.steal_s - before.steal_s) / span_s
        client = (now.client_s - before.client_s) / span_s
        # A process that was not seen before brings its whole past; only what it used since counts.
        server = sum(used - before.server_s.get(pid, used) for pid, used in now.server_s.items()) / span_s
        foreign = max(busy - server - client, 0.0)
        values = [now.time_s, cpu_mhz(), busy, server, client, foreign, steal, os.getloadavg()[0], 0.0]
        return [*values, *(self._gpu.values() if self._gpu else [])]


def find_doubts(telemetry: Telemetry, start_s: float, end_s: float, foreign_gpu_pids: set[int]) -> list[str]:
    """Flags for a cell measured from `start_s` to `end_s`; earlier samples were taken during the warm-up."""
    during = [row for row in telemetry.samples if start_s <= (row[0] or 0.0) <= end_s + telemetry.interval_s]
    before = [row for row in telemetry.samples if (row[0] or 0.0) < start_s]
    num_cores = os.cpu_count() or 1
    flags = []
    for index, name in enumerate(telemetry.columns):
        flags += _column_doubts(name, _values(during, index))
    foreign, steal = telemetry.columns.index("foreign_cores"), telemetry.columns.index("steal_cores")
    for when, rows in (("before", before), ("during", during)):
        mean = _mean(_values(rows, foreign))
        if mean > FOREIGN_SHARE * num_cores:
            flags.append(f"foreign-cpu-load: {mean:.2f} of {num_cores} cores {when} the measurement")
    if _mean(_values(during, steal)) > STEAL_SHARE * num_cores:
        flags.append(f"cpu-steal: {_mean(_values(during, steal)):.2f} of {num_cores} cores")
    if foreign_gpu_pids:
        flags.append(f"foreign-gpu-load: processes {sorted(foreign_gpu_pids)} on the server's GPU")
    return flags


def clock_drop(values: Sequence[float]) -> float:
    """Largest fall of the median clock from an earlier part of the cell to a later one, as a share.

    0 where there are too few samples to tell.
    """
    num_windows = min(NUM_WINDOWS, len(values) // MIN_WINDOW_SAMPLES)
    if num_windows < 2:
        return 0.0
    edges = [len(values) * i // num_windows for i in range(num_windows + 1)]
    medians = [statistics.median(values[a:b]) for a, b in itertools.pairwise(edges)]
    highest, drop = 0.0, 0.0
    for median in medians:
        highest = max(highest, median)
        drop = max(drop, 1 - median / highest if highest > 0 else 0.0)
    return drop


def _column_doubts(name: str, values: list[float]) -> list[str]:
    if name == "cpu_mhz" or name.endswith("_sm_mhz"):
        drop = clock_drop(values)
        return [f"clock-drop: {name} fell by {100 * drop:.0f} %"] if drop > CLOCK_DROP else []
    if not name.endswith("_throttle_bits"):
        return []
    bits = 0
    for value in values:
        bits |= int(value)
    device = name.partition("_")[0]
    flags = [f"gpu-throttled: {device}, reasons {bits:#x}"] if bits & gpu.THROTTLE_MASK else []
    return [*flags, f"gpu-power-capped: {device}"] if bits & gpu.POWER_CAP_BIT else flags


def _values(rows: Sequence[Sequence[float | None]], index: int) -> list[float]:
    return [value for row in rows if (value := row[index]) is not None]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
