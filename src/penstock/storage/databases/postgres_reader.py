"""Reader of rows from an external PostgreSQL database.

`PostgresReader` reads statements in one transaction, as blocks of CSV. Each statement runs as a
COPY, so the server streams rows as text and neither side holds the whole result; the server
converts lists to JSON and bytes to base64, which CSV cannot represent. `connected` opens
connections: it owns their parameters and takes nothing from the environment variables or files
of this process that the caller did not specify (password, certificate, Kerberos ticket, other
server, settings). Does not own the use of the text.

Invariants: the transaction is read-only, sees one snapshot of the database and is never
committed. The server parses a statement alone, as the user wrote it, before it becomes part of
a COPY, so several statements or a statement that is not a query are refused. Every wait, including
the connection, ends when the caller cancels it, and the server is then asked to stop. One thread
uses a reader, one statement at a time.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus
from psycopg.sql import SQL, Identifier

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import InvalidRequest, PenstockError, Unavailable
from penstock.core.guarded_connections import NETWORK_GUARD
from penstock.core.network_guard import NetworkDestination

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

    from penstock.storage.databases.database_address import DatabaseAddress


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
        InvalidRequest: Tasks must not connect to the host, or its name is invalid.
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
        return NETWORK_GUARD.addresses(NetworkDestination("postgresql", address.host, address.port))
    except OSError as error:
        raise psycopg.OperationalError(
            f"failed to resolve host {address.host!r}: {error}"
        ) from error


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


Kind = Literal[
    "boolean",
    "whole",
    "double",
    "number",  # of any length and scale
    "date",
    "time",
    "instant",
    "text",
    "json",
    "booleans",
    "wholes",
    "doubles",
    "texts",
]

BLOCK_BYTES: Final = 8 << 20
_GONE_AFTER: Final = "2s"
_CANCEL_TIMEOUT_S: Final = 3.0
# So that values have one text form for every user. Each is set for the transaction alone: a
# connection pool would keep session settings.
_SETTINGS: Final[Mapping[str, str]] = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "1",
}
_TRY_AGAIN: Final = ("08", "25P03", "40", "53", "57P", "58")
_TIMEOUTS: Final[Mapping[str, str]] = {
    "25P04": "transaction_timeout",
    "55P03": "lock_timeout",
    "57014": "statement_timeout",
}
# Messages before a session starts, for which libpq has no code.
_REFUSED: Final = (
    "authentication",
    "does not exist",
    "no pg_hba.conf entry",
    "not permitted",
    "certificate",
    "does not support SSL",
    "SSL error",
    "permission denied",
)
# Also a TLS error, but of a server that shuts down.
_CUT_OFF: Final = "unexpected eof"
_BYTES: Final = 17
_RECORD: Final = 2249
# By the number of PostgreSQL's own types, which is the same in every database.
_KINDS: Final[Mapping[int, Kind]] = {
    16: "boolean",
    20: "whole",
    21: "whole",
    23: "whole",
    26: "whole",
    700: "double",
    701: "double",
    1700: "number",
    1082: "date",
    1114: "time",
    1184: "instant",
    114: "json",
    3802: "json",
    _BYTES: "text",
    _RECORD: "json",
    # text, varchar, char, "char", name, uuid: the most common types that are text anyway
    **dict.fromkeys((25, 1043, 1042, 18, 19, 2950), "text"),
    # lists
    1000: "booleans",
    **dict.fromkeys((1005, 1007, 1016, 1028), "wholes"),
    **dict.fromkeys((1021, 1022, 1231), "doubles"),
    **dict.fromkeys((1009, 1015, 1014, 1003, 2951, 1182, 1115, 1185), "texts"),
}
_AS_JSON: Final = frozenset({"booleans", "wholes", "doubles", "texts"})
_KIND_OF_TYPES: Final = (
    "SELECT t.oid::text, t.typtype::text, t.typcategory::text, coalesce(e.typtype::text, '')"
    " FROM pg_catalog.pg_type t LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem"
    " WHERE t.oid = ANY ($1::pg_catalog.oid[])"
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a statement's rows.

    Attributes:
        name: The name in the statement.
        kind: The kind of values. Lists arrive as JSON, bytes as base64 without line breaks, times
            without a zone unchanged and instants in UTC, both in ISO 8601 with a space instead of
            the T.
        is_exact: Whether a number is whole and fits into 64 bits.
        source: The SQL expression for it, given the name of the column.
    """

    name: str
    kind: Kind
    is_exact: bool = False
    source: str = "{}"


class PostgresReader:
    """One transaction of one connection. One thread; statements one after the other.

    Args:
        connection: An open connection without a transaction.
        address: The name of the database in messages.
        check: Called regularly, even while the server is silent; raises to end the read.
    """

    def __init__(
        self,
        connection: psycopg.Connection[tuple[object, ...]],
        address: DatabaseAddress,
        check: Callable[[], None],
    ) -> None:
        self._pg = connection.pgconn
        self._shown = address.shown
        self._check = check
        poll = select.poll()
        poll.register(self._pg.socket, select.POLLIN)
        self._readable = poll

    def begin(self, search_path: str | None) -> None:
        """Begin the transaction. Raises as `columns`."""
        place = f"the database {self._shown}"
        self._query(b"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY", place)
        wanted = dict(_SETTINGS)
        if search_path is not None:
            wanted["search_path"] = search_path
        for name, value in wanted.items():
            self._set(name, value, place)
        # So that the server ends a statement if this process dies. Old servers do not support it.
        self._query(b"SAVEPOINT settings", place)
        with contextlib.suppress(InvalidRequest):
            self._set("client_connection_check_interval", _GONE_AFTER, place)
            return
        self._query(b"ROLLBACK TO SAVEPOINT settings", place)

    def columns(self, sql: str, place: str) -> list[Column]:
        """Return the columns of a statement's rows.

        Args:
            sql: The statement.
            place: Its name in messages.

        Raises:
            InvalidRequest: It is invalid, not permitted, or returns no rows.
            Unavailable: The server does not answer, or asks for a retry.
        """
        text = _without_end(sql)
        self._pg.send_prepare(b"", text.encode())
        self._checked(self._result(), place, text)
        self._pg.send_describe_prepared(b"")
        found = self._checked(self._result(), place, text)
        if not found.nfields:
            raise InvalidRequest(
                f"{place}: it returns no rows, and statements of an input only read: write a SELECT"
            )
        types = [found.ftype(at) for at in range(found.nfields)]
        others = self._other_kinds({one for one in types if one not in _KINDS}, place)
        return [
            _column(found.fname(at) or b"", type_, found.fmod(at), others)
            for at, type_ in enumerate(types)
        ]

    def blocks(
        self, sql: str, columns: Sequence[Column], place: str, *, row_bytes_max: int
    ) -> Iterator[bytearray]:
        """Yield a statement's rows as CSV, in blocks of whole rows.

        Null is an empty field, an empty text is a pair of quotes. A caller that does not read all
        blocks must close the connection.

        Args:
            sql: The statement.
            columns: Its columns, from `columns`.
            place: Its name in messages.
            row_bytes_max: A longer row is refused; a block has at most this size plus 8 MiB.

        Raises:
            InvalidRequest: It fails, or is not permitted in a read-only transaction.
            Unavailable: As `columns`.
        """
        self._pg.send_query(_copying(sql, columns))
        begun = self._result()
        if begun is None or begun.status != ExecStatus.COPY_OUT:
            self._checked(begun, place)
            raise InvalidRequest(f"{place}: it returns no rows: write a SELECT")
        held = bytearray()
        # The driver returns single rows; their bytes are collected without parsing them.
        while (size := (got := self._pg.get_copy_data(1))[0]) >= 0:
            if not size:
                self._wait()
                self._pg.consume_input()
                continue
            if size > row_bytes_max:
                raise InvalidRequest(
                    f"{place}: a row has more than {row_bytes_max} bytes: select less of it"
                )
            held += got[1]
            if len(held) >= BLOCK_BYTES:
                yield held
                held = bytearray()
                self._check()
        self._checked(self._result(), place)
        if held:
            yield held

    def _other_kinds(self, types: Iterable[int], place: str) -> dict[int, Column]:
        """Look up types that differ between databases: enumerations, composites, lists of those."""
        wanted = ",".join(map(str, sorted(types)))
        if not wanted:
            return {}
        found = {}
        for row in self._table(_KIND_OF_TYPES.encode(), [f"{{{wanted}}}".encode()], place):
            number, kind, category, inner = (value.decode() for value in row)
            if kind == "c":
                found[int(number)] = Column("", "json", source="pg_catalog.to_json({})")
            elif category == "A":
                is_enum = inner == "e"
                found[int(number)] = Column(
                    "", "texts" if is_enum else "json", source="pg_catalog.to_json({})"
                )
        return found

    def _table(self, command: bytes, values: list[bytes], place: str) -> list[tuple[bytes, ...]]:
        """Return the rows of an internal statement, as text."""
        self._pg.send_query_params(command, values)
        found = self._checked(self._result(), place)
        return [
            tuple(found.get_value(row, at) or b"" for at in range(found.nfields))
            for row in range(found.ntuples)
        ]

    def _set(self, name: str, value: str, place: str) -> None:
        values = [name.encode(), value.encode()]
        self._table(b"SELECT pg_catalog.set_config($1, $2, true)", values, place)

    def _query(self, command: bytes, place: str) -> None:
        self._pg.send_query(command)
        self._checked(self._result(), place)

    def _result(self) -> PGresult | None:
        """Return the last result of the statement, or the one before its rows."""
        last: PGresult | None = None
        while self._pg.flush():
            self._wait(select.POLLIN | select.POLLOUT)
            self._pg.consume_input()
        while True:
            while self._pg.is_busy():
                self._wait()
                self._pg.consume_input()
            found = self._pg.get_result()
            if found is None:
                return last
            last = found
            if found.status == ExecStatus.COPY_OUT:
                return last

    def _wait(self, events: int = select.POLLIN) -> None:
        """Wait until the server may have sent something, or for a moment."""
        self._check()
        self._readable.modify(self._pg.socket, events)
        self._readable.poll(LOOK_EVERY_MS)

    def _checked(self, result: PGresult | None, place: str, sql: str = "") -> PGresult:
        if result is None:
            raise Unavailable(f"{place}: the database did not answer: try again")
        if result.status == ExecStatus.FATAL_ERROR:
            raise _said(result, place, sql)
        return result


@contextmanager
def opened(
    address: DatabaseAddress,
    user: str,
    password: str,
    check: Callable[[], None],
    clock: Clock | None = None,
) -> Iterator[PostgresReader]:
    """Open a database as a context manager that gives a transaction for reading.

    Args:
        address: The database.
        user: The user.
        password: The user's password; not empty.
        check: Called regularly, even while the server is silent, but not while the host's name is
            resolved; raises to end the read.
        clock: Measures the time to connect.

    Raises:
        InvalidRequest: The database refuses the user, or its certificate is invalid.
        Unavailable: It cannot be reached, or the connection breaks.
    """
    if not password:
        raise InvalidRequest(f"the password for the database {address.shown} is empty: set it")
    connection = _connected(address, user, password, check, clock)
    try:
        reader = PostgresReader(connection, address, check)
        reader.begin(address.search_path)
        yield reader
    except psycopg.Error as error:
        raise Unavailable(
            f"the connection to the database {address.shown} broke ({_line(error)}): try again"
        ) from None
    finally:
        if connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
            # The server notices a closed connection only when it sends rows, perhaps hours later.
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
        connection.close()


def _connected(
    address: DatabaseAddress,
    user: str,
    password: str,
    check: Callable[[], None],
    clock: Clock | None,
) -> psycopg.Connection[tuple[object, ...]]:
    try:
        return connected(address, user, password, check, clock)
    except psycopg.Error as error:
        said = f"cannot open the database {address.shown} ({_line(error)})"
        if _CUT_OFF not in said and any(word in said for word in _REFUSED):
            remedy = "correct user, password, database or sslmode, or change the server's rules"
            raise InvalidRequest(f"{said}: {remedy}") from None
        raise Unavailable(f"{said}: check the server, or correct its host and port") from None


def _column(name: bytes, type_: int, modifier: int, others: Mapping[int, Column]) -> Column:
    shown = name.decode(errors="replace")
    if type_ in others:
        found = others[type_]
        return Column(shown, found.kind, source=found.source)
    kind = _KINDS.get(type_, "text")
    if type_ == _BYTES:
        source = "pg_catalog.replace(pg_catalog.encode({}, 'base64'), pg_catalog.chr(10), '')"
    elif kind in _AS_JSON or type_ == _RECORD:
        source = "pg_catalog.to_json({})"
    else:
        source = "{}"
    return Column(shown, kind, kind == "number" and _is_whole(modifier), source)


def _is_whole(modifier: int) -> bool:
    """Return whether a declared precision and scale allow only whole numbers of up to 64 bits."""
    if modifier < 4:
        return False
    precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
    return scale == 0 and precision <= 18


def _copying(statement: str, columns: Sequence[Column]) -> bytes:
    """Return the command that copies a statement's rows; the server has parsed it before."""
    names = [Identifier(f"c{number}") for number in range(len(columns))]
    asked = [SQL(one.source).format(name) for one, name in zip(columns, names, strict=True)]
    return (
        # On separate lines, because the statement may end with a comment.
        SQL("COPY (SELECT {} FROM (\n{}\n) AS q ({})) TO STDOUT (FORMAT csv)")
        .format(SQL(", ").join(asked), SQL(_without_end(statement)), SQL(", ").join(names))
        .as_bytes()
    )


def _without_end(sql: str) -> str:
    return sql.rstrip("; \t\r\n")


def _said(result: PGresult, place: str, sql: str) -> PenstockError:
    """Return the error of Penstock for an error of the server, with the server's text."""

    def field(name: DiagnosticField) -> str:
        return (result.error_field(name) or b"").decode(errors="replace")

    state = field(DiagnosticField.SQLSTATE)
    said = field(DiagnosticField.MESSAGE_PRIMARY) or "it fails"
    if hint := field(DiagnosticField.MESSAGE_HINT):
        said += f"; {hint.rstrip('.')}"
    at = field(DiagnosticField.STATEMENT_POSITION)
    where = f"{_place(sql, int(at))}, " if sql and at.isdecimal() else ""
    text = f"{place}: {said} ({where}{state})"
    if state.startswith(_TRY_AGAIN):
        return Unavailable(f"{text}: try again")
    if state in {"25006", "0A000"}:
        return InvalidRequest(f"{text}: statements of an input only read: write a SELECT")
    if state == "42601" and "multiple commands" in said:
        return InvalidRequest(f"{text}: make each statement an entry of sqls")
    if state in _TIMEOUTS:
        return InvalidRequest(f"{text}: set a longer {_TIMEOUTS[state]} for its user, or read less")
    if state == "42501":
        return InvalidRequest(f"{text}: grant its user access, or leave it out")
    return InvalidRequest(f"{text}: correct the statement, a SELECT, WITH, VALUES or TABLE")


def _place(sql: str, position: int) -> str:
    before = sql[: position - 1]
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400]
