"""What the broker is told of nsqlookupd, and what it tells of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LookupOptions:
    """The nsqlookupd servers, and this broker's address for clients.

    Attributes:
        tcp_addresses: ``HOST:PORT`` of each nsqlookupd.
        broadcast_address: The host that clients are told; None: the bound one, or where that is
            every interface, the name of this host.
        broadcast_tcp_port: The port of NSQ's protocol that clients are told; None: the bound one.
        broadcast_http_port: The same for HTTP.
        ping_interval_ms: How often an nsqlookupd hears of the broker at least.
        timeout_ms: Longest wait for a connection and for an answer.
        retry_ms: Longest pause between two tries to connect.
    """

    tcp_addresses: tuple[str, ...] = ()
    broadcast_address: str | None = None
    broadcast_tcp_port: int | None = None
    broadcast_http_port: int | None = None
    ping_interval_ms: int = 15_000
    timeout_ms: int = 1_000
    retry_ms: int = 15_000
