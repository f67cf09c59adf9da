"""Table of lookups: their specs, the state of their refreshes, and their rows.

Owns the versions. A spec and the rows that were read with it are stored in one transaction, and so
is each refresh, so that a reader finds the old rows or the new ones, and never a spec without rows.
The meaning of a spec belongs to `penstock.indexing.specs.lookup_spec`, and the form of the rows to
`penstock.storage.lookup_rows`.

A refresh begins with a claim, which moves the time of the next one. Its rows are stored only if
neither another claim nor another spec came after it: of two refreshes that overlap, the one that
began last counts, wherever they run. A claim of a process that ended expires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, delete, func, insert, select, update

from penstock.core.errors import Conflict, Full
from penstock.storage.metadata import schema
from penstock.storage.metadata.payloads import JsonObject, dump, load
from penstock.storage.metadata.revision import take_turn
from penstock.storage.metadata.rows.cluster import AuditRow
from penstock.storage.metadata.tables.configuration import add_entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Row

    from penstock.storage.metadata.sql_database import Transactions

LOOKUPS_MAX: Final = 500
"""Number of lookups; lists of them are answers of one part."""
TOTAL_BYTES_MAX: Final = 1 << 30
"""Bytes of the rows of all lookups, which are in the metadata and in each backup."""
NEVER_MS: Final = -1
"""Time of the next refresh of a lookup that has none."""
AUDIT_TYPE: Final = "lookup"


@dataclass(frozen=True, slots=True)
class LookupContent:
    """Rows of a lookup.

    Attributes:
        data: A Parquet file.
        rows: Number of rows.
        bytes: Size of the rows in memory.
    """

    data: bytes = field(repr=False)
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LookupRow:
    """A lookup without its rows.

    Attributes:
        name: The name.
        spec: The spec.
        spec_version: Number of the spec, from 1.
        changed_ms: When the spec was stored.
        content_version: Number of the rows, from 1.
        loaded_ms: When the rows were last read from their source.
        rows: Number of rows.
        bytes: Size of the rows in memory.
        due_ms: When they are refreshed next; `NEVER_MS`: never.
        failures: Number of refreshes that failed since the last one that succeeded.
        failed_ms: When the last one failed; 0 without any.
        reason: Why it failed; empty without any.
        owner: Id of the principal whose rights each refresh needs; empty: the installation, which
            may do everything.
    """

    name: str
    spec: JsonObject
    spec_version: int
    changed_ms: int
    content_version: int
    loaded_ms: int
    rows: int
    bytes: int
    due_ms: int
    failures: int
    failed_ms: int
    reason: str
    owner: str


class StoredLookups:
    """The lookups. Any thread; several processes."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def list(self) -> Sequence[LookupRow]:
        """Return all lookups by name."""
        table = schema.lookups
        query = select(table).where(table.c.spec != "").order_by(table.c.name)
        return self._database.read(lambda c: [_record(row) for row in c.execute(query)])

    def find(self, name: str) -> LookupRow | None:
        """Return a lookup, whose name may differ in case; None: there is none."""
        return self._database.read(lambda c: _find(c, name))

    def content(self, name: str) -> tuple[int, bytes] | None:
        """Return the number and the rows of a lookup by its exact name; None: there is none."""
        table = schema.lookup_contents
        query = select(table.c.content_version, table.c.content).where(table.c.name == name)
        found = self._database.read(lambda c: c.execute(query).one_or_none())
        return None if found is None else (found.content_version, bytes(found.content))

    def put(
        self,
        name: str,
        spec: JsonObject,
        content: LookupContent,
        due_ms: int,
        *,
        owner: str = "",
        entry: AuditRow | None = None,
    ) -> LookupRow:
        """Store a spec with its rows; it replaces that of the same name.

        Args:
            name: The name.
            spec: The spec.
            content: The rows that were read with it.
            due_ms: As in `LookupRow`.
            owner: As in `LookupRow`.
            entry: Added to the audit log, with the time of the change.

        Raises:
            Conflict: Another lookup has a name that differs only in case.
            Full: There are as many lookups, or bytes of rows, as there may be.
        """

        def work(connection: Connection) -> LookupRow:
            take_turn(connection)
            now_ms = self._database.now_ms()
            found = _find(connection, name)
            if found is not None and found.name != name:
                raise Conflict(
                    f"the lookup {found.name!r} exists, and SQL does not distinguish case: use its"
                    " name, or delete it first"
                )
            _check_room(connection, name, content)
            last = _numbers(connection, name)
            new = (name, spec, last[0] + 1, now_ms, last[1] + 1, now_ms)
            row = LookupRow(*new, content.rows, content.bytes, due_ms, 0, 0, "", owner)
            connection.execute(delete(schema.lookups).where(schema.lookups.c.name == name))
            connection.execute(insert(schema.lookups).values(_values(row)))
            _store(connection, row, content.data)
            if entry is not None:
                add_entry(connection, replace(entry, created_ms=now_ms))
            return row

        return self._database.write(work)

    def delete(self, name: str, *, entry: AuditRow | None = None) -> bool:
        """Delete a lookup by its exact name; return whether there was one."""
        table, contents = schema.lookups, schema.lookup_contents

        def work(connection: Connection) -> bool:
            take_turn(connection)
            now_ms = self._database.now_ms()
            values = {"spec": "", "due_ms": NEVER_MS, "reason": "", "row_count": 0, "bytes": 0}
            values["owner"] = ""
            where = (table.c.name == name) & (table.c.spec != "")
            changed = connection.execute(
                update(table).where(where).values(changed_ms=now_ms, **values)
            )
            if not changed.rowcount:
                return False
            connection.execute(delete(contents).where(contents.c.name == name))
            if entry is not None:
                add_entry(connection, replace(entry, created_ms=now_ms))
            return True

        return self._database.write(work)

    def claim(self, until_ms: int, *, name: str | None = None) -> LookupRow | None:
        """Begin a refresh of a lookup that is due, or of the named one at once.

        Args:
            until_ms: When it is due again, should this refresh never end.
            name: Its exact name; None: any that is due.

        Returns:
            The lookup with its new `due_ms`, by which `refreshed` and `failed` know the claim;
            None: there is none.
        """
        table = schema.lookups
        due = (table.c.due_ms != NEVER_MS) & (table.c.due_ms <= self._database.now_ms())
        wanted = due if name is None else table.c.name == name
        query = select(table).where(wanted, table.c.spec != "").order_by(table.c.due_ms).limit(1)
        # Read first: most calls find nothing, and a write waits for other writers.
        if self._database.read(lambda c: c.execute(query).first()) is None:
            return None

        def work(connection: Connection) -> LookupRow | None:
            take_turn(connection)
            found = connection.execute(query).one_or_none()
            if found is None:
                return None
            # Another claim within the same millisecond must differ.
            row = replace(_record(found), due_ms=max(until_ms, found.due_ms + 1))
            connection.execute(
                update(table).where(table.c.name == row.name).values(due_ms=row.due_ms)
            )
            return row

        return self._database.write(work)

    def refreshed(self, claim: LookupRow, content: LookupContent, due_ms: int) -> bool:
        """Store the rows of a refresh, if its claim still counts; return whether it does.

        Equal rows keep their number.

        Raises:
            Full: All lookups together would have more bytes than they may.
        """

        def work(connection: Connection) -> bool:
            take_turn(connection)
            if not _counts(connection, claim):
                return False
            _check_room(connection, claim.name, content)
            is_same = _content(connection, claim.name) == content.data
            row = replace(
                claim,
                content_version=claim.content_version + (not is_same),
                loaded_ms=self._database.now_ms(),
                rows=content.rows,
                bytes=content.bytes,
                due_ms=due_ms,
                failures=0,
                failed_ms=0,
                reason="",
            )
            table = schema.lookups
            connection.execute(update(table).where(table.c.name == claim.name).values(_values(row)))
            if not is_same:
                _store(connection, row, content.data)
            return True

        return self._database.write(work)

    def failed(self, claim: LookupRow, reason: str, due_ms: int) -> bool:
        """Store why a refresh failed, if its claim still counts; return whether it does."""
        table = schema.lookups

        def work(connection: Connection) -> bool:
            take_turn(connection)
            if not _counts(connection, claim):
                return False
            values = {
                "failures": claim.failures + 1,
                "failed_ms": self._database.now_ms(),
                "reason": reason,
                "due_ms": due_ms,
            }
            connection.execute(update(table).where(table.c.name == claim.name).values(values))
            return True

        return self._database.write(work)


def _find(connection: Connection, name: str) -> LookupRow | None:
    table = schema.lookups
    query = select(table).where(table.c.spec != "")
    exact = connection.execute(query.where(table.c.name == name)).one_or_none()
    if exact is not None:
        return _record(exact)
    # In Python, because databases fold ASCII only, or by their locale.
    folded = name.lower()
    names = connection.execute(select(table.c.name).where(table.c.spec != "")).scalars()
    other = next((one for one in names if one.lower() == folded), None)
    if other is None:
        return None
    return _record(connection.execute(query.where(table.c.name == other)).one())


def _numbers(connection: Connection, name: str) -> tuple[int, int]:
    """Return the last numbers of a name, also of a deleted lookup: of its spec and its rows."""
    table = schema.lookups
    query = select(table.c.spec_version, table.c.content_version).where(table.c.name == name)
    found = connection.execute(query).one_or_none()
    return (0, 0) if found is None else (found.spec_version, found.content_version)


def _counts(connection: Connection, claim: LookupRow) -> bool:
    table = schema.lookups
    query = select(table.c.spec_version, table.c.due_ms).where(
        table.c.name == claim.name, table.c.spec != ""
    )
    found = connection.execute(query).one_or_none()
    return found is not None and tuple(found) == (claim.spec_version, claim.due_ms)


def _check_room(connection: Connection, name: str, content: LookupContent) -> None:
    table = schema.lookups
    query = select(func.count(), func.coalesce(func.sum(table.c.bytes), 0)).where(
        table.c.spec != "", table.c.name != name
    )
    count, size = connection.execute(query).one()
    if count >= LOOKUPS_MAX:
        raise Full(f"there are {LOOKUPS_MAX} lookups, as many as there may be: delete one first")
    if size + content.bytes > TOTAL_BYTES_MAX:
        raise Full(
            f"the rows of all lookups would have more than {TOTAL_BYTES_MAX >> 20} MiB: delete"
            " lookups, or load large tables as datasources"
        )


def _content(connection: Connection, name: str) -> bytes | None:
    table = schema.lookup_contents
    found = connection.execute(select(table.c.content).where(table.c.name == name)).scalar()
    return None if found is None else bytes(found)


def _store(connection: Connection, row: LookupRow, data: bytes) -> None:
    table = schema.lookup_contents
    connection.execute(delete(table).where(table.c.name == row.name))
    values = {"name": row.name, "content_version": row.content_version, "content": data}
    connection.execute(insert(table).values(values))


def _values(row: LookupRow) -> Mapping[str, object]:
    return {
        "name": row.name,
        "spec": dump(row.spec),
        "spec_version": row.spec_version,
        "changed_ms": row.changed_ms,
        "content_version": row.content_version,
        "loaded_ms": row.loaded_ms,
        "row_count": row.rows,
        "bytes": row.bytes,
        "due_ms": row.due_ms,
        "failures": row.failures,
        "failed_ms": row.failed_ms,
        "reason": row.reason,
        "owner": row.owner,
    }


def _record(row: Row[tuple[object, ...]]) -> LookupRow:
    return LookupRow(
        *(row.name, load(row.spec), row.spec_version, row.changed_ms, row.content_version),
        *(row.loaded_ms, row.row_count, row.bytes, row.due_ms),
        *(row.failures, row.failed_ms, row.reason, row.owner),
    )
