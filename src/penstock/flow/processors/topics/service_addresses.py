"""Addresses of this service's broker and overlord, for processors without their own address.

Owns the addresses. The start of the service sets them before a processor is scheduled. Processors
are created from a flow's file, so they cannot receive the addresses as arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceAddresses:
    """Addresses of one Penstock installation.

    Attributes:
        broker_http: Returns the URL of the broker, or raises `Unavailable` while none is found.
        broker_tcp: Returns ``HOST:PORT`` of the broker's NSQ protocol, in the same way.
        overlord: URL of the overlord, or of the router.
        token: Token that they require; empty: none.
    """

    broker_http: Callable[[], str] = lambda: "http://127.0.0.1:4151"
    broker_tcp: Callable[[], str] = lambda: "127.0.0.1:4150"
    overlord: str = "http://127.0.0.1:8888"
    token: str = ""

    def broker(self, url: str, token: str) -> tuple[str, str]:
        """Return URL and token of a broker, given the properties of a processor.

        The token of this service is sent only to its own broker.
        """
        return (url, token) if url else (self.broker_http(), token or self.token)

    def overlord_of(self, url: str, token: str) -> tuple[str, str]:
        """Return URL and token of an overlord, in the same way."""
        return (url, token) if url else (self.overlord, token or self.token)


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


SERVICE = Service()
