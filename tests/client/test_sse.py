"""The event parser, against the rules of the standard and every way of cutting the bytes."""

import time

import pytest

from draftbench.client.sse import SseEvent, SseParser


def parse(data, size=None):
    parser = SseParser()
    pieces = [data] if size is None else [data[i : i + size] for i in range(0, len(data), size)]
    events = [event for piece in pieces for event in parser.feed(piece)]
    return [*events, *parser.finish()]


def data_of(data, size=None):
    return [event.data for event in parse(data, size)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_each_line_ending_ends_a_line(end):
    stream = end.join([b"data: one", b"", b"data: two", b"data: three", b"", b""])
    assert data_of(stream) == ["one", "two\nthree"]


def test_line_endings_may_be_mixed():
    assert data_of(b"data: a\r\n\ndata: b\r\rdata: c\n\r\n") == ["a", "b", "c"]


MIXED = (
    "\ufeffid: 7\r\nevent: note\r\ndata: grüße 🎉\r\ndata:zweite\r\n\r\n: comment\n\ndata\n\n"
    'retry: 10\rdata: {"a": "x\\ny"}\r\revent: error\ndata: last'
).encode()


@pytest.mark.parametrize("size", range(1, 40))
def test_where_the_bytes_are_cut_does_not_matter(size):
    assert parse(MIXED, size) == parse(MIXED)


def test_fields_of_an_event_are_kept():
    assert parse(MIXED) == [
        SseEvent("grüße 🎉\nzweite", "note", "7"),
        SseEvent("", "message", "7"),
        SseEvent('{"a": "x\\ny"}', "message", "7"),
        SseEvent("last", "error", "7"),
    ]


def test_only_one_space_after_the_colon_is_taken_away():
    assert data_of(b"data:none\n\ndata: one\n\ndata:  two\n\n") == ["none", "one", " two"]


def test_a_comment_is_no_event():
    assert data_of(b": ping\n\n:\n\n:data: x\n\n") == []


def test_a_comment_inside_an_event_does_not_break_it():
    assert data_of(b"data: a\n: ping\ndata: b\n\n") == ["a\nb"]


def test_an_event_without_data_is_not_dispatched():
    assert data_of(b"event: ping\nid: 3\n\n") == []


def test_the_name_of_an_event_without_data_does_not_stick():
    assert parse(b"event: ping\n\ndata: x\n\n")[0].name == "message"


def test_empty_data_is_an_event_with_empty_data():
    assert data_of(b"data:\n\ndata\n\n") == ["", ""]


def test_unknown_fields_are_ignored():
    assert data_of(b'foo: bar\n{"error": 1}\ndata: x\n\n') == ["x"]


def test_the_name_may_come_after_the_data():
    assert parse(b"data: x\nevent: error\n\n") == [SseEvent("x", "error")]


def test_an_id_with_a_null_is_ignored():
    assert parse(b"id: a\0b\ndata: x\n\n")[0].event_id == ""


def test_several_events_in_one_read_come_in_order():
    assert data_of(b"".join(b"data: %d\n\n" % i for i in range(50))) == [str(i) for i in range(50)]


@pytest.mark.parametrize("tail", [b"", b"\n", b"\r", b"\r\n"])
def test_the_last_event_needs_no_closing_blank_line(tail):
    assert data_of(b"data: x" + tail) == ["x"]


def test_an_event_is_given_as_soon_as_its_blank_line_is_there():
    parser = SseParser()
    assert parser.feed(b"data: x\r\n\r") == [SseEvent("x")]
    assert parser.feed(b"\ndata: y\n\n") == [SseEvent("y")]


def test_bytes_that_are_no_utf8_do_not_stop_the_stream():
    assert data_of(b"data: a\xffb\n\ndata: c\n\n") == ["a\ufffdb", "c"]


def test_a_byte_order_mark_counts_only_at_the_start():
    assert data_of(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n") == ["a"]


def seconds_to_parse(num_bytes, size):
    data = b"data: " + b"x" * num_bytes + b"\n\n"
    start = time.process_time()
    events = parse(data, size)
    span = time.process_time() - start
    assert len(events) == 1
    assert len(events[0].data) == num_bytes
    return span


def test_a_line_of_ten_megabytes_takes_linear_time():
    small = min(seconds_to_parse(1_000_000, 1000) for _ in range(3))
    large = min(seconds_to_parse(10_000_000, 1000) for _ in range(3))
    assert large < 60 * small  # linear is 10 times, quadratic would be 100
