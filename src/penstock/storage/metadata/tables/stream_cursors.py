"""Cursors of streams that read datasources: how far each stream has read.

Only the checkpoint of a streaming query has its place. With a cursor, the query reports it, so that
the lag is known here. Cursors change nothing else: segments are deleted regardless of them.

They are values of the table `config`. The number of cursors of a datasource is bounded, because
everyone who reads it may set one; a cursor belongs to the principal that has set it first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from sqlalchemy import Connection, delete, func, select

from penstock.core.errors import Conflict
from penstock.storage.metadata import schema
from penstock.storage.metadata.config_values import find_value, set_value
from penstock.storage.metadata.payloads import dump, load
from penstock.storage.metadata.revision import read_revision, take_turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.metadata.sql_database import Transactions

CURSORS_MAX: Final = 100
"""Maximum number of cursors of a datasource."""

_PREFIX: Final = "streamCursor/"


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """How far a stream has read.

    Attributes:
        datasource: The datasource.
        name: Name of the cursor.
        revision: The last revision that it has read, or whose changes it reads.
        rows_left: Rows of this revision that it has not read.
        owner: Id of the principal to which it belongs.
        moved_ms: When it was set last.
        rows_behind: Rows that it has not read: those of the revision, and those of segments that
            were published, or marked as used, later and are still used.
    """

    datasource: str
    name: str
    revision: int
    rows_left: int
    owner: str
    moved_ms: int
    rows_behind: int


class StreamCursors:
    """The cursors of all datasources."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def move(
        self, datasource: str, name: str, position: tuple[int, int], owner: str, *, may_manage: bool
    ) -> None:
        """Set a cursor.

        Args:
            datasource: The datasource.
            name: The cursor, which need not exist.
            position: `revision` and `rows_left` of the cursor.
            owner: The principal that sets it.
            may_manage: Whether it may change the cursors of others, too; they keep their owner.

        Raises:
            Conflict: It belongs to another principal, there is no such revision yet, or the
                datasource has too many cursors.
        """
        key = _key(datasource, name)

        def work(connection: Connection) -> None:
            take_turn(connection)
            if position[0] > read_revision(connection)[0]:
                raise Conflict(f"there is no revision {position[0]} yet: the checkpoint is wrong")
            stored = find_value(connection, key)
            if stored is None and _count(connection, datasource) >= CURSORS_MAX:
                raise Conflict(
                    f"{datasource} has {CURSORS_MAX} cursors: delete those of streams that ended"
                )
            known = owner if stored is None else _owned(stored, name, owner, may_manage=may_manage)
            value = {"revision": position[0], "rowsLeft": position[1], "owner": known}
            set_value(connection, key, dump(value).encode(), self._database.now_ms())

        self._database.write(work)

    def delete(self, datasource: str, name: str, owner: str, *, may_manage: bool) -> bool:
        """Delete a cursor; return whether it existed. Arguments and errors are those of `move`."""
        key, table = _key(datasource, name), schema.config

        def work(connection: Connection) -> bool:
            take_turn(connection)
            stored = find_value(connection, key)
            if stored is None:
                return False
            _owned(stored, name, owner, may_manage=may_manage)
            connection.execute(delete(table).where(table.c.name == key))
            return True

        return self._database.write(work)

    def list(self, datasource: str | None = None) -> Sequence[StreamCursor]:
        """Return the cursors of a datasource, or of all, in order of their names."""
        table = schema.config
        prefix = _PREFIX if datasource is None else _key(datasource, "")
        query = select(table).where(table.c.name.startswith(prefix, autoescape=True))

        def work(connection: Connection) -> list[StreamCursor]:
            found = []
            for row in connection.execute(query.order_by(table.c.name)).all():
                _, of, name = str(row.name).split("/")
                value, source = load(bytes(row.payload).decode()), unquote(of)
                revision, left = int(str(value["revision"])), int(str(value["rowsLeft"]))
                behind = left + _rows_after(connection, source, revision)
                owner, moved_ms = str(value["owner"]), int(row.updated_ms)
                found.append(StreamCursor(source, name, revision, left, owner, moved_ms, behind))
            return found

        return self._database.read(work)


def _key(datasource: str, name: str) -> str:
    return f"{_PREFIX}{quote(datasource, safe='')}/{name}"


def _count(connection: Connection, datasource: str) -> int:
    name = schema.config.c.name
    query = select(func.count()).where(name.startswith(_key(datasource, ""), autoescape=True))
    return int(connection.execute(query).scalar_one())


def _owned(stored: bytes, name: str, owner: str, *, may_manage: bool) -> str:
    """Return the owner of a stored cursor. Raises Conflict if another one may not change it."""
    known = str(load(stored.decode())["owner"])
    if known != owner and not may_manage:
        raise Conflict(f"the cursor {name} belongs to another principal: use another name")
    return known


def _rows_after(connection: Connection, datasource: str, revision: int) -> int:
    """Return the rows of used segments that were inserted or marked after a revision."""
    rows = schema.segments.c
    query = select(func.coalesce(func.sum(rows.row_count), 0)).where(
        rows.changed_revision > revision, rows.datasource == datasource, rows.used
    )
    return int(connection.execute(query).scalar_one())
