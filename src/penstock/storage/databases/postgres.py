"""Rows of a PostgreSQL of others: statements that read, in one transaction, as blocks of CSV.

Owns what goes over a connection. Each statement is read by COPY, so the server writes
rows as text while we take them, and neither side holds the result; what CSV cannot tell apart
(lists, bytes) the server turns into JSON and base64. Does not own what becomes of the text.

Invariants: the transaction is read-only, sees one state of the database, and is never committed.
A statement is parsed by the server as the user wrote it, alone, before it becomes part of a COPY:
what is two statements, or no query, ends there. A wait ends when the caller wants that, and then
the server is told to stop.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import psycopg
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus
from psycopg.sql import SQL, Identifier

from penstock.core.errors import InvalidRequest, PenstockError, Unavailable
from penstock.storage.databases.connecting import LOOK_EVERY_MS, connected

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from penstock.core.clock import Clock
    from penstock.storage.databases.address import DatabaseAddress

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
# So that a text means the same whoever the user is. Each is set for the transaction alone: a pool
# of connections in between would keep others.
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
# Said before a session begins, where libpq tells no code.
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
# An error of TLS, too, but of a server that ends.
_CUT_OFF: Final = "unexpected eof"
_BYTES: Final = 17
_RECORD: Final = 2249
# By the number that PostgreSQL gives to its own types, in every database.
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
    # text, varchar, char, "char", name, uuid: the commonest of those that are text anyway
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
        name: As the statement calls it.
        kind: What its values are. Lists come as JSON, bytes as base64 without line breaks, a time
            without a zone as such and an instant in UTC, both as ISO 8601 has them but for a space
            in the middle.
        is_exact: Whether a number is whole and fits into 64 bits.
        source: How it is asked for, given the name of the column.
    """

    name: str
    kind: Kind
    is_exact: bool = False
    source: str = "{}"


class PostgresReader:
    """One transaction of one connection. One thread; statements one after the other.

    Args:
        connection: Opened, with nothing begun.
        address: How messages call the database.
        check: Called now and then, also while the server is silent; raises when this should end.
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
        # So that the server ends a statement when this process was killed. Not every one knows it.
        self._query(b"SAVEPOINT settings", place)
        with contextlib.suppress(InvalidRequest):
            self._set("client_connection_check_interval", _GONE_AFTER, place)
            return
        self._query(b"ROLLBACK TO SAVEPOINT settings", place)

    def columns(self, sql: str, place: str) -> list[Column]:
        """Return the columns of a statement's rows.

        Args:
            sql: The statement.
            place: How messages call it.

        Raises:
            InvalidRequest: It is wrong, may not be asked, or gives no rows.
            Unavailable: The server does not answer, or wants to be asked again.
        """
        text = _without_end(sql)
        self._pg.send_prepare(b"", text.encode())
        self._checked(self._result(), place, text)
        self._pg.send_describe_prepared(b"")
        found = self._checked(self._result(), place, text)
        if not found.nfields:
            raise InvalidRequest(
                f"{place}: it gives no rows, and statements of an input only read: write a SELECT"
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
        """Yield a statement's rows as CSV, some at a time, each block of whole rows.

        Null is nothing at all, an empty text is a pair of quotes. A caller that does not take all
        of them closes the connection.

        Args:
            sql: The statement.
            columns: What `columns` said of it.
            place: How messages call it.
            row_bytes_max: A longer row is refused; a block is not larger than this and 8 MiB.

        Raises:
            InvalidRequest: It fails, or may not be done by a transaction that reads.
            Unavailable: As `columns`.
        """
        self._pg.send_query(_copying(sql, columns))
        begun = self._result()
        if begun is None or begun.status != ExecStatus.COPY_OUT:
            self._checked(begun, place)
            raise InvalidRequest(f"{place}: it gives no rows: write a SELECT")
        held = bytearray()
        # The driver hands out row by row, whose bytes are gathered and not looked at.
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
        """Look up types that not every database has: enumerations, composites, lists of those."""
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
        """Return the rows of a statement of ours, as text."""
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
        """Return the last result of what was sent, or that from which rows begin."""
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
        """Return when the server may have said something, or a moment later."""
        self._check()
        self._readable.modify(self._pg.socket, events)
        self._readable.poll(LOOK_EVERY_MS)

    def _checked(self, result: PGresult | None, place: str, sql: str = "") -> PGresult:
        if result is None:
            raise Unavailable(f"{place}: the database said nothing: try again")
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
    """Give a transaction that reads a database to a block.

    Args:
        address: The database.
        user: Who reads.
        password: Theirs; not empty.
        check: Called now and then, also while the server is silent, but not while the host's name
            is looked up; raises when this should end.
        clock: Measures how long it takes to connect.

    Raises:
        InvalidRequest: The database refuses the user, or its certificate is not what it should be.
        Unavailable: It cannot be reached, or breaks off.
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
            f"the database {address.shown} broke off ({_line(error)}): try again"
        ) from None
    finally:
        if connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
            # The server would look for us only when it has rows; that may be hours away.
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
        said = f"the database {address.shown} cannot be opened ({_line(error)})"
        if _CUT_OFF not in said and any(word in said for word in _REFUSED):
            mend = "mend user, password, database or sslmode, or let the server take them"
            raise InvalidRequest(f"{said}: {mend}") from None
        raise Unavailable(f"{said}: see to the server, or correct its host and port") from None


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
    """Tell whether a declared precision and scale leave whole numbers of up to 64 bits."""
    if modifier < 4:
        return False
    precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
    return scale == 0 and precision <= 18


def _copying(statement: str, columns: Sequence[Column]) -> bytes:
    """Return the command that writes a statement's rows, which the server has parsed by itself."""
    names = [Identifier(f"c{number}") for number in range(len(columns))]
    asked = [SQL(one.source).format(name) for one, name in zip(columns, names, strict=True)]
    return (
        # On lines of its own, as it may end with a comment.
        SQL("COPY (SELECT {} FROM (\n{}\n) AS q ({})) TO STDOUT (FORMAT csv)")
        .format(SQL(", ").join(asked), SQL(_without_end(statement)), SQL(", ").join(names))
        .as_bytes()
    )


def _without_end(sql: str) -> str:
    return sql.rstrip("; \t\r\n")


def _said(result: PGresult, place: str, sql: str) -> PenstockError:
    """Return what an error of the server means, in its own words."""

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
        return InvalidRequest(f"{text}: make each an entry of sqls")
    if state in _TIMEOUTS:
        return InvalidRequest(f"{text}: give its user a longer {_TIMEOUTS[state]}, or ask for less")
    if state == "42501":
        return InvalidRequest(f"{text}: let its user read that, or leave it out")
    return InvalidRequest(f"{text}: mend the statement, a SELECT, WITH, VALUES or TABLE")


def _place(sql: str, position: int) -> str:
    before = sql[: position - 1]
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400]
