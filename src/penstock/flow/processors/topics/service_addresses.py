"""Addresses of this service's broker and overlord, for processors without their own address.

Owns the addresses. The start of the service sets them before a processor is scheduled. Processors
are created from a flow's file, so they cannot receive the addresses as arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.core.bearer import Bearer
from penstock.core.guarded_connections import NETWORK_GUARD
from penstock.core.network_guard import url_destination


@dataclass(frozen=True, slots=True)
class ServiceAddresses:
    """Addresses of one Penstock installation.

    Attributes:
        broker_http: Returns the URL of the broker, or raises `Unavailable` while none is found.
        broker_tcp: Returns ``HOST:PORT`` of the broker's NSQ protocol, in the same way.
        overlord: URL of the overlord, or of the router.
        tokens: Returns the token that they require of a processor that starts now.
        insecure: Whether processors may listen without TLS and a token where other hosts reach
            them.
    """

    broker_http: Callable[[], str] = lambda: "http://127.0.0.1:4151"
    broker_tcp: Callable[[], str] = lambda: "127.0.0.1:4150"
    overlord: str = "http://127.0.0.1:8888"
    tokens: Callable[[], Bearer] = field(default=str, repr=False)
    insecure: bool = False

    @property
    def token(self) -> Bearer:
        """The token for a processor that starts now, which acts for the owner of the flow."""
        return self.tokens()

    def broker(self, url: str, token: str) -> tuple[str, Bearer]:
        """Return URL and token of a broker, given the properties of a processor.

        The token of this service is sent only to its own broker.

        Raises:
            InvalidRequest: Flows must not connect to the URL's host.
        """
        return _checked(url, token) if url else (self.broker_http(), token or self.token)

    def overlord_of(self, url: str, token: str) -> tuple[str, Bearer]:
        """Return URL and token of an overlord, in the same way."""
        return _checked(url, token) if url else (self.overlord, token or self.token)


class Service:
    """Addresses of the service; set once, read from any thread."""

    def __init__(self) -> None:
        self._addresses = ServiceAddresses()

    def set(self, addresses: ServiceAddresses) -> None:
        """Set the addresses."""
        self._addresses = addresses

    def addresses(self) -> ServiceAddresses:
        """Return the addresses; the default ports if none were set."""
        return self._addresses


def _checked(url: str, token: str) -> tuple[str, str]:
    NETWORK_GUARD.check(url_destination(url))
    return url, token


SERVICE = Service()
