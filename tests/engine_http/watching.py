"""A server's streamed events and states, as its tests read them."""

import json
import time


def parse_event(line):
    assert line.startswith(b"data: ")
    data = line.removeprefix(b"data: ")
    return data.decode() if data == b"[DONE]" else json.loads(data)


def wait_until(condition, timeout_s=5.0):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "the awaited state did not come"
        time.sleep(0.005)
