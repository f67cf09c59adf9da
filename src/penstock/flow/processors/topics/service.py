"""Where the broker and the overlord of this service are, for processors that name none.

Owns the addresses. Whoever starts the service says them, before a processor is scheduled;
processors are made from a flow's file and have no other way to be told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceAddresses:
    """Addresses of one Penstock.

    Attributes:
        broker_http: Returns the URL of the broker, or raises `Unavailable` while none is found.
        broker_tcp: Returns ``HOST:PORT`` where the broker speaks NSQ's protocol, in the same way.
        overlord: URL of the overlord, or of the router.
        token: What they ask for; empty: nothing.
    """

    broker_http: Callable[[], str] = lambda: "http://127.0.0.1:4151"
    broker_tcp: Callable[[], str] = lambda: "127.0.0.1:4150"
    overlord: str = "http://127.0.0.1:8888"
    token: str = ""

    def broker(self, url: str, token: str) -> tuple[str, str]:
        """Return URL and token of a broker, given what a processor says.

        The token of this service goes to its own broker only.
        """
        return (url, token) if url else (self.broker_http(), token or self.token)

    def overlord_of(self, url: str, token: str) -> tuple[str, str]:
        """Return URL and token of an overlord, in the same way."""
        return (url, token) if url else (self.overlord, token or self.token)


class Service:
    """The addresses of the service; set once, read from any thread."""

    def __init__(self) -> None:
        self._addresses = ServiceAddresses()

    def set(self, addresses: ServiceAddresses) -> None:
        """Say where everything is."""
        self._addresses = addresses

    def addresses(self) -> ServiceAddresses:
        """Return where everything is: at the default ports, if nobody said."""
        return self._addresses


SERVICE = Service()
