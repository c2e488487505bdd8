"""How far a measuring client's times are from the truth, and up to which load; public ones beside ours.

    python benchmarks/client_overhead.py --out overhead.json
    python benchmarks/client_overhead.py --out overhead.json --peer sglang-chat=/path/to/venv/bin/python
    python benchmarks/client_overhead.py --out overhead.json --skip-ladder --realtime

A server on one core streams on schedule and notes when each event left; each client, alone on another core,
measures the same streams. Errors are the client's time to first token and gaps against the server's: the
smaller, the nearer the truth. `zero delay` sends a stream at once, `known delay` has 50 ms to the first token
and 10 ms between, both with 8 streams; the ladder raises the rate until the median error passes 0.2 ms or the
99th percentile 2 ms. On a machine with other work, `--realtime` keeps that off server and clients alike.
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import requests

HERE = Path(__file__).resolve().parent
NUM_STREAMS = 8
MEDIAN_LIMIT_MS, P99_LIMIT_MS = 0.2, 2.0
LADDER_TOK_PER_S = (100, 200, 400, 800, 1600, 3200)
LADDER_SECONDS = 2.0
CLIENT_LIMIT_S = 150


@dataclass(frozen=True)
class Scenario:
    """What the server plays: `num_requests` streams of `num_tokens` tokens, `NUM_STREAMS` in flight."""

    name: str
    delay_ms: float
    gap_ms: float
    num_tokens: int
    num_requests: int


# More than some 60 packets at once overrun what the loopback device delivers in one go (net.core.dev_weight),
# and the kernel brings the rest a tick later: short streams, so that the clients are measured and not that.
SCENARIOS = (
    Scenario("zero delay", 0, 0, 24, 48),
    Scenario("known delay", 50, 10, 64, 24),
)


@dataclass
class Errors:
    """A client's errors in one scenario, milliseconds; null where the client keeps no such time."""

    client: str
    scenario: str
    num_requests: int
    num_failed: int
    num_gaps: int
    ttft_median_ms: float | None
    ttft_p99_ms: float | None
    gap_median_ms: float | None
    gap_p99_ms: float | None
    first_error: str | None

    @property
    def is_near(self):
        """All within the limits."""
        medians, tails = (self.ttft_median_ms, self.gap_median_ms), (self.ttft_p99_ms, self.gap_p99_ms)
        if self.num_failed or None in medians or None in tails:
            return False
        return max(medians) < MEDIAN_LIMIT_MS and max(tails) < P99_LIMIT_MS


class Bench:
    """The truth server and the clients, each on its own core."""

    def __init__(self, server_core, client_core, interpreters, *, is_realtime):
        self._is_realtime = is_realtime
        self._server_core, self._client_core = server_core, client_core
        self._interpreters = interpreters
        self._folder = tempfile.TemporaryDirectory()
        self._number = 0

    def __enter__(self):
        port_file = Path(self._folder.name) / "port"
        command = [sys.executable, str(HERE / "client_overhead_server.py"), "--port-file", str(port_file)]
        self._server = subprocess.Popen(command)
        os.sched_setaffinity(self._server.pid, {self._server_core})
        for _ in range(100):
            if port_file.exists() and port_file.read_text():
                break
            time.sleep(0.1)
        self.base_url = f"http://127.0.0.1:{port_file.read_text()}"
        return self

    def __exit__(self, *_error):
        self._server.kill()
        self._server.wait()
        self._folder.cleanup()

    def measure(self, client, *scenarios):
        """Run one client, in one process, over scenarios; for each a list of (truth, seen) by request."""
        numbers, files = [], []
        for scenario in scenarios:
            numbers.append(range(self._number, self._number + scenario.num_requests))
            self._number += scenario.num_requests
            order = f"delay_ms {scenario.delay_ms} gap_ms {scenario.gap_ms} tokens {scenario.num_tokens}"
            prompts = [{"text": f"[stream {n} {order}]", "tokens": scenario.num_tokens} for n in numbers[-1]]
            files.append(Path(self._folder.name) / f"prompts-{len(files)}.json")
            files[-1].write_text(json.dumps(prompts))
        seen = self._drive(client, [str(file) for file in files])
        truth = requests.get(f"{self.base_url}/records", timeout=10).json()
        if isinstance(seen, str):
            error = {"ttft_s": None, "gaps_s": None, "error": seen}
            return [[(None, error) for _ in asked] for asked in numbers]
        return [
            [(truth.get(str(number)), one) for number, one in zip(asked, results, strict=True)]
            for asked, results in zip(numbers, seen, strict=True)
        ]

    def _drive(self, client, files):
        """What the client saw, or why it saw nothing."""
        command = [
            *(self._interpreters[client], str(HERE / "client_overhead_drivers.py"), client),
            *("--base-url", self.base_url, "--streams", str(NUM_STREAMS), "--prompts", *files),
            *(["--realtime"] if self._is_realtime else []),
        ]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        os.sched_setaffinity(child.pid, {self._client_core})
        try:
            output, noise = child.communicate(timeout=CLIENT_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"the client was not done within {CLIENT_LIMIT_S} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # some clients are several processes
            child.wait()
        lines = output.strip().splitlines()
        if child.returncode or not lines:
            return f"the client failed: {noise.strip()[-300:]}"
        return json.loads(lines[-1])


def summarise(client, scenario, pairs):
    """Errors of a client against the server's times."""
    ttfts, gaps, failures = [], [], []
    for truth, seen in pairs:
        if truth is None or seen["error"] or seen["ttft_s"] is None:
            failures.append(seen["error"] or "no time to first token, or the stream was not read to its end")
            continue
        sends = truth["sends_s"]
        ttfts.append(abs(seen["ttft_s"] - (sends[0] - truth["received_s"])) * 1000)
        true_gaps = [b - a for a, b in itertools.pairwise(sends)]
        if seen["gaps_s"] is not None and len(seen["gaps_s"]) != len(true_gaps):
            failures.append(f"{len(seen['gaps_s'])} gaps, but {len(true_gaps)} were sent")
        elif seen["gaps_s"] is not None:
            gaps += [abs(a - b) * 1000 for a, b in zip(seen["gaps_s"], true_gaps, strict=True)]
    return Errors(
        client=client,
        scenario=scenario.name,
        num_requests=len(pairs),
        num_failed=len(failures),
        num_gaps=len(gaps),
        ttft_median_ms=_quantile(ttfts, 0.5),
        ttft_p99_ms=_quantile(ttfts, 0.99),
        gap_median_ms=_quantile(gaps, 0.5),
        gap_p99_ms=_quantile(gaps, 0.99),
        first_error=failures[0] if failures else None,
    )


def _quantile(values, share):
    if len(values) < 2:
        return values[0] if values else None
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[round(share * 100) - 1]


def climb(bench, client):
    """Steps of the ladder up to the first that is no longer near the truth."""
    steps = []
    for rate in LADDER_TOK_PER_S:
        num_tokens = int(rate * LADDER_SECONDS)
        scenario = Scenario(f"{NUM_STREAMS} x {rate} tok/s", 20, 1000 / rate, num_tokens, NUM_STREAMS)
        # Twice, and the second counts: the server makes the frames of a length when first asked for it.
        steps.append(summarise(client, scenario, bench.measure(client, scenario, scenario)[1]))
        if not steps[-1].is_near:
            break
    return steps


def table(rows):
    """Markdown of the errors."""
    head = "| client | scenario | TTFT median | TTFT p99 | gap median | gap p99 | requests | failed |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        times = (row.ttft_median_ms, row.ttft_p99_ms, row.gap_median_ms, row.gap_p99_ms)
        cells = ["n/a" if value is None else f"{value:.3f}" for value in times]
        lines.append(
            f"| {row.client} | {row.scenario} | {' | '.join(cells)} | {row.num_requests} | {row.num_failed} |"
        )
    return "\n".join(lines)


def run(bench, clients, *, num_rounds, has_ladder):
    """All scenarios, the clients taking turns in every round; then the ladder of each."""
    pairs = {(client, scenario): [] for scenario in SCENARIOS for client in clients}
    for _ in range(num_rounds):
        for client in clients:
            for scenario, found in zip(SCENARIOS, bench.measure(client, *SCENARIOS), strict=True):
                pairs[client, scenario] += found
    rows = [summarise(client, scenario, found) for (client, scenario), found in pairs.items()]
    return rows, [step for client in clients if has_ladder for step in climb(bench, client)]


def main():
    """Run the benchmark; its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON of all errors")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="CLIENT=PYTHON", help="a public client"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-ladder", action="store_true")
    parser.add_argument(
        "--realtime", action="store_true", help="keep a busy machine's other work off the clients"
    )
    parser.add_argument("--server-core", type=int, default=1)
    parser.add_argument("--client-core", type=int, default=0)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that server and client are ended too
    interpreters = {"draftbench-generate": sys.executable, "draftbench-chat": sys.executable}
    interpreters |= dict(peer.split("=", 1) for peer in arguments.peer)
    cores = (arguments.server_core, arguments.client_core)
    with Bench(*cores, interpreters, is_realtime=arguments.realtime) as bench:
        rows, ladder = run(
            bench, list(interpreters), num_rounds=arguments.rounds, has_ladder=not arguments.skip_ladder
        )
    content = {"rows": [asdict(row) for row in rows], "ladder": [asdict(row) for row in ladder]}
    arguments.out.write_text(json.dumps({**content, "load_average": os.getloadavg()}, indent=1) + "\n")
    print("Errors in ms:\n" + table([*rows, *ladder]), file=sys.stderr)
    print(json.dumps({"out": str(arguments.out), "num_rows": len(rows), "num_steps": len(ladder)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
