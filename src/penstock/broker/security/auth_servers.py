"""Client of the authorization servers: request format, options and server choice.

`AuthServers` queries a random server first and then the following ones until one responds.
`AuthQuestion` identifies the client that connects. `AuthOptions` and `AuthMethod` have the server
addresses and the HTTP method. Does not own the meaning of the response (`permissions`) or the HTTP
client (`AuthQuery`).
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import orjson

from penstock.broker.security.permissions import Permissions
from penstock.core.errors import InvalidRequest, PenstockError, Unavailable
from penstock.core.loop_tasks import run_on_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock


class AuthMethod(enum.StrEnum):
    """HTTP method of requests to an authorization server."""

    GET = "get"
    POST = "post"


@dataclass(frozen=True, slots=True)
class AuthOptions:
    """The authorization servers.

    Attributes:
        addresses: ``HOST:PORT`` or URLs; none: clients need only the token.
        method: GET with a query string, or POST with JSON in the body.
        connect_timeout_ms: Longest wait for a connection.
        request_timeout_ms: Longest wait for a whole answer.
        max_answer_bytes: Maximum size of an answer.
    """

    addresses: tuple[str, ...] = ()
    method: AuthMethod = AuthMethod.GET
    connect_timeout_ms: int = 2_000
    request_timeout_ms: int = 5_000
    max_answer_bytes: int = 1_048_576


_logger = logging.getLogger(__name__)


class AuthQuery(Protocol):
    """Makes HTTP requests."""

    async def get(self, url: str, query: dict[str, str]) -> bytes:
        """Return the answer to a GET."""
        ...

    async def post(self, url: str, body: bytes) -> bytes:
        """Return the answer to a POST of JSON."""
        ...


@dataclass(frozen=True, slots=True)
class AuthQuestion:
    """Identity of a client that requests authorization.

    Attributes:
        remote_ip: The client's address.
        tls: It uses TLS.
        common_name: Common name of its certificate, if it presented one.
        secret: Secret that it sent with ``AUTH``.
    """

    remote_ip: str
    tls: bool
    common_name: str
    secret: str

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the request under NSQ's names."""
        return {
            "remote_ip": self.remote_ip,
            "tls": "true" if self.tls else "false",
            "secret": self.secret,
            "common_name": self.common_name,
        }


class AuthServers:
    """Queries the authorization servers.

    Args:
        options: Their addresses and the HTTP method.
        asker: Sends the requests.
        clock: For the expiry of answers.
        choose: Returns a number below the given one: the server to query first.
    """

    def __init__(
        self, options: AuthOptions, asker: AuthQuery, clock: Clock, choose: Callable[[int], int]
    ) -> None:
        self._urls = tuple(map(auth_url, options.addresses))
        self._method = options.method
        self._asker = asker
        self._clock = clock
        self._choose = choose

    async def ask(self, question: AuthQuestion) -> Permissions:
        """Return the permissions of a client; without grants, none.

        Raises:
            Unavailable: No server gave a usable answer; the log has the reasons.
        """
        first = self._choose(len(self._urls))
        for step in range(len(self._urls)):
            url = self._urls[(first + step) % len(self._urls)]
            try:
                answer = await self._ask(url, question)
                parse = partial(Permissions.parse, answer, self._clock.now_ms())
                return await run_on_thread(parse)
            except PenstockError as error:
                _logger.warning("authorization server %s: %s", url, error)
        raise Unavailable("no authorization server gave a usable answer: see the broker's log")

    async def _ask(self, url: str, question: AuthQuestion) -> bytes:
        if self._method is AuthMethod.GET:
            return await self._asker.get(url, question.fields)
        body = {name: [value] for name, value in question.fields.items()}
        return await self._asker.post(url, orjson.dumps(body))


def auth_url(address: str) -> str:
    """Return the URL of a server: a URL unchanged, or ``/auth`` of a host and port.

    Raises:
        InvalidRequest: The address is neither.
    """
    if address.startswith(("http://", "https://")):
        return address
    host, colon, port = address.rpartition(":")
    if "/" in address or not (host and colon and port.isdecimal()):
        raise InvalidRequest(
            f"invalid address {address!r} of an authorization server: write HOST:PORT or a URL",
            place="auth-http-addresses",
        )
    return f"http://{address}/auth"
