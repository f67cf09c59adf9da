"""An HTTP server as a lifecycle handler: an ASGI application on a thread of its own.

Owns the thread, the socket and the orderly stop. Its event loop serves only HTTP; calls of the
application are either fast or run on the framework's thread pool.
"""

from __future__ import annotations

import asyncio
import socket
import threading

# The framework runs plain functions on anyio's threads. At the first one, anyio would import its
# backend on the event loop.
import anyio._backends._asyncio  # noqa: F401
import orjson
import uvicorn
from starlette.types import ASGIApp

from penstock.broker.http_server.guard import HttpGuard
from penstock.broker.http_server.host_policy import HostPolicy, HttpRefusal
from penstock.broker.http_server.server import uvicorn_config
from penstock.broker.security.tls import Requirement, ServerTls
from penstock.core.clock import Clock
from penstock.core.errors import Unavailable
from penstock.core.http_errors import plain_body
from penstock.core.loop_stalls import watched_loop
from penstock.core.loop_tasks import watch_loop
from penstock.core.threads import OwnedThread
from penstock.services.options.table import PenstockOptions

_START_TIMEOUT_S = 10.0
_REQUIRES_TLS = frozenset({Requirement.REMOTE, Requirement.ALL})


class _Server(uvicorn.Server):
    """Reports when it accepts connections."""

    def __init__(self, config: uvicorn.Config, guard: HttpGuard) -> None:
        super().__init__(config)
        self._guard = guard
        self.accepting = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        watch_loop(asyncio.get_running_loop(), self._guard.log_failure)
        await super().startup(sockets)
        self.accepting.set()


def api_error(refusal: HttpRefusal) -> bytes:
    """Return the body of an error in the API's format."""
    code = "forbidden" if refusal.status == 403 else "invalidInput"
    if refusal.status == 503:
        code = "unavailable"
    return orjson.dumps(plain_body(refusal.detail, code))


def api_guard(options: PenstockOptions, clock: Clock) -> HttpGuard:
    """Return the guard of an API port for these options."""
    policy = HostPolicy.of_addresses([options.http.host], options.allowed_hosts)
    return HttpGuard(policy, clock, api_error)


class HttpServer:
    """Serves one application on one listening socket.

    Args:
        application: The application.
        listener: A listening socket; closed at the stop.
        guard: Limits of the server; None: only loopback names are accepted.
        tls: Its certificate: the port serves TLS, and plain HTTP only over loopback.
        stop_timeout_s: Time limit of running requests after the stop.
    """

    def __init__(
        self,
        application: ASGIApp,
        listener: socket.socket,
        guard: HttpGuard | None = None,
        stop_timeout_s: int = 3,
        tls: ServerTls | None = None,
    ) -> None:
        self._listener = listener
        self._stop_timeout_s = stop_timeout_s
        guard = guard or HttpGuard(error_body=api_error)
        guard.requires_tls = tls is not None and tls.options.requirement in _REQUIRES_TLS
        config = uvicorn_config(application, guard, stop_timeout_s, tls, accepts_plain=True)
        self._server = _Server(config, guard)
        self._thread = OwnedThread("http", self._run)

    @property
    def port(self) -> int:
        """Return the port on which it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def start(self) -> None:
        """Start to serve.

        Raises:
            Unavailable: The server did not start.
        """
        self._thread.start()
        if not self._server.accepting.wait(_START_TIMEOUT_S):
            raise Unavailable("the HTTP server did not start; its log has the reason")

    def stop(self) -> None:
        """Stop accepting, let running requests end, and close the socket."""
        self._thread.expect_end()
        self._server.should_exit = True
        self._thread.join(self._stop_timeout_s + 2)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: watched_loop("http")) as runner:
            runner.run(self._server.serve(sockets=[self._listener]))
