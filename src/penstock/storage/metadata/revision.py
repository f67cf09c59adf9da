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

_ROW = schema.revision.c
_NEXT = _ROW.revision + 1
# Built once: nearly every transaction executes one, and building it takes as long as executing it.
_TAKE = select(_ROW.id).with_for_update()
_READ = select(_ROW.revision, _ROW.segments_revision)
_RAISE = update(schema.revision).values(revision=_NEXT)
_RAISE_BOTH = update(schema.revision).values(revision=_NEXT, segments_revision=_NEXT)


def take_turn(connection: Connection) -> None:
    """Wait until no other transaction changes visible data; block others until the commit."""
    connection.execute(_TAKE).one()


def raise_revision(connection: Connection, *, segments: bool) -> None:
    """Record that this transaction changes visible data: segments, or only announced files."""
    connection.execute(_RAISE_BOTH if segments else _RAISE)


def read_revision(connection: Connection) -> tuple[int, int]:
    """Return the revision, and the one at which segments last changed."""
    found = connection.execute(_READ).one()
    return found.revision, found.segments_revision
