"""An HTTP front served by uvicorn, on a socket of the broker's.

Owns uvicorn's settings. Does not own signals, logging nor the socket's address, which it leaves to
the broker, nor what is answered (`front`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import uvicorn

from penstock.broker.http.connection import BoundedHeadProtocol

if TYPE_CHECKING:
    import socket
    import ssl

    from penstock.broker.http.front import HttpFront

_SECOND_MS: Final = 1_000
_KEEP_ALIVE_S: Final = 75
_BACKLOG: Final = 1_024


class ServedHttp:
    """Uvicorn serving one application on one socket, without its own signals and logging.

    Args:
        application: What is served.
        listener: A bound socket; closed by `stop`.
        stop_timeout_ms: How long running requests may take after a stop.
        tls: The server's certificate, when it is served under TLS.
    """

    def __init__(
        self,
        application: HttpFront,
        listener: socket.socket,
        stop_timeout_ms: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        config = uvicorn.Config(
            application,
            http=BoundedHeadProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=-(-stop_timeout_ms // _SECOND_MS),
        )
        config.load()
        config.ssl = tls
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._listener = listener
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen."""
        await self._server.startup(sockets=[self._listener])
        self._ticking = asyncio.create_task(self._server.main_loop())

    async def stop(self) -> None:
        """Stop listening, let running requests end, close the connections."""
        self._server.should_exit = True
        if self._ticking is not None:
            await self._ticking
        await self._server.shutdown(sockets=[self._listener])
