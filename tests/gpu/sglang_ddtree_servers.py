"""Servers that the plugin's gates start beside each other on the same GPUs, and what is asked of them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "workflow" / "sglang_ddtree" / "src"
REQUEST_LIMIT_S = 60
# Lines of a server's log that say whether graphs, mask and fused paths are in use, or that something went
# wrong.
TELLING = (
    "DDTree", "Capture target verify", "Capture draft verify", "Traceback", "Error", "failed", "falling back",
    "kept eager", "without a CUDA graph",
)  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """One server: what it drafts and what it is started with besides."""

    name: str
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def tree(name: str, width: int, *options: str, **environment: str) -> Arm:
    """A server of the plugin."""
    given = ("--speculative-algorithm", "DDTREE_OOT", "--speculative-num-draft-tokens", str(width))
    return Arm(name, (*given, *options), environment)


ARMS = (
    Arm("ar"),
    Arm("dflash", ("--speculative-algorithm", "DFLASH")),
    tree("b16", 17),
    tree("chain-eager", 16, "--disable-cuda-graph", SGLANG_DDTREE_CHAIN="1"),
    tree("b8", 9),
    tree("b64", 65),
    tree("chain", 16, SGLANG_DDTREE_CHAIN="1"),
    tree("b16-kernel", 17, SGLANG_DDTREE_KERNEL="1"),
    tree("b64-kernel", 65, SGLANG_DDTREE_KERNEL="1"),
    tree("b16-sync", 17, "--disable-overlap-schedule"),
)


def install_plugin(folder: Path) -> Path:
    """Put the plugin and what names its entry point into a folder, as an installation would."""
    info = folder / "sglang_ddtree-0.1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-ddtree\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nddtree = sglang_ddtree:register\n")
    link = folder / "sglang_ddtree"
    if not link.exists():
        link.symlink_to(SOURCE / "sglang_ddtree", target_is_directory=True)
    return folder


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens at now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


class Server:
    """One process group that is ended in any case."""

    def __init__(self, arm: Arm, argv: list[str], environment: dict[str, str], log: Path, port: int) -> None:
        self.arm, self.log, self.port = arm, log, port
        self.started = time.monotonic()
        self.ready_s: float | None = None
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                argv,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=os.environ | environment | arm.environment,
                start_new_session=True,
            )

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self, deadline: float) -> bool:
        """Whether a real generation succeeds before the deadline."""
        while time.monotonic() < deadline and self.is_alive():
            with contextlib.suppress(OSError, ValueError):
                self.ask({"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}}, limit_s=20)
                self.ready_s = round(time.monotonic() - self.started, 1)
                return True
            time.sleep(0.5)
        return False

    def ask(self, body: dict[str, Any], limit_s: float = REQUEST_LIMIT_S) -> Any:
        """One `/generate`."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/generate",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=limit_s) as reply:  # noqa: S310  (our own URL)
            return json.load(reply)

    def flush(self) -> None:
        """Empty its cache of prefixes, once nothing runs.

        Raises:
            OSError: something still ran after ten seconds.
        """
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/flush_cache?timeout=10", method="POST"
        )
        urllib.request.urlopen(request, timeout=REQUEST_LIMIT_S).close()  # noqa: S310  (our own URL)

    def signal(self, number: signal.Signals) -> None:
        """To this process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def tail(self, num_lines: int) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-num_lines:])

    def telling_lines(self) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines()
        found = [line[:300] for line in lines if any(word in line for word in TELLING)]
        decodes = [line[:300] for line in lines if "Decode batch" in line]
        return found[-30:] + decodes[-2:]


@dataclass(frozen=True)
class Setting:
    """What all servers have in common.

    Attributes:
        python: interpreter of SGLang's environment.
        models: folders of the target and the drafter.
        tp: GPUs of a server.
        folder: of logs and of the plugin.
    """

    python: str
    models: tuple[Path, Path]
    dtype: str
    tp: int
    folder: Path


def arguments(arm: Arm, setting: Setting, ports: tuple[int, int]) -> list[str]:
    """Options of one server; ports are its own and NCCL's."""
    target, drafter = setting.models
    found = [
        "--model-path", str(target), "--dtype", setting.dtype, "--host", "127.0.0.1",
        "--port", str(ports[0]), "--nccl-port", str(ports[1]),
        "--attention-backend", "triton", "--sampling-backend", "pytorch", "--grammar-backend", "none",
        "--page-size", "1", "--max-running-requests", "8", "--context-length", "4096",
        "--max-total-tokens", "32768", "--mem-fraction-static", "0.9", "--random-seed", "1",
        "--disable-prefill-cuda-graph", "--skip-server-warmup", "--decode-log-interval", "10",
    ]  # fmt: skip
    if "--disable-cuda-graph" not in arm.options:
        found += ["--cuda-graph-bs-decode", "1", "2", "4", "8"]
    if setting.tp > 1:
        found += ["--tp-size", str(setting.tp)]
    if arm.options:
        found += [
            "--speculative-draft-model-path", str(drafter), "--speculative-dflash-block-size", "16",
            "--speculative-draft-attention-backend", "triton", *arm.options,
        ]  # fmt: skip
    return found


def start(arm: Arm, setting: Setting) -> Server:
    """Start one server."""
    port, nccl_port = free_ports(2)
    plugin = install_plugin(setting.folder / "plugin")
    path = os.pathsep.join([str(plugin), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if setting.tp > 1:
        # Servers that start beside each other take memory on one GPU before they do on the next.
        environment["SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"] = "false"
    argv = [setting.python, "-m", "sglang.launch_server", *arguments(arm, setting, (port, nccl_port))]
    return Server(arm, argv, environment, setting.folder / f"{arm.name}.log", port)


def end_all(servers: list[Server]) -> None:
    """Ask every server to end, then make it."""
    for server in servers:
        server.signal(signal.SIGTERM)
    limit = time.monotonic() + 8
    while time.monotonic() < limit and any(server.is_alive() for server in servers):
        time.sleep(0.2)
    for server in servers:
        server.signal(signal.SIGKILL)


def ask_all(server: Server, bodies: list[dict[str, Any]], at_once: int) -> tuple[list[Any], float]:
    """Send requests, so many at a time; their replies in order (None where one failed) and the wall time."""
    replies: list[Any] = [None] * len(bodies)
    places = iter(range(len(bodies)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                place = next(places, None)
            if place is None:
                return
            with contextlib.suppress(OSError, ValueError):
                replies[place] = server.ask(bodies[place])

    threads = [threading.Thread(target=work) for _ in range(min(at_once, len(bodies)))]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replies, time.monotonic() - begin
