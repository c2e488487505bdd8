"""From a claimed port to a stopped process: uvicorn with an orderly end."""

import asyncio
import logging
import signal
import socket

import uvicorn

from draftbench.engine.serving.app import Routes
from draftbench.engine.serving.service import Service
from draftbench.errors import ServerError

# After a signal: running requests may end by themselves for GRACE_S, then they are aborted; together with
# the engine's own end, the process is gone within 5 s.
GRACE_S = 2.0
CLOSE_S = 1.0
ENGINE_END_S = 1.5
# Longer than a client's pause between two requests, so that no request meets a connection being closed.
KEEP_ALIVE_S = 600

logger = logging.getLogger(__name__)


def claim_port(host: str, port: int) -> socket.socket:
    """Listen on an address before a model is loaded for it; connections wait until the server runs.

    Raises:
        ServerError: the address is taken or is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:  # an address in use or of another machine, a port above 65535
        why = str(getattr(error, "strerror", error)).partition(" (while")[0]
        raise ServerError(
            f"expected a free address, got {host}:{port} ({why}); end what uses it or choose another",
            reason="port",
        ) from error
    # Connections inherit it; without it a short answer waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def serve(service: Service, listener: socket.socket) -> None:
    """Answer requests until SIGTERM or SIGINT, then end the requests and the engine.

    Raises:
        ServerError: the server could not start.
    """
    config = uvicorn.Config(
        Routes(service).app(),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=round(GRACE_S + CLOSE_S),
    )
    server = _Server(config, service)
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them again at its end, for these handlers
        signal.signal(number, server.handle_exit)
    server.run(sockets=[listener])
    if not server.started:
        raise ServerError("the HTTP server did not start; its log says why")


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            logger.info("The server is fired up and ready to roll!")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.is_draining = True
        ending = asyncio.create_task(self._end_requests())
        await super().shutdown(sockets)
        ending.cancel()
        # While the loop still runs: the engine's last outputs are handed to it.
        await asyncio.to_thread(self._service.engine.shutdown, ENGINE_END_S)

    async def _end_requests(self) -> None:
        await asyncio.sleep(GRACE_S)
        logger.info("Aborted %d requests", self._service.abort_all())
