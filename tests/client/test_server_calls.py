"""What is asked of a server beside generation."""

import time

import pytest
from fault_server import HANG, FaultServer, answer

from draftbench.client.server import (
    flush_cache,
    generate,
    is_speculative_server,
    mean_accept_length,
    server_info,
)
from draftbench.errors import ServerError


def scripted(*answers):
    left = list(answers)
    return lambda _call: [left.pop(0) if len(left) > 1 else left[0]]


OK = answer("200 OK", b"flushed", "text/plain")
BUSY = answer("400 Bad Request", b"requests are running", "text/plain")


def test_a_flush_succeeds_at_once():
    with FaultServer(scripted(OK)) as server:
        flush_cache(server.base_url, 1.0)
        assert [(call.method, call.path) for call in server.calls] == [("POST", "/flush_cache")]


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with FaultServer(scripted(OK)) as server:
        flush_cache(server.base_url, 1.0)


def test_a_busy_server_is_asked_again():
    with FaultServer(scripted(BUSY, BUSY, OK)) as server:
        flush_cache(server.base_url, 5.0)
        assert len(server.calls) == 3


def test_a_server_that_stays_busy_is_an_error_in_time():
    start = time.monotonic()
    with FaultServer(scripted(BUSY)) as server, pytest.raises(ServerError, match="requests are running"):
        flush_cache(server.base_url, 0.6)
    assert time.monotonic() - start < 2.0


@pytest.mark.parametrize("status", ["404 Not Found", "500 Oops"])
def test_other_answers_to_a_flush_are_not_repeated(status):
    with FaultServer(scripted(answer(status, b"no"))) as server:
        with pytest.raises(ServerError, match=status[:3]):
            flush_cache(server.base_url, 5.0)
        assert len(server.calls) == 1


def test_a_flush_that_is_never_answered_is_an_error_in_time():
    start = time.monotonic()
    with FaultServer(lambda _call: [HANG]) as server, pytest.raises(ServerError):
        flush_cache(server.base_url, 0.5)
    assert time.monotonic() - start < 2.0


def test_a_generation_that_is_never_answered_is_an_error_in_time():
    start = time.monotonic()
    with FaultServer(lambda _call: [HANG]) as server, pytest.raises(ServerError, match="timed out"):
        generate(server.base_url, {}, 0.3)
    assert time.monotonic() - start < 2.0


@pytest.mark.parametrize("body", [b"no json", b"[1]", b""])
def test_an_account_that_is_no_object_is_an_error(body):
    with (
        FaultServer(scripted(answer("200 OK", body))) as server,
        pytest.raises(ServerError, match="server_info"),
    ):
        server_info(server.base_url)


@pytest.mark.parametrize(
    ("info", "is_speculative"),
    [({"speculative_algorithm": None}, False), ({"speculative_algorithm": "DFLASH"}, True), ({}, None)],
)
def test_the_method_is_what_the_server_says(info, is_speculative):
    with FaultServer(scripted(answer("200 OK", info))) as server:
        assert is_speculative_server(server.base_url) is is_speculative


def test_the_method_of_a_server_without_account_is_not_known():
    with FaultServer(scripted(answer("404 Not Found", b""))) as server:
        assert is_speculative_server(server.base_url) is None


STALE, FRESH = {"avg_spec_accept_length": 9.99}, {"avg_spec_accept_length": 2.0}


def test_the_accept_length_is_that_of_all_ranks():
    assert mean_accept_length({"internal_states": [STALE, FRESH]}) == pytest.approx(5.995)
    weighted = [{**STALE, "num_generated_tokens": 1}, {**FRESH, "num_generated_tokens": 999}]
    assert mean_accept_length({"internal_states": weighted}) == pytest.approx(2.008, abs=1e-3)
    silent = {"num_generated_tokens": 999}  # says no length
    assert mean_accept_length({"internal_states": [FRESH, silent]}) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "info", [{}, {"internal_states": []}, {"internal_states": [{}]}, {"internal_states": 1}]
)
def test_an_absent_accept_length_is_undefined(info):
    assert mean_accept_length(info) is None
