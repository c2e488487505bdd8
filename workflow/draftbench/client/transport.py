"""One HTTP request whose every read is stamped and limited in time.

`requests` sends it; the socket underneath is replaced by one that, on each read, takes the time before
anybody looks at the bytes and waits no longer than the limits allow, however the server trickles.
"""

import functools
import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError
from urllib3.util import parse_url

from draftbench.errors import ConfigError, MeasurementError

READ_BYTES = 1 << 16
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
        send_s: when the connection was opened.
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
    """A connected socket that stamps each read and keeps to the clock's limits."""

    clock: StreamClock

    @classmethod
    def adopt(cls, sock: socket.socket, clock: StreamClock) -> "_StampedSocket":
        stamped = cls(sock.family, sock.type, sock.proto, fileno=sock.detach())
        stamped.clock = clock
        return stamped

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(self.clock.remaining_s())
        try:
            count = super().recv_into(buffer, nbytes, flags)
        except TimeoutError:
            raise self.clock.limit_reached(time.monotonic()) from None
        self.clock.last_read_s = time.monotonic()
        return count


class _StampedConnection(HTTPConnection):
    def __init__(self, *args: Any, clock: StreamClock, **options: Any) -> None:
        super().__init__(*args, **options)
        self._clock = clock

    def connect(self) -> None:
        self._clock.start()
        super().connect()
        plain: socket.socket = self.sock
        self.sock = _StampedSocket.adopt(plain, self._clock)
        self.sock.settimeout(self._clock.limits.total_s)


class _StampedAdapter(HTTPAdapter):
    """A fresh connection for each request: never a stale one, never a queue for one."""

    def __init__(self, clock: StreamClock) -> None:
        super().__init__(max_retries=0)
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
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", _StampedAdapter(clock))
        prepared = session.prepare_request(requests.Request("POST", url, json=body, headers=HEADERS))
        with _transport_errors():
            response = session.send(
                prepared,
                stream=True,
                allow_redirects=False,
                timeout=(clock.limits.connect_s, clock.limits.total_s),
            )
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
