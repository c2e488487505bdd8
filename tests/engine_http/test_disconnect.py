import http.client
import json
import socket

import pytest
from watching import wait_until


def _send(server, body):
    """A raw request, so that the test decides when the connection ends."""
    data = json.dumps(body).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    connection = socket.create_connection(server.address, timeout=10)
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_goes_away_frees_its_slot(start_server, is_stream):
    server = start_server("the lazy dog " * 60, step_s=0.03)
    connection = _send(server, {"text": "x", "stream": is_stream})
    wait_until(lambda: server.engine.num_in_flight == 1)
    connection.close()
    wait_until(lambda: server.engine.num_in_flight == 0, timeout_s=2.0)


def test_a_waiting_client_that_goes_away_leaves_the_queue(start_server):
    server = start_server("the lazy dog " * 60, step_s=0.03, max_running=1)
    with _send(server, {"text": "x", "stream": True}):
        wait_until(lambda: server.engine.num_in_flight == 1)
        waiting = _send(server, {"text": "y", "stream": True})
        wait_until(lambda: server.engine.num_in_flight == 2)
        waiting.close()
        wait_until(lambda: server.engine.num_in_flight == 1, timeout_s=2.0)


def test_a_client_that_only_stops_sending_gets_its_answer(start_server):
    server = start_server("the lazy dog")
    connections = [_send(server, {"text": "x"}) for _ in range(2)]
    for connection in connections:
        with connection:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_one_connection_serves_many_requests(start_server):
    connection = http.client.HTTPConnection(*start_server("the lazy dog").address, timeout=10)
    connection.connect()
    first = connection.sock
    for _ in range(3):
        connection.request("POST", "/generate", body=b'{"text": "x"}')
        with connection.getresponse() as answer:
            assert answer.status == 200
            answer.read()
        assert connection.sock is first
    connection.close()
