"""Slow, stalled, dying and dead servers end a request in its limits, and never hang it."""

import socket
import time

import pytest
from fault_server import CHUNKED_HEAD, HANG, HEAD, RESET, FaultServer, chunked, plain
from plans import APIS, LIMITS, make_plan
from streams import Stream, event

from draftbench.client.stream import measure_request
from draftbench.client.transport import StreamLimits
from draftbench.errors import ConfigError

every_api = pytest.mark.parametrize("api", APIS)
SHORT = StreamLimits(connect_s=1.0, idle_s=0.4, total_s=1.2)
SLACK_S = 2.0  # for a busy machine; the next longer wait would be far more


def raw(steps):
    return steps


def timed(measure, *args, **options):
    start = time.monotonic()
    record = measure(*args, **options)
    return record, time.monotonic() - start


@every_api
@pytest.mark.parametrize("num_before", [0, 2])
def test_a_server_that_stops_sending_fails_at_the_idle_limit(measure, api, num_before):
    steps = [*Stream(api).whole(4)[: 2 * num_before], HANG]
    record, span_s = timed(measure, steps, api, limits=SHORT)
    assert record.status == "failed"
    assert "idle limit" in record.error
    assert SHORT.idle_s <= span_s < SHORT.idle_s + SLACK_S
    assert len(record.chunks) == num_before


TRICKLES = {
    "comments": b": ping\n\n",
    "blank lines": b"\n",
    "empty data": b"data:\n\n",
    "named pings": b"event: ping\ndata:\n\n",
    "bytes of one line": b"x",
    "empty choices": event({"choices": []}),
    "role events": event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}),
}


@pytest.mark.parametrize("kind", TRICKLES)
def test_signs_of_life_do_not_extend_the_idle_limit(measure, kind):
    steps = [Stream("chat").token(), *[0.1, TRICKLES[kind]] * 50]
    record, span_s = timed(measure, steps, "chat", limits=SHORT)
    assert record.status == "failed"
    assert "idle limit" in record.error
    assert span_s < SHORT.idle_s + SLACK_S


@every_api
def test_a_stream_that_goes_on_for_too_long_fails_at_the_total_limit(measure, api):
    record, span_s = timed(measure, Stream(api).whole(50, pause_s=0.1), api, max_tokens=50, limits=SHORT)
    assert record.status == "failed"
    assert "total limit" in record.error
    assert SHORT.total_s <= span_s < SHORT.total_s + SLACK_S


def test_a_head_that_trickles_fails_at_the_idle_limit(measure):
    steps = [step for byte in HEAD for step in (0.05, bytes([byte]))]
    record, span_s = timed(measure, steps, limits=SHORT, frame=raw)
    assert record.status == "failed"
    assert span_s < SHORT.idle_s + SLACK_S


def test_a_server_that_accepts_and_says_nothing_fails_at_the_idle_limit(measure):
    record, span_s = timed(measure, [HANG], limits=SHORT, frame=raw)
    assert record.status == "failed"
    assert record.http_status is None
    assert span_s < SHORT.idle_s + SLACK_S


def test_an_error_body_that_never_ends_fails_in_time(measure):
    head = b"HTTP/1.1 500 Oops\r\nContent-Length: 100\r\n\r\nhalf"
    record, span_s = timed(measure, [head, HANG], limits=SHORT, frame=raw)
    assert record.status == "failed"
    assert span_s < SHORT.idle_s + SLACK_S


@every_api
@pytest.mark.parametrize("end", ["reset", "cut chunk", "no last chunk", "short length"])
def test_a_connection_that_dies_in_the_middle_is_a_failure(measure, api, end):
    tokens = [step for step in Stream(api).whole(4)[:4] if isinstance(step, bytes)]
    data = b"".join(tokens)
    steps = {
        "reset": [HEAD, data, 0.1, RESET],
        "cut chunk": [CHUNKED_HEAD, b"%x\r\n%s" % (len(data) + 9, data)],
        "no last chunk": [CHUNKED_HEAD, b"%x\r\n%s\r\n" % (len(data), data)],
        "short length": [HEAD.replace(b"Connection: close", b"Content-Length: 99999"), data],
    }[end]
    record = measure(steps, api, frame=raw)
    assert record.status == "failed"
    assert len(record.chunks) == 2
    assert record.error


@every_api
def test_a_connection_that_dies_after_everything_was_sent_takes_nothing_away(measure, api):
    data = b"".join(step for step in Stream(api).whole(4)[:-1] if isinstance(step, bytes))
    record = measure([CHUNKED_HEAD, b"%x\r\n%s\r\n" % (len(data), data)], api, frame=raw)
    assert record.status == "ok"


@every_api
def test_a_server_that_is_not_there_is_a_failure_at_once(api):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    start = time.monotonic()
    record = measure_request(make_plan(api), f"http://127.0.0.1:{port}", LIMITS)
    assert record.status == "failed"
    assert "refused" in record.error
    assert record.http_status is None
    assert time.monotonic() - start < SLACK_S


def test_a_connection_that_is_not_accepted_fails_at_the_connect_limit():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(address)
            start = time.monotonic()
            limits = StreamLimits(connect_s=0.3, idle_s=5.0, total_s=9.0)
            record = measure_request(make_plan(), f"http://127.0.0.1:{address[1]}", limits)
        finally:
            for filler in fillers:
                filler.close()
    assert record.status == "failed"
    assert "did not accept" in record.error
    assert time.monotonic() - start < 0.3 + SLACK_S


def test_a_compressed_stream_is_refused(measure):
    head = HEAD.replace(b"Connection", b"Content-Encoding: gzip\r\nConnection")
    record = measure([head, b"\x1f\x8b"], frame=raw)
    assert record.status == "failed"
    assert "gzip" in record.error


def test_proxies_of_the_environment_are_not_used(measure, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert measure(Stream("generate").whole(4)).status == "ok"


def test_a_base_url_that_is_not_http_is_refused():
    with pytest.raises(ConfigError, match="http://"):
        measure_request(make_plan(), "ftp://127.0.0.1", LIMITS)


@pytest.mark.parametrize("frame", [chunked, plain])
def test_events_are_seen_when_they_come_not_when_a_buffer_is_full(frame):
    sent = []

    def script(_call):
        stream = Stream("generate")
        steps = [stream.token() for _ in range(4)] + [stream.token(finish="length"), *stream.end()]
        for step in frame(steps):
            yield 0.05
            sent.append(time.monotonic())
            yield step

    with FaultServer(script) as server:
        record = measure_request(make_plan(max_tokens=5), server.base_url, LIMITS)
    delays = [chunk.time_s - sent_s for chunk, sent_s in zip(record.chunks, sent[1:], strict=False)]
    assert len(delays) == 5
    assert min(delays) >= 0
    assert sorted(delays)[2] < 0.05
