"""HTTP served by uvicorn, on a socket that the caller has bound.

Owns uvicorn's settings, which every HTTP server of Penstock shares. Does not own signals, logging
and the socket's address, nor the answers (`broker.http.app`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import uvicorn

from penstock.broker.http_server.body_drain import BodyDrain
from penstock.broker.http_server.http_connection import bounded_protocol
from penstock.broker.http_server.tls_gate import gated_protocol
from penstock.core.loop_tasks import keep_running

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp

    from penstock.broker.http_server.guard import HttpGuard
    from penstock.broker.security.tls import ServerTls

_SECOND_MS: Final = 1_000
_KEEP_ALIVE_S: Final = 75
_BACKLOG: Final = 1_024


def uvicorn_config(
    application: ASGIApp,
    guard: HttpGuard,
    stop_timeout_s: int,
    tls: ServerTls | None = None,
    *,
    accepts_plain: bool = False,
) -> uvicorn.Config:
    """Return uvicorn's settings for a server with limits on its connections.

    Args:
        application: The application.
        guard: Limits of the server.
        stop_timeout_s: Time limit for running requests after a stop.
        tls: Its certificate, if it is served under TLS.
        accepts_plain: With a certificate: serve plain HTTP on the same port, too.
    """
    if tls is None:
        protocol = bounded_protocol(guard)
    else:
        protocol = gated_protocol(guard, tls, accepts_plain=accepts_plain)
    config = uvicorn.Config(
        BodyDrain(application),
        loop="asyncio",
        http=protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=stop_timeout_s,
    )
    config.load()
    return config


class ServedHttp:
    """Uvicorn serving one application on one socket, without its own signals and logging.

    Args:
        application: The application.
        listener: A bound socket; closed by `stop`.
        stop_timeout_ms: Time limit for running requests after a stop.
        guard: Limits of the server.
        tls: Its certificate, if it is served under TLS.
        accepts_plain: With a certificate: serve plain HTTP on the same port, too.
    """

    def __init__(
        self,
        application: ASGIApp,
        listener: socket.socket,
        stop_timeout_ms: int,
        guard: HttpGuard,
        tls: ServerTls | None = None,
        *,
        accepts_plain: bool = False,
    ) -> None:
        timeout_s = -(-stop_timeout_ms // _SECOND_MS)
        config = uvicorn_config(application, guard, timeout_s, tls, accepts_plain=accepts_plain)
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._listener = listener
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start listening."""
        await self._server.startup(sockets=[self._listener])
        self._ticking = keep_running("http", self._server.main_loop, may_return=True)

    async def stop(self) -> None:
        """Stop listening, wait for running requests, and close the connections."""
        self._server.should_exit = True
        if self._ticking is not None:
            await self._ticking
        await self._server.shutdown(sockets=[self._listener])
