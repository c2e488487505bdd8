import contextlib
import json
import socket
import threading

import pytest
import requests
import uvicorn
from scripted_engine import ScriptedEngine
from tiny_folder import write_tokenizer
from watching import parse_event, wait_until

from draftbench.engine.serving.app import Routes
from draftbench.engine.serving.service import Service
from draftbench.engine.serving.tokenizer import Tokenizer


class Host:
    """One real HTTP server in a thread for all tests; each test puts its own application behind it."""

    def __init__(self):
        self.app = None
        options = {"interface": "asgi3", "ws": "none", "lifespan": "off", "log_config": None}
        self._server = uvicorn.Server(uvicorn.Config(self, timeout_graceful_shutdown=1, **options))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)

    def __enter__(self):
        self._thread.start()
        wait_until(lambda: self._server.started)
        return self

    def __exit__(self, *exception):
        self._server.should_exit = True
        self._thread.join(10)
        self._listener.close()


class Server:
    """The routes before a scripted engine."""

    def __init__(self, host, tokenizer, script, **engine_options):
        self.engine = ScriptedEngine(script, **engine_options)
        self.engine.start()
        info = {"served_model_name": "tiny", "model_path": "/models/tiny"}
        self.service = Service(self.engine, tokenizer, info)
        host.app = Routes(self.service).app()
        self.address = host.address
        self.url = f"http://127.0.0.1:{host.address[1]}"

    def post(self, path, body, **options):
        return requests.post(
            self.url + path, data=body if body is None else json.dumps(body), timeout=20, **options
        )

    def get(self, path):
        return requests.get(self.url + path, timeout=20)

    def events(self, path, body):
        """Data of all events of a streamed answer, `[DONE]` included."""
        with self.post(path, body | {"stream": True}, stream=True) as response:
            assert response.status_code == 200
            return [parse_event(line) for line in response.iter_lines() if line]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer(folder)


@pytest.fixture(scope="session")
def host():
    with Host() as host:
        yield host


@pytest.fixture
def start_server(host, tokenizer):
    """Starts a server whose engine says the given texts, one after the other; ends its engine."""
    with contextlib.ExitStack() as stack:

        def start(*texts, group_tokens=1, extra_ids=(), **engine_options):
            ids = [(*tokenizer.encode(text), *extra_ids) for text in texts]
            scripts = iter(ids * 50)

            def script(request):
                rest = next(scripts)
                return [rest[i : i + group_tokens] for i in range(0, len(rest), group_tokens)]

            server = Server(host, tokenizer, script, **engine_options)
            stack.callback(server.engine.shutdown, 5)
            return server

        yield start
