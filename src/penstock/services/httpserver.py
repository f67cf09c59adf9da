"""An HTTP server as a lifecycle handler: an ASGI application on a thread of its own.

Owns the thread, the socket and the orderly stop. The loop in it serves HTTP only; what the
application calls is either quick or runs on the framework's thread pool.
"""

from __future__ import annotations

import socket
import threading

import uvicorn
from starlette.types import ASGIApp

from penstock.core.errors import Unavailable

_START_TIMEOUT_S = 10.0


class _Server(uvicorn.Server):
    """Tells when it accepts."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()


class HttpServer:
    """Serves one application on one listening socket.

    Args:
        application: What answers.
        listener: A listening socket; it is closed at the stop.
        stop_timeout_s: How long running requests may take after the stop.
    """

    def __init__(
        self, application: ASGIApp, listener: socket.socket, stop_timeout_s: int = 3
    ) -> None:
        self._listener = listener
        self._stop_timeout_s = stop_timeout_s
        self._server = _Server(
            uvicorn.Config(
                application,
                loop="asyncio",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=stop_timeout_s,
            )
        )
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        port: int = self._listener.getsockname()[1]
        return port

    def start(self) -> None:
        """Begin to answer.

        Raises:
            Unavailable: The server did not start.
        """
        self._thread.start()
        if not self._server.accepting.wait(_START_TIMEOUT_S):
            raise Unavailable("the HTTP server did not start; its log says why")

    def stop(self) -> None:
        """Stop accepting, let running requests end, and close the socket."""
        self._server.should_exit = True
        self._thread.join(self._stop_timeout_s + 2)

    def _run(self) -> None:
        self._server.run(sockets=[self._listener])
