"""How far a measuring client's times are from the truth, and up to which load; public ones beside ours.

    python benchmarks/client_overhead.py --out overhead.json
    python benchmarks/client_overhead.py --out overhead.json --peer guidellm-chat=/path/to/venv/bin/python
    python benchmarks/client_overhead.py --out overhead.json --skip-ladder --realtime

A server on one core streams on schedule and notes when each event left; each client, alone on another core,
measures the same streams. Errors are the client's time to first token, its gaps, and its span from the first
token to the last, each against the server's: the smaller, the nearer the truth. `zero delay` sends a stream
at once, `known delay` has 50 ms to the first token and 10 ms between; the ladder raises the rate of 8 streams
until the median error passes 0.2 ms or the 99th percentile 2 ms. On a machine with other work, `--realtime`
keeps that off server and clients alike. A public client needs an interpreter whose environment it is in
(docs/measurement.md); one that has none, or cannot be imported there, is named as absent.
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
CLIENTS = (
    *("draftbench-generate", "draftbench-chat"),
    *("sglang-generate", "sglang-chat", "vllm-chat", "aiperf-chat", "guidellm-chat"),
)
LADDER_STREAMS = 8
MEDIAN_LIMIT_MS, P99_LIMIT_MS = 0.2, 2.0
LADDER_TOK_PER_S = (100, 200, 400, 800, 1600, 3200)
LADDER_SECONDS = 2.0
SERVER_LIMIT_S = 10
CLIENT_LIMIT_S = 150
IMPORT_LIMIT_S = 120


@dataclass(frozen=True)
class Scenario:
    """What the server plays: `num_requests` streams of `num_tokens` tokens, `num_streams` in flight."""

    name: str
    num_streams: int
    delay_ms: float
    gap_ms: float
    num_tokens: int
    num_requests: int


# More than some 60 packets at once overrun what the loopback device delivers in one go (net.core.dev_weight),
# and the kernel brings the rest a tick later: short streams, so that the clients are measured and not that.
SCENARIOS = (
    Scenario("zero delay", 1, 0, 0, 24, 16),
    Scenario("zero delay", 8, 0, 0, 24, 48),
    Scenario("known delay", 1, 50, 10, 64, 8),
    Scenario("known delay", 8, 50, 10, 64, 24),
)


@dataclass
class Errors:
    """A client's errors in one scenario, milliseconds; null where the client keeps no such time."""

    client: str
    scenario: str
    num_streams: int
    num_requests: int
    num_failed: int
    num_gaps: int
    ttft_median_ms: float | None
    ttft_p99_ms: float | None
    gap_median_ms: float | None
    gap_p99_ms: float | None
    span_median_ms: float | None
    span_p99_ms: float | None
    first_error: str | None

    @property
    def is_stream_near(self):
        """Gaps within the limits; of a client that keeps no gaps, the spans."""
        if self.num_gaps:
            return self._is_within(self.gap_median_ms, self.gap_p99_ms)
        return self._is_within(self.span_median_ms, self.span_p99_ms)

    @property
    def is_near(self):
        """Gaps, or spans, and times to first token within the limits."""
        return self.is_stream_near and self._is_within(self.ttft_median_ms, self.ttft_p99_ms)

    def _is_within(self, median_ms, p99_ms):
        if self.num_failed or median_ms is None or p99_ms is None:
            return False
        return median_ms < MEDIAN_LIMIT_MS and p99_ms < P99_LIMIT_MS


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
        try:
            os.sched_setaffinity(self._server.pid, {self._server_core})
            self.base_url = f"http://127.0.0.1:{_first_text(port_file)}"
        except BaseException:
            self.__exit__()
            raise
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
            files.append(Path(self._folder.name) / f"load-{len(files)}.json")
            files[-1].write_text(json.dumps({"num_streams": scenario.num_streams, "prompts": prompts}))
        seen = self._drive(client, [str(file) for file in files])
        truth = requests.get(f"{self.base_url}/records", timeout=10).json()
        if isinstance(seen, str):
            error = {"ttft_s": None, "gaps_s": None, "span_s": None, "error": seen}
            return [[(None, error) for _ in asked] for asked in numbers]
        return [
            [(truth.get(str(number)), one) for number, one in zip(asked, results, strict=True)]
            for asked, results in zip(numbers, seen, strict=True)
        ]

    def _drive(self, client, files):
        """What the client saw, or why it saw nothing."""
        command = [
            *(self._interpreters[client], str(HERE / "client_overhead_drivers.py"), client),
            *("--base-url", self.base_url, "--loads", *files),
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


def _first_text(file):
    """What a file holds once it is written."""
    deadline_s = time.monotonic() + SERVER_LIMIT_S
    while not (file.exists() and (text := file.read_text())):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"expected the server to write {file} within {SERVER_LIMIT_S} s, it did not")
        time.sleep(0.1)
    return text


def summarise(client, scenario, pairs):
    """Errors of a client against the server's times."""
    ttfts, gaps, spans, failures = [], [], [], []
    for truth, seen in pairs:
        if truth is None or seen["error"] or seen["ttft_s"] is None:
            failures.append(seen["error"] or "no time to first token, or the stream was not read to its end")
            continue
        sends = truth["sends_s"]
        true_gaps = [b - a for a, b in itertools.pairwise(sends)]
        if seen["gaps_s"] is not None and len(seen["gaps_s"]) != len(true_gaps):
            failures.append(f"{len(seen['gaps_s'])} gaps, but {len(true_gaps)} were sent")
            continue
        ttfts.append(abs(seen["ttft_s"] - (sends[0] - truth["received_s"])) * 1000)
        spans.append(abs(seen["span_s"] - (sends[-1] - sends[0])) * 1000)
        if seen["gaps_s"] is not None:
            gaps += [abs(a - b) * 1000 for a, b in zip(seen["gaps_s"], true_gaps, strict=True)]
    return Errors(
        client=client,
        scenario=scenario.name,
        num_streams=scenario.num_streams,
        num_requests=len(pairs),
        num_failed=len(failures),
        num_gaps=len(gaps),
        ttft_median_ms=_quantile(ttfts, 0.5),
        ttft_p99_ms=_quantile(ttfts, 0.99),
        gap_median_ms=_quantile(gaps, 0.5),
        gap_p99_ms=_quantile(gaps, 0.99),
        span_median_ms=_quantile(spans, 0.5),
        span_p99_ms=_quantile(spans, 0.99),
        first_error=failures[0] if failures else None,
    )


def _quantile(values, share):
    if len(values) < 2:
        return values[0] if values else None
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[round(share * 100) - 1]


def climb(bench, client):
    """Steps of the ladder up to the first at which gaps, or spans, are no longer near the truth."""
    steps = []
    for rate in LADDER_TOK_PER_S:
        num_tokens = int(rate * LADDER_SECONDS)
        name = f"{LADDER_STREAMS} x {rate} tok/s"
        scenario = Scenario(name, LADDER_STREAMS, 20, 1000 / rate, num_tokens, LADDER_STREAMS)
        # Twice, and the second counts: the server makes the frames of a length when first asked for it.
        steps.append(summarise(client, scenario, bench.measure(client, scenario, scenario)[1]))
        if not steps[-1].is_stream_near:
            break
    return steps


def largest_loads(steps):
    """The last steps before all errors, and before those of the streams without TTFT, pass the limits."""

    def last_within(is_within):
        return [None, *(step.scenario for step in itertools.takewhile(is_within, steps))][-1]

    return {
        "all_errors": last_within(lambda step: step.is_near),
        "without_ttft": last_within(lambda step: step.is_stream_near),
    }


def table(rows):
    """Markdown of the errors."""
    kinds = [f"{kind} {share}" for kind in ("TTFT", "gap", "span") for share in ("median", "p99")]
    lines = [f"| client | scenario | streams | {' | '.join(kinds)} | requests | failed |", "|---" * 11 + "|"]
    for row in rows:
        times = (row.ttft_median_ms, row.ttft_p99_ms, row.gap_median_ms, row.gap_p99_ms)
        times += (row.span_median_ms, row.span_p99_ms)
        cells = [row.client, row.scenario, str(row.num_streams)]
        cells += ["n/a" if value is None else f"{value:.3f}" for value in times]
        lines.append(f"| {' | '.join(cells)} | {row.num_requests} | {row.num_failed} |")
    lines += [f"{row.client}, {row.scenario}: {row.first_error}" for row in rows if row.first_error]
    return "\n".join(lines)


def find_clients(peers):
    """Versions of the clients that can be driven, and why the others cannot."""
    versions, absent = {}, {}
    for client in CLIENTS:
        if client not in peers:
            absent[client] = "no --peer names its interpreter"
            continue
        command = [peers[client], str(HERE / "client_overhead_drivers.py"), client, "--version"]
        try:
            found = subprocess.run(
                command, capture_output=True, text=True, timeout=IMPORT_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            absent[client] = str(error)
            continue
        if found.returncode:
            absent[client] = (found.stderr.strip().splitlines() or [f"exit code {found.returncode}"])[-1]
        else:
            versions[client] = found.stdout.split()[-1]
    return versions, absent


def run(bench, clients, *, num_rounds, has_ladder):
    """All scenarios, the clients taking turns in every round; then the ladder of each."""
    pairs = {(client, scenario): [] for scenario in SCENARIOS for client in clients}
    for _ in range(num_rounds):
        for client in clients:
            for scenario, found in zip(SCENARIOS, bench.measure(client, *SCENARIOS), strict=True):
                pairs[client, scenario] += found
    rows = [summarise(client, scenario, found) for (client, scenario), found in pairs.items()]
    return rows, {client: climb(bench, client) for client in clients if has_ladder}


def parse_arguments():
    """The command line."""
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
    ours = {client: sys.executable for client in CLIENTS if client.startswith("draftbench")}
    arguments.peers = ours | dict(peer.partition("=")[::2] for peer in arguments.peer)
    if unknown := arguments.peers.keys() - set(CLIENTS):
        parser.error(f"--peer takes one of {', '.join(CLIENTS)} before the =, got {', '.join(unknown)}")
    return arguments


def main():
    """Run the benchmark; its exit code."""
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that server and client are ended too
    load_before = os.getloadavg()
    versions, absent = find_clients(arguments.peers)
    cores = (arguments.server_core, arguments.client_core)
    with Bench(*cores, arguments.peers, is_realtime=arguments.realtime) as bench:
        rows, ladder = run(
            bench, list(versions), num_rounds=arguments.rounds, has_ladder=not arguments.skip_ladder
        )
    steps = [step for climbed in ladder.values() for step in climbed]
    content = {
        "versions": versions,
        "absent": absent,
        "rows": [asdict(row) for row in rows],
        "ladder": [asdict(step) for step in steps],
        "largest_loads": {client: largest_loads(climbed) for client, climbed in ladder.items()},
        "load_average": {"before": load_before, "after": os.getloadavg()},
    }
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    print("Errors in ms:\n" + table([*rows, *steps]), file=sys.stderr)
    for name in ("versions", "absent", "largest_loads", "load_average"):
        print(f"{name}: {json.dumps(content[name])}", file=sys.stderr)
    print(json.dumps({"out": str(arguments.out), "num_rows": len(rows), "num_steps": len(steps)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
