"""When a request was written, the kernel's receive stamps, and what is done where there are none."""

import socket
import threading
import time

import pytest
from fault_server import HEAD, FaultServer
from urllib3.connection import HTTPConnection

from draftbench.client.transport import (
    ANCILLARY_BYTES,
    RX_SOFTWARE_STAMPS,
    SO_TIMESTAMPING,
    STAMP,
    LimitReached,
    StreamClock,
    StreamLimits,
    arrival_s,
    open_stream,
)


@pytest.fixture
def pair():
    """Two ends of a connection; the second one asks for stamps."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
    try:
        near.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_SOFTWARE_STAMPS)
    except OSError:
        pytest.skip("this kernel gives no receive stamps")
    with far, near:
        await_stamps(far, near)
        yield far, near


def await_stamps(far, near, limit_s=5.0):
    """The kernel switches stamps on a moment after the first socket of the host has asked for them."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        far.sendall(b"x")
        if near.recvmsg(16, ANCILLARY_BYTES)[1]:
            return
    pytest.fail(f"expected a receive stamp within {limit_s:g} s, got none")


def test_bytes_that_waited_have_the_time_of_their_arrival(pair):
    far, near = pair
    sent_s = time.monotonic()
    far.sendall(b"x")
    time.sleep(0.3)
    _, ancillary, _, _ = near.recvmsg(16, ANCILLARY_BYTES)
    assert -0.001 < arrival_s(ancillary) - sent_s < 0.1  # two clocks are compared


def test_an_event_that_waited_to_be_read_has_the_time_of_its_arrival(pair):
    first_is_read, second_is_sent = threading.Event(), threading.Event()

    def script(_call):
        yield from (HEAD, b"data: 1\n\n")
        first_is_read.wait(30)
        yield b"data: 2\n\n"
        second_is_sent.set()

    clock = StreamClock(StreamLimits())
    with FaultServer(script) as server, open_stream(server.base_url, {}, clock) as response:
        reads = response.reads()
        next(reads)
        first_is_read.set()
        assert second_is_sent.wait(30)
        time.sleep(0.3)
        read_s = time.monotonic()
        assert next(reads) == b"data: 2\n\n"
    assert clock.last_read_s < read_s - 0.1


def test_the_clock_starts_just_before_the_request_is_written(monkeypatch):
    clock, written = StreamClock(StreamLimits()), []
    send = HTTPConnection.send

    def note(connection, data):
        written.append((clock.progress_s, connection.sock is not None, data))
        send(connection, data)

    monkeypatch.setattr(HTTPConnection, "send", note)
    with FaultServer(lambda _call: [HEAD]) as server, open_stream(server.base_url, {"a": 1}, clock):
        pass
    [(progress_s, is_connected, data)] = written
    assert progress_s == clock.send_s > 0
    assert is_connected
    assert data.startswith(b"POST / ")
    assert data.endswith(b'{"a": 1}')


def stamp(age_s):
    wall_ns = time.time_ns() - int(age_s * 1e9)
    return [(socket.SOL_SOCKET, SO_TIMESTAMPING, STAMP.pack(*divmod(wall_ns, 10**9)) + bytes(32))]


def test_a_stamp_is_turned_into_monotonic_time():
    assert arrival_s(stamp(2.0)) == pytest.approx(time.monotonic() - 2.0, abs=0.05)


@pytest.mark.parametrize(
    "ancillary",
    [
        [],
        stamp(-7200.0),
        stamp(7200.0),
        [(socket.SOL_SOCKET, SO_TIMESTAMPING, bytes(48))],
        [(socket.SOL_SOCKET, SO_TIMESTAMPING, b"short")],
        [(socket.SOL_SOCKET, 99, STAMP.pack(1, 1))],
    ],
)
def test_without_a_usable_stamp_the_read_counts(ancillary):
    assert arrival_s(ancillary) == pytest.approx(time.monotonic(), abs=0.05)


def test_stamps_never_go_back():
    clock = StreamClock(StreamLimits())
    clock.start()
    start_s = clock.last_read_s
    clock.mark_read(start_s - 1e-4)
    assert clock.last_read_s == start_s


def test_the_limit_that_ended_a_request_is_named():
    clock = StreamClock(StreamLimits(idle_s=5.0, total_s=9.0))
    clock.start()
    assert 4.5 < clock.remaining_s() <= 5.0
    clock.progress_s -= 6
    with pytest.raises(LimitReached, match="idle limit"):
        clock.remaining_s()
    clock.send_s -= 10
    with pytest.raises(LimitReached, match="total limit"):
        clock.remaining_s()
