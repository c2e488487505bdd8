"""GPU facts from `nvidia-smi`: one long-lived process that prints a line a second; nothing without a GPU."""

import logging
import shutil
import subprocess
import threading
from types import TracebackType

logger = logging.getLogger(__name__)

COLUMNS = ("sm_mhz", "power_w", "temperature_c", "memory_mib", "throttle_bits")
QUERY = "index,clocks.sm,power.draw,temperature.gpu,memory.used"
THROTTLE_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # new name, old name
QUERY_LIMIT_S = 20.0
# Bits of the reasons that mean the GPU could not run as fast as asked: hardware slowdown, software and
# hardware thermal slowdown, power brake. The power cap has a flag of its own.
THROTTLE_MASK = 0x8 | 0x20 | 0x40 | 0x80
POWER_CAP_BIT = 0x4


def _query(arguments: list[str]) -> str | None:
    """Output of one `nvidia-smi` call, None where it cannot answer."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=QUERY_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("nvidia-smi does not answer: %s", error)
        return None
    return done.stdout if done.returncode == 0 else None


def find_query() -> str | None:
    """The fields to ask this machine's `nvidia-smi` for, None where there is no GPU."""
    for throttle in THROTTLE_FIELDS:
        query = f"{QUERY},{throttle}"
        if _query([f"--query-gpu={query}"]):
            return query
    return None


def parse_line(line: str) -> tuple[int, list[float | None]] | None:
    """GPU index and its values in the order of `COLUMNS`; None for a line of another form."""
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != len(COLUMNS) + 1 or not parts[0].isdigit():
        return None
    return int(parts[0]), [_number(part) for part in parts[1:]]


def _number(text: str) -> float | None:
    try:
        return float(int(text, 16)) if text.startswith("0x") else float(text)
    except ValueError:
        return None  # "[N/A]"


def compute_processes() -> dict[str, set[int]]:
    """Process ids that use each GPU, by its UUID."""
    used: dict[str, set[int]] = {}
    for line in (_query(["--query-compute-apps=gpu_uuid,pid"]) or "").splitlines():
        uuid, _, pid = (part.strip() for part in line.partition(","))
        if pid.isdigit():
            used.setdefault(uuid, set()).add(int(pid))
    return used


def foreign_processes(server_pids: frozenset[int]) -> set[int]:
    """Processes on a GPU of the server that are not the server's.

    Where the server is not listed, as in a container with process ids of its own, nothing can be told.
    """
    on_shared = [pids for pids in compute_processes().values() if pids & server_pids]
    return {pid for pids in on_shared for pid in pids - server_pids}


class GpuReader:
    """The latest values of every GPU; a context manager that ends its process."""

    def __init__(self, query: str, interval_s: float) -> None:
        self._command = [
            *("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"),
            f"--loop-ms={max(int(interval_s * 1000), 100)}",
        ]
        self._lock = threading.Lock()
        self._latest: dict[int, list[float | None]] = {}
        first = (_query([f"--query-gpu={query}"]) or "").splitlines()
        for parsed in filter(None, map(parse_line, first)):
            self._latest[parsed[0]] = parsed[1]
        self.indices = sorted(self._latest)

    def __enter__(self) -> "GpuReader":
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._follow, name="gpu-reader", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        if self._process.stdout:
            self._process.stdout.close()

    def _follow(self) -> None:
        for line in self._process.stdout or ():
            parsed = parse_line(line)
            if parsed is not None:
                with self._lock:
                    self._latest[parsed[0]] = parsed[1]

    def columns(self) -> list[str]:
        """Names in the order of `values`."""
        return [f"gpu{index}_{name}" for index in self.indices for name in COLUMNS]

    def values(self) -> list[float | None]:
        """The latest values of all GPUs."""
        with self._lock:
            return [value for index in self.indices for value in self._latest[index]]
