"""The authorization servers, as one: whoever of them answers first.

Owns the question's form and which server is asked: a random one, then those after it. Does not own
what the answer means (`permissions`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import orjson

from penstock.broker.security.options import AuthMethod
from penstock.broker.security.permissions import Permissions
from penstock.core.errors import InvalidRequest, PenstockError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.security.options import AuthOptions
    from penstock.core.clock import Clock

_logger = logging.getLogger(__name__)


class Asker(Protocol):
    """Makes HTTP requests."""

    async def get(self, url: str, query: dict[str, str]) -> bytes:
        """Return the answer to a GET."""
        ...

    async def post(self, url: str, body: bytes) -> bytes:
        """Return the answer to a POST of JSON."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """Who asks to be let in.

    Attributes:
        remote_ip: The client's address.
        tls: It is under TLS.
        common_name: That of its certificate, if it has shown one.
        secret: What it sent with ``AUTH``.
    """

    remote_ip: str
    tls: bool
    common_name: str
    secret: str

    @property
    def fields(self) -> dict[str, str]:
        """The question under NSQ's names."""
        return {
            "remote_ip": self.remote_ip,
            "tls": "true" if self.tls else "false",
            "secret": self.secret,
            "common_name": self.common_name,
        }


class Authority:
    """Asks the authorization servers.

    Args:
        options: Which they are.
        asker: Makes the requests.
        clock: For when an answer expires.
        choose: Returns a number below the given one: which server is asked first.
    """

    def __init__(
        self, options: AuthOptions, asker: Asker, clock: Clock, choose: Callable[[int], int]
    ) -> None:
        self._urls = tuple(map(auth_url, options.addresses))
        self._method = options.method
        self._asker = asker
        self._clock = clock
        self._choose = choose

    async def ask(self, question: Question) -> Permissions:
        """Return what a client may do; without grants that is nothing.

        Raises:
            Unavailable: No server gave an answer that can be used; the log says why.
        """
        first = self._choose(len(self._urls))
        for step in range(len(self._urls)):
            url = self._urls[(first + step) % len(self._urls)]
            try:
                answer = await self._ask(url, question)
                return await asyncio.to_thread(Permissions.parse, answer, self._clock.now_ms())
            except PenstockError as error:
                _logger.warning("authorization server %s: %s", url, error)
        raise Unavailable("no authorization server gave an answer that can be used")

    async def _ask(self, url: str, question: Question) -> bytes:
        if self._method is AuthMethod.GET:
            return await self._asker.get(url, question.fields)
        body = {name: [value] for name, value in question.fields.items()}
        return await self._asker.post(url, orjson.dumps(body))


def auth_url(address: str) -> str:
    """Return where a server is asked: a URL as it is, ``/auth`` of a host and port.

    Raises:
        InvalidRequest: It is neither.
    """
    if address.startswith(("http://", "https://")):
        return address
    host, colon, port = address.rpartition(":")
    if "/" in address or not (host and colon and port.isdecimal()):
        raise InvalidRequest(
            f"{address!r} is no authorization server: write HOST:PORT or a URL",
            place="auth-http-addresses",
        )
    return f"http://{address}/auth"
