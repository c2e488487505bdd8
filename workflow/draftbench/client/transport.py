"""One HTTP request whose every read is stamped and limited in time.

`requests` sends it; the socket underneath is replaced by one that, on each read, takes the time before
anybody looks at the bytes and waits no longer than the limits allow, however the server trickles.
"""

import functools
import http.client
import logging
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError
from urllib3.util import parse_url

from draftbench.errors import ConfigError, MeasurementError

logger = logging.getLogger(__name__)
READ_BYTES = 1 << 16
# Linux, include/uapi/linux/net_tstamp.h; Python names none of them.
SO_TIMESTAMPING = 37
RX_SOFTWARE_STAMPS = (1 << 3) | (1 << 4)  # make software receive stamps, and report them
STAMP = struct.Struct("@qq")  # seconds and nanoseconds of the first of three stamps
ANCILLARY_BYTES = socket.CMSG_SPACE(3 * STAMP.size)
MAX_STAMP_AGE_NS = 3600 * 10**9
HEADERS = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Cache-Control": "no-cache"}


class LimitReached(MeasurementError):
    """The server was too slow for the request's limits."""


class TransportError(MeasurementError):
    """The connection failed."""


@dataclass(frozen=True)
class StreamLimits:
    """How long one request may take, in seconds.

    Attributes:
        connect_s: until the connection stands.
        idle_s: without progress; bytes that bring no progress, such as comments, do not count.
        total_s: from sending to the end of the stream.
    """

    connect_s: float = 5.0
    idle_s: float = 60.0
    total_s: float = 900.0


@dataclass
class StreamClock:
    """Times of one request, seconds of the monotonic clock.

    Attributes:
        send_s: just before the request was written to its connection.
        last_read_s: when the latest bytes arrived.
        progress_s: when the request last got on.
    """

    limits: StreamLimits
    send_s: float = field(default_factory=time.monotonic)
    last_read_s: float = 0.0
    progress_s: float = 0.0

    def start(self) -> None:
        """The request is being sent now."""
        self.send_s = self.progress_s = self.last_read_s = time.monotonic()

    def mark_read(self, time_s: float) -> None:
        """Bytes arrived at `time_s`; clocks of kernel and process may differ by a hair, order is kept."""
        self.last_read_s = max(time_s, self.last_read_s)

    def mark_progress(self) -> None:
        """The latest read brought the request on."""
        self.progress_s = self.last_read_s

    def remaining_s(self) -> float:
        """Time that the next read may take.

        Raises:
            LimitReached: none is left.
        """
        now = time.monotonic()
        left = min(self.progress_s + self.limits.idle_s, self.send_s + self.limits.total_s) - now
        if left <= 0:
            raise self.limit_reached(now)
        return left

    def limit_reached(self, now_s: float) -> LimitReached:
        """The error that names the limit which ended the request."""
        if now_s - self.send_s >= self.limits.total_s:
            return LimitReached(
                f"the request was not done within its total limit of {self.limits.total_s:g} s"
            )
        return LimitReached(
            f"no progress for {self.limits.idle_s:g} s, the idle limit: the server sent nothing new"
        )


class _StampedSocket(socket.socket):
    """A connected socket that stamps each read and keeps to the clock's limits.

    The stamp is the kernel's, taken when the bytes arrived, so it does not depend on how busy this process or
    its interpreter lock is; where the kernel gives none, it is the time at which the read returned. A read
    that takes the bytes of several packets has the last one's time.
    """

    clock: StreamClock

    @classmethod
    def adopt(cls, sock: socket.socket, clock: StreamClock) -> "_StampedSocket":
        stamped = cls(sock.family, sock.type, sock.proto, fileno=sock.detach())
        stamped.clock = clock
        try:
            stamped.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_SOFTWARE_STAMPS)
        except OSError as error:
            logger.debug("no receive time stamps from this kernel: %s", error)
        return stamped

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(self.clock.remaining_s())
        view = memoryview(buffer)[: nbytes or None]
        try:
            count, ancillary, _, _ = self.recvmsg_into([view], ANCILLARY_BYTES, flags)
        except TimeoutError:
            raise self.clock.limit_reached(time.monotonic()) from None
        self.clock.mark_read(arrival_s(ancillary))
        return count


def arrival_s(ancillary: Iterable[tuple[int, int, bytes]]) -> float:
    """Monotonic time at which the bytes of a read that has just returned arrived.

    Args:
        ancillary: what came with the bytes; the kernel's stamp is wall-clock time.
    """
    now_s, now_wall_ns = _both_clocks()
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPING and len(data) >= STAMP.size:
            seconds, nanoseconds = STAMP.unpack_from(data)
            age_ns = now_wall_ns - (seconds * 10**9 + nanoseconds)
            if seconds and 0 <= age_ns < MAX_STAMP_AGE_NS:  # else the wall clock was set meanwhile
                return now_s - float(age_ns) / 1e9
    return now_s


def _both_clocks() -> tuple[float, int]:
    """The monotonic clock in seconds and the wall clock in nanoseconds, of one moment.

    The tightest of three readings: the process may be interrupted between two clocks.
    """
    readings = [(time.monotonic(), time.time_ns(), time.monotonic()) for _ in range(3)]
    before_s, wall_ns, after_s = min(readings, key=lambda reading: reading[2] - reading[0])
    return (before_s + after_s) / 2, wall_ns


class _StampedConnection(HTTPConnection):
    """Connects, then sends head and body in one write and takes the time just before it."""

    def __init__(self, *args: Any, clock: StreamClock, **options: Any) -> None:
        super().__init__(*args, **options)
        self._clock = clock
        self._head: bytes | None = None

    def connect(self) -> None:
        super().connect()
        plain: socket.socket = self.sock
        self.sock = _StampedSocket.adopt(plain, self._clock)
        self.sock.settimeout(self._clock.limits.total_s)

    def send(self, data: Any) -> None:
        if self._head is None:
            self._head = data
            if self.sock is None:
                self.connect()
            return
        self._clock.start()
        super().send(self._head + data)


class _StampedAdapter(HTTPAdapter):
    """A fresh connection for its one request: never a stale one, never a queue for one."""

    def __init__(self, clock: StreamClock) -> None:
        super().__init__(max_retries=0, pool_connections=1, pool_maxsize=1)
        self._clock = clock
        self._pools: list[HTTPConnectionPool] = []

    def get_connection_with_tls_context(
        self, request: Any, *_args: Any, **_options: Any
    ) -> HTTPConnectionPool:
        url = parse_url(request.url)
        pool = HTTPConnectionPool(url.host or "", url.port or 80, maxsize=1)
        pool.ConnectionCls = functools.partial(_StampedConnection, clock=self._clock)  # type: ignore[assignment]
        self._pools.append(pool)
        return pool

    def close(self) -> None:
        for pool in self._pools:
            pool.close()
        super().close()


@dataclass
class StreamedResponse:
    """An answer whose head has come.

    Attributes:
        status: HTTP status code.
        content_type: without parameters, lower case; empty where the server gives none.
    """

    status: int
    content_type: str
    _response: requests.Response

    def reads(self) -> Iterator[bytes]:
        """The body, as it arrives; the clock's `last_read_s` belongs to the bytes given last.

        Raises:
            LimitReached: the server took too long.
            TransportError: the connection broke, or the body was cut before its announced end.
        """
        with _transport_errors():
            while data := self._response.raw.read1(READ_BYTES, decode_content=False):
                yield data


@contextmanager
def open_stream(url: str, body: dict[str, Any], clock: StreamClock) -> Iterator[StreamedResponse]:
    """POST `body` as JSON and give the answer as soon as its head has come.

    No retry, no redirect, no proxy, no compression, and nothing taken from the environment.

    Raises:
        ConfigError: the URL is not plain HTTP.
        LimitReached, TransportError: as `StreamedResponse.reads`.
    """
    if not url.startswith("http://"):
        raise ConfigError(
            f"expected a base URL that starts with http://, got {url!r}; give the server's address"
        )
    prepared = requests.Request("POST", url, json=body, headers=HEADERS).prepare()
    with closing(_StampedAdapter(clock)) as adapter:
        # The adapter alone: a session would add redirects, cookies and the environment's proxies.
        with _transport_errors():
            timeout = (clock.limits.connect_s, clock.limits.total_s)
            response = adapter.send(prepared, stream=True, timeout=timeout)
        with response:
            kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
            encoding = response.headers.get("Content-Encoding", "identity")
            if encoding != "identity":
                raise TransportError(f"expected an uncompressed stream, got Content-Encoding {encoding}")
            yield StreamedResponse(response.status_code, kind, response)


@contextmanager
def _transport_errors() -> Iterator[None]:
    """Turn what the libraries raise into one error with one sentence."""
    try:
        yield
    except requests.exceptions.ConnectTimeout as error:
        raise TransportError("the server did not accept the connection in time") from error
    except (requests.RequestException, HTTPError, http.client.HTTPException, OSError) as error:
        raise TransportError(f"the connection failed: {_innermost(error)}") from error


def _innermost(error: BaseException) -> str:
    """The sentence of the error that started a chain of wrapped ones."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
