"""Connections to a user's PostgreSQL, and the settings of this process that they must not use.

Owns the parameters of connections. No variable and no file of this process replaces a missing
parameter: a password, a certificate, a Kerberos ticket, another server or its settings. The
driver's own connect call cannot be interrupted from outside, so its steps are run one by one, and
the caller can end a wait.
"""

from __future__ import annotations

import select
import socket
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from penstock.core.clock import Clock, SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psycopg.pq.abc import PGconn

    from penstock.storage.databases.address import DatabaseAddress

LOOK_EVERY_MS: Final = 200
"""Time between two checks, during a wait for the server, whether to end it."""

_NETWORK_TIMEOUT_MS: Final = 60_000
_EVENTS: Final[Mapping[int, int]] = {
    pq.PollingStatus.READING: select.POLLIN,
    pq.PollingStatus.WRITING: select.POLLOUT,
}


def connected(
    address: DatabaseAddress,
    user: str,
    password: str,
    check: Callable[[], None],
    clock: Clock | None = None,
) -> psycopg.Connection[tuple[object, ...]]:
    """Return a connection without a transaction, to the first address of the host that accepts one.

    Args:
        address: The database.
        user: The user.
        password: The user's password; not empty.
        check: Called regularly, but not while the host's name is resolved; raises to end the wait.
        clock: Measures the time limit of each address.

    Raises:
        psycopg.OperationalError: No address accepts one; the message has the error of each.
    """
    clock = clock or SystemClock()
    said = []
    for place in _places(address):
        settings = make_conninfo("", **_parameters(address, user, password), hostaddr=place)
        until_s = clock.monotonic_s() + address.connect_timeout_s
        try:
            return _opened(settings, until_s, check, clock)
        except psycopg.OperationalError as error:
            said.append(f"{place}: {error}")
    raise psycopg.OperationalError("; ".join(said))


def _places(address: DatabaseAddress) -> list[str]:
    try:
        found = socket.getaddrinfo(
            address.host, address.port, proto=socket.IPPROTO_TCP, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as error:
        raise psycopg.OperationalError(
            f"failed to resolve host {address.host!r}: {error}"
        ) from error
    return [str(place[0]) for *_, place in found]


def _parameters(address: DatabaseAddress, user: str, password: str) -> dict[str, str | int]:
    return {
        "host": address.host,
        # Empty, or the default: no variable of the process changes how to connect or read.
        "options": "",
        "target_session_attrs": "any",
        "load_balance_hosts": "disable",
        "channel_binding": "prefer",
        "sslnegotiation": "postgres",
        "ssl_min_protocol_version": "TLSv1.2",
        "port": address.port,
        "dbname": address.name,
        "user": user,
        "password": password,
        "sslmode": address.tls,
        # The author of the statement must not use credentials of this process.
        "sslcertmode": "disable",
        "gssencmode": "disable",
        "require_auth": "scram-sha-256,md5,password,none",
        "application_name": address.application,
        "client_encoding": "UTF8",
        "tcp_user_timeout": _NETWORK_TIMEOUT_MS,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
    }


def _opened(
    settings: str, until_s: float, check: Callable[[], None], clock: Clock
) -> psycopg.Connection[tuple[object, ...]]:
    pg = pq.PGconn.connect_start(settings.encode())
    try:
        while (events := _wanted(pg)) is not None:
            # Each step may use another socket.
            ready = select.poll()
            ready.register(pg.socket, events)
            _wait(ready, until_s, check, clock)
    except BaseException:
        pg.finish()
        raise
    pg.nonblocking = 1
    return psycopg.Connection(pg)


def _wanted(pg: PGconn) -> int | None:
    """Run the next step; return the socket events that the following step waits for, if any."""
    status = pq.PollingStatus.FAILED if pg.status == pq.ConnStatus.BAD else pg.connect_poll()
    if status == pq.PollingStatus.FAILED:
        raise psycopg.OperationalError(f"connection failed: {pg.get_error_message()}")
    return _EVENTS.get(status)


def _wait(ready: select.poll, until_s: float, check: Callable[[], None], clock: Clock) -> None:
    while True:
        check()
        if clock.monotonic_s() >= until_s:
            raise psycopg.OperationalError("connection timeout expired")
        if ready.poll(LOOK_EVERY_MS):
            return
