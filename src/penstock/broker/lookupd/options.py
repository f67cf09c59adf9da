"""Options of registration at nsqlookupd, and this broker's address for clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LookupOptions:
    """The nsqlookupd servers, and this broker's address for clients.

    Attributes:
        tcp_addresses: ``HOST:PORT`` of each nsqlookupd.
        broadcast_address: The host that clients connect to; None: the bound one, or, if that is
            every interface, the name of this host.
        broadcast_tcp_port: The port of NSQ's protocol for clients; None: the bound one.
        broadcast_http_port: The port of HTTP for clients; None: the bound one.
        ping_interval_ms: Maximum time between two commands to an nsqlookupd.
        timeout_ms: Longest wait for a connection and for an answer.
        retry_ms: Longest pause between two attempts to connect.
    """

    tcp_addresses: tuple[str, ...] = ()
    broadcast_address: str | None = None
    broadcast_tcp_port: int | None = None
    broadcast_http_port: int | None = None
    ping_interval_ms: int = 15_000
    timeout_ms: int = 1_000
    retry_ms: int = 15_000
