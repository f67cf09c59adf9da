"""HTTP clients for URLs of users: httpx over `core.guarded_connections`.

Owns the transport. Each connection is checked and pinned when it is opened, those for redirects
included, and the name in the URL stays that of the certificate and of `Host`. Proxies of the
environment are not used, because the proxy would resolve the name, and neither are passwords of
`~/.netrc`, which belong to Penstock's user.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import httpcore
import httpx

from penstock.core.guarded_connections import NETWORK_GUARD, ServiceNetworkGuard
from penstock.core.network_guard import NetworkDestination

if TYPE_CHECKING:
    import ssl

_CONNECTIONS_MAX: Final = 100
_KEPT_MAX: Final = 20
_KEPT_S: Final = 5.0
# The most specific class first.
_ERRORS: Final = (
    (httpcore.ConnectTimeout, httpx.ConnectTimeout),
    (httpcore.ReadTimeout, httpx.ReadTimeout),
    (httpcore.WriteTimeout, httpx.WriteTimeout),
    (httpcore.PoolTimeout, httpx.PoolTimeout),
    (httpcore.TimeoutException, httpx.TimeoutException),
    (httpcore.ConnectError, httpx.ConnectError),
    (httpcore.ReadError, httpx.ReadError),
    (httpcore.WriteError, httpx.WriteError),
    (httpcore.NetworkError, httpx.NetworkError),
    (httpcore.LocalProtocolError, httpx.LocalProtocolError),
    (httpcore.RemoteProtocolError, httpx.RemoteProtocolError),
    (httpcore.ProtocolError, httpx.ProtocolError),
    (httpcore.UnsupportedProtocol, httpx.UnsupportedProtocol),
)


class _GuardedBackend(httpcore.SyncBackend):
    def __init__(self, guard: ServiceNetworkGuard) -> None:
        super().__init__()
        self._guard = guard

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        try:
            addresses = self._guard.addresses(NetworkDestination("http", host, port))
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        last: httpcore.NetworkError | httpcore.TimeoutException | None = None
        for address in addresses:
            try:
                # A numeric host: it is not resolved again.
                return super().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.NetworkError, httpcore.TimeoutException) as error:
                last = error
        raise last or httpcore.ConnectError("no address")

    def connect_unix_socket(
        self,
        path: str,  # noqa: ARG002 - of the base class, as the others
        timeout: float | None = None,  # noqa: ARG002 - as above
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,  # noqa: ARG002 - as above
    ) -> httpcore.NetworkStream:
        raise httpcore.UnsupportedProtocol("URLs of users lead to no Unix sockets")


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        with _translated():
            yield from self._answer.iter_stream()

    def close(self) -> None:
        self._answer.close()


class GuardedTransport(httpx.BaseTransport):
    """Transport of `httpx.Client` that connects only to allowed destinations.

    A request to another one raises `RefusedDestination`.

    Args:
        tls: How certificates are verified.
        guard: Resolves and checks.
    """

    def __init__(self, tls: ssl.SSLContext, guard: ServiceNetworkGuard = NETWORK_GUARD) -> None:
        self._pool = httpcore.ConnectionPool(
            ssl_context=tls,
            max_connections=_CONNECTIONS_MAX,
            max_keepalive_connections=_KEPT_MAX,
            keepalive_expiry=_KEPT_S,
            network_backend=_GuardedBackend(guard),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; raises errors of httpx, and `RefusedDestination`."""
        url = request.url
        assert isinstance(request.stream, httpx.SyncByteStream)
        with _translated():
            answer = self._pool.handle_request(
                httpcore.Request(
                    request.method,
                    httpcore.URL(
                        scheme=url.raw_scheme,
                        host=url.raw_host,
                        port=url.port,
                        target=url.raw_path,
                    ),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        return httpx.Response(
            answer.status,
            headers=answer.headers,
            stream=_Body(answer),
            extensions=answer.extensions,
        )

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # narrow: others are raised again
        for theirs, ours in _ERRORS:
            if isinstance(error, theirs):
                raise ours(str(error)) from error
        raise
