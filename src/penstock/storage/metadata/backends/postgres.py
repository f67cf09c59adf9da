"""PostgreSQL backend of the metadata store: connection limits and error translation.

Every wait for the server is bounded: by the server (statement, row lock, idle transaction), by
the kernel (an unreachable host), and by `BoundedConnection` (a host that acknowledges packets
while its server hangs), which closes itself when a response takes too long. Owns which errors
are conflicts that a retry may resolve and which mean that the server did not respond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy import URL, Connection, Engine, create_engine, event, text

from penstock.core.errors import InvalidRequest, MetadataUnavailable, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.metadata.backends.bounded_connection import BoundedConnection


T = TypeVar("T")

# No transaction takes nearly as long; mailboxes wait for some of them.
STATEMENT_TIMEOUT_MS = 20_000
# The server's limit applies first, because its error has more details.
ANSWER_TIMEOUT_MS = 25_000
CONNECT_TIMEOUT_S = 5
NETWORK_TIMEOUT_MS = 20_000
_CONNECTIONS = 5
# Serialization failure, deadlock, lock not available: the same transaction may succeed now.
_CLASH = {"40001", "40P01", "55P03"}
_SILENT = {"ServerSilent", "ConnectionTimeout"}


def make_engine(url: URL, busy_timeout_ms: int) -> Engine:
    """Return an engine whose connections have a limit for every wait."""
    # It imports psycopg, which costs every process 6 MB and 50 ms, even on SQLite.
    from penstock.storage.metadata.backends.bounded_connection import (  # noqa: PLC0415
        BoundedConnection,
    )

    # A client that hangs while it holds the row lock must not block the others permanently; nor may
    # a statement that never ends, or a server that disappeared.
    limits = (
        f"-c lock_timeout={busy_timeout_ms} -c statement_timeout={STATEMENT_TIMEOUT_MS}"
        " -c idle_in_transaction_session_timeout=60000"
    )
    engine = create_engine(
        url,
        pool_size=_CONNECTIONS,
        max_overflow=20,
        pool_use_lifo=True,
        pool_pre_ping=True,
        connect_args={
            "options": limits,
            "tcp_user_timeout": NETWORK_TIMEOUT_MS,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 4,
        },
    )

    def connect(_dialect: object, _record: object, _args: object, more: dict[str, Any]) -> object:
        made = BoundedConnection.connect(**more | {"connect_timeout": CONNECT_TIMEOUT_S})
        made.answer_timeout_s = ANSWER_TIMEOUT_MS / 1000
        return made

    event.listen(engine, "do_connect", connect)
    return engine


def without_time_limit(work: Callable[[Connection], T]) -> Callable[[Connection], T]:
    """Return the work without time limits for its statements; unchanged on another database."""

    def unlimited(connection: Connection) -> T:
        if connection.dialect.name != "postgresql":
            return work(connection)
        bounded = cast("BoundedConnection", connection.connection.driver_connection)
        bounded.answer_timeout_s = None
        try:
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            return work(connection)
        finally:
            bounded.answer_timeout_s = ANSWER_TIMEOUT_MS / 1000

    return unlimited


def is_clash(error: BaseException) -> bool:
    """Return whether the same transaction may succeed now."""
    return _sqlstate(error) in _CLASH


def is_silence(error: BaseException) -> bool:
    """Return whether the server did not answer in time: other calls would also wait too long."""
    return type(error).__name__ in _SILENT


def translated(error: BaseException, name: str, said: str) -> PenstockError | None:
    """Return the error of Penstock for an error of the driver; None for other errors."""
    if not hasattr(error, "sqlstate"):
        return None
    state = _sqlstate(error)
    if state.startswith("28") or "authentication" in said or "does not exist" in said:
        return InvalidRequest(f"{name}: {said}: correct user, password or database in the URL")
    if state == "53100":
        return MetadataUnavailable(
            f"{name}: the database server's disk is full: free space and try again"
        )
    if state == "25006":
        return InvalidRequest(f"{name} is read-only ({said}): use the server that accepts writes")
    if type(error).__name__ == "DataError" or state.startswith("22"):
        # For example, a NUL within a text: the server works, and would refuse it again.
        return InvalidRequest(f"the database cannot store or search for such a value: {said}")
    return MetadataUnavailable(f"{name}: {said}: check the database server and try again")


def _sqlstate(error: BaseException) -> str:
    """Return PostgreSQL's five-character code, if the error has one."""
    return str(getattr(error, "sqlstate", None) or "")
