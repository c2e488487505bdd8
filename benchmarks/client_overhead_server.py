"""A server whose every send is known: it streams on schedule and remembers when each event left.

    python benchmarks/client_overhead_server.py --port-file port.txt

The prompt of a request says what to play, anywhere in its body: `[stream 7 delay_ms 50 gap_ms 10 tokens 64]`.
`GET /records` answers with the monotonic times at which each stream's request arrived (the kernel's stamp)
and its events were sent, and forgets them. All processes of a host share that clock, so a client's times can
be held against these. One thread, one loop, real-time priority where it may.
"""

import argparse
import contextlib
import gc
import heapq
import json
import os
import re
import selectors
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

from draftbench.client.transport import ANCILLARY_BYTES, RX_SOFTWARE_STAMPS, SO_TIMESTAMPING, arrival_s

ORDER = re.compile(rb"\[stream (\d+) delay_ms ([\d.]+) gap_ms ([\d.]+) tokens (\d+)\]")
LENGTH = re.compile(rb"(?i)content-length: *(\d+)")
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: keep-alive\r\n\r\n"
)
NUM_PROMPT_TOKENS = 8
MODELS = {"object": "list", "data": [{"id": "target", "object": "model", "created": 0, "owned_by": "bench"}]}
PRIORITY = 50


def usage(num_tokens):
    """Counts as OpenAI writes them."""
    total = NUM_PROMPT_TOKENS + num_tokens
    return {"prompt_tokens": NUM_PROMPT_TOKENS, "completion_tokens": num_tokens, "total_tokens": total}


def generate_event(index, num_tokens):
    """SGLang's `/generate`: everything so far, one token more than before."""
    meta = {
        "id": "x",
        "finish_reason": {"type": "length", "length": num_tokens} if index == num_tokens else None,
        "prompt_tokens": NUM_PROMPT_TOKENS,
        "completion_tokens": index,
        "cached_tokens": 0,
    }
    return {"text": " ab" * index, "output_ids": [7] * index, "meta_info": meta}


def openai_event(index, num_tokens, *, is_chat, has_usage):
    """A chat or text completion's event with one token."""
    body = {"delta": {"content": " ab"}} if is_chat else {"text": " ab"}
    choice = {"index": 0, **body, "finish_reason": "length" if index == num_tokens else None}
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    head = {"id": "x", "object": kind, "created": 0, "model": "target", "choices": [choice]}
    return {**head, "usage": usage(index)} if has_usage else head


def frame(payload):
    """One event as one HTTP chunk."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    data = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


@dataclass(eq=False)
class Connection:
    """A client's connection and the stream that plays on it."""

    sock: socket.socket
    data: bytes = b""
    arrived_s: float = 0.0
    number: int = -1
    frames: list = field(default_factory=list)
    end: bytes = b""
    gap_s: float = 0.0
    due_s: float = 0.0
    sends_s: list = field(default_factory=list)

    def __lt__(self, other):
        return self.due_s < other.due_s


class Server:
    """Plays streams and keeps their times."""

    def __init__(self, listener):
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._playing = []
        self._records = {}
        self._frames = {}

    def run(self):
        """Serve until killed."""
        while True:
            wait_s = max(self._playing[0].due_s - time.monotonic(), 0) if self._playing else None
            for key, _ in self._selector.select(wait_s):
                if key.data is None:
                    self._accept()
                else:
                    self._receive(key.data)
            # One turn for every stream that is due, then a look at the sockets: no stream starves a request.
            for _ in range(len(self._playing)):
                if self._playing[0].due_s > time.monotonic():
                    break
                self._send(heapq.heappop(self._playing))

    def _accept(self):
        sock, _ = self._listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_SOFTWARE_STAMPS)
        self._selector.register(sock, selectors.EVENT_READ, Connection(sock))

    def _receive(self, connection):
        try:
            data, ancillary, _, _ = connection.sock.recvmsg(65536, ANCILLARY_BYTES)
        except ConnectionError:
            data, ancillary = b"", []
        connection.arrived_s = arrival_s(ancillary)
        connection.data += data
        head, separator, body = connection.data.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if not data:
            self._selector.unregister(connection.sock)
            connection.sock.close()
        elif separator and len(body) >= (int(length[1]) if length else 0):
            connection.data = b""
            self._answer(connection, head, body)

    def _answer(self, connection, head, body):
        path = head.split(b" ", 2)[1]
        order = ORDER.search(body)
        if order is None:
            payload = MODELS if path == b"/v1/models" else {}
            if path == b"/records":
                payload, self._records = self._records, {}
            data = json.dumps(payload).encode()
            kind = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
            connection.sock.sendall(kind + b"%d\r\n\r\n%s" % (len(data), data))
            return
        delay_s, connection.gap_s = float(order[2]) / 1000, float(order[3]) / 1000
        connection.number, connection.sends_s = int(order[1]), []
        connection.frames, connection.end = self._stream(path, int(order[4]), b"continuous_usage" in body)
        connection.sock.sendall(STREAM_HEAD)
        connection.due_s = connection.arrived_s + delay_s
        heapq.heappush(self._playing, connection)

    def _stream(self, path, num_tokens, has_usage):
        """All frames of a stream, made once: nothing is encoded while a stream plays."""
        key = (path, num_tokens, has_usage)
        if key not in self._frames:
            numbers = range(1, num_tokens + 1)
            if path == b"/generate":
                events, last = [generate_event(i, num_tokens) for i in numbers], b""
            else:
                options = {"is_chat": path == b"/v1/chat/completions", "has_usage": has_usage}
                events = [openai_event(i, num_tokens, **options) for i in numbers]
                last = frame({"id": "x", "choices": [], "usage": usage(num_tokens)})
            self._frames[key] = ([frame(event) for event in events], last + frame(b"[DONE]") + b"0\r\n\r\n")
        return self._frames[key]

    def _send(self, connection):
        index = len(connection.sends_s)
        is_last = index + 1 == len(connection.frames)
        data = connection.frames[index]
        try:
            connection.sends_s.append(time.monotonic())
            connection.sock.sendall(data)
            if is_last:
                connection.sock.sendall(connection.end)
        except OSError:
            return  # the client went away; its record shows that it got less
        if is_last:
            times = {"received_s": connection.arrived_s, "sends_s": connection.sends_s}
            self._records[connection.number] = times
            return
        # A stream without gaps goes behind all others that are due.
        connection.due_s = connection.due_s + connection.gap_s if connection.gap_s else time.monotonic()
        heapq.heappush(self._playing, connection)


def main():
    """Serve until killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port-file", type=Path, required=True)
    arguments = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    arguments.port_file.write_text(str(listener.getsockname()[1]))
    gc.disable()
    with contextlib.suppress(PermissionError):  # without it a busy machine delays the sends, not the truth
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    Server(listener).run()


if __name__ == "__main__":
    main()
