"""The revision of the metadata: every change of visible data raises it.

Invariant: a transaction that changes a used segment, an announced file or committed offsets calls
`raise_revision` or `take_turn` before it reads or writes anything else. On PostgreSQL that locks
the one row until the end of the transaction (SQLite's write transactions take turns anyway), so
such transactions run one after the other, revisions are committed in order, and no transaction
waits for a second lock.
"""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from penstock.storage.metadata import schema


def take_turn(connection: Connection) -> None:
    """Wait until no other transaction changes visible data; block others until the commit."""
    connection.execute(select(schema.revision.c.id).with_for_update()).one()


def raise_revision(connection: Connection, *, segments: bool) -> None:
    """Record that this transaction changes visible data: segments, or only announced files."""
    row = schema.revision
    values = {"revision": row.c.revision + 1}
    if segments:
        values["segments_revision"] = row.c.revision + 1
    connection.execute(update(row).values(values))


def read_revision(connection: Connection) -> tuple[int, int]:
    """Return the revision, and the one at which segments last changed."""
    row = schema.revision
    found = connection.execute(select(row.c.revision, row.c.segments_revision)).one()
    return found.revision, found.segments_revision
