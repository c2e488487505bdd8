"""A service's port before its start and after its stop, where the owner cannot be seen."""

import socket
import threading

import pytest
from tests.servers.factories import make_handle, make_spec

from draftbench.errors import ServerError
from draftbench.servers import proc
from draftbench.servers.guards import PortGuard, refuse_taken_port


@pytest.fixture
def listener(monkeypatch):
    """Listens at a port, as a process of another user would."""
    monkeypatch.setattr(proc, "owners", lambda _port: set())
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_taken_port_is_refused_whoever_has_it(listener):
    with pytest.raises(ServerError, match="a process of another user listens there") as error:
        refuse_taken_port(listener.getsockname()[1])
    assert error.value.reason == "port"


def test_a_stop_waits_until_the_port_is_free(listener):
    port = listener.getsockname()[1]
    closing = threading.Timer(0.3, listener.close)
    closing.start()
    PortGuard().after_stop(make_handle(make_spec(), port=port), 30)
    assert proc.listeners(port) == set()
    closing.join()


def test_a_port_that_stays_taken_is_an_error(listener):
    with pytest.raises(ServerError, match="expected it to be free"):
        PortGuard().after_stop(make_handle(make_spec(), port=listener.getsockname()[1]), 0.1)
