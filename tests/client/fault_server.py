"""A server that plays scripts of bytes and pauses over raw sockets, and so breaks any rule of HTTP."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n"
CHUNKED_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
RESET, HANG = object(), object()  # steps: close with a TCP reset; send nothing more and keep the connection


@dataclass
class Call:
    """One request that the server got."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    time_s: float

    @property
    def json(self):
        return json.loads(self.body)


Script = Callable[[Call], Iterable]


@dataclass
class FaultServer:
    """Answers each request with the steps of `script(call)`: bytes, pauses in seconds, RESET or HANG."""

    script: Script
    calls: list[Call] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0

    def __enter__(self):
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._sockets = []
        self._threads = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.base_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)
        return self

    def __exit__(self, *_error):
        self._stopped.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._sockets):
            sock.close()
        for thread in self._threads:
            thread.join(timeout=5)
            assert not thread.is_alive()

    def _start(self, target, *args):
        thread = threading.Thread(target=target, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while not self._stopped.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(sock)
            self._start(self._serve, sock)

    def _serve(self, sock):
        try:
            with sock:
                call = _read_call(sock)
                with self._lock:
                    self.calls.append(call)
                    self.num_open += 1
                    self.most_open = max(self.most_open, self.num_open)
                try:
                    self._play(sock, call)
                finally:
                    with self._lock:
                        self.num_open -= 1
        except OSError:
            return  # the client went away, which is what many a test wants

    def _play(self, sock, call):
        for step in self.script(call):
            if step is RESET:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            if step is HANG:
                self._stopped.wait()
            elif isinstance(step, bytes):
                sock.sendall(step)
            elif self._stopped.wait(step):
                return


def _read_call(sock):
    data = b""
    while b"\r\n\r\n" not in data:
        data += _receive(sock)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += _receive(sock)
    method, path, _ = first.split(" ")
    return Call(method, path, headers, body, time.monotonic())


def _receive(sock):
    data = sock.recv(65536)
    if not data:
        raise ConnectionError("the client closed the connection before its request was complete")
    return data


def answer(status, body, content_type="application/json"):
    """One whole HTTP answer."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


def chunked(steps):
    """The steps with each piece of bytes as one HTTP chunk, and the closing chunk."""
    yield CHUNKED_HEAD
    for step in steps:
        yield b"%x\r\n%s\r\n" % (len(step), step) if isinstance(step, bytes) else step
    yield b"0\r\n\r\n"


def plain(steps):
    """The steps as a body that ends with the connection."""
    yield HEAD
    yield from steps
