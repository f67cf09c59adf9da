"""The committed offsets of supervisors, and the sums of their rows.

`compare` is a pure decision. `publish` decides whether a publish may move offsets; the other
functions here set them on request of a user or a supervisor.
"""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from penstock.core.errors import Conflict
from penstock.storage.metadata import schema
from penstock.storage.metadata.announced_files import differ
from penstock.storage.metadata.revision import raise_revision, take_turn
from penstock.storage.metadata.row_mapper import COMMITTED, COUNTS
from penstock.storage.metadata.rows.publish import CommittedRow, CountsRow

if TYPE_CHECKING:
    from penstock.storage.metadata.payloads import Offsets
    from penstock.storage.metadata.rows.publish import PublishRequest


class OffsetComparison(Enum):
    """Relation of a sequence's start to the committed offsets."""

    MATCHES = "matches"
    AHEAD = "ahead"
    BEHIND = "behind"
    ELSEWHERE = "elsewhere"


def compare(committed: CommittedRow | None, start: Offsets, topic_id: str = "") -> OffsetComparison:
    """Compare the start of a sequence with the committed offsets of common stream partitions.

    Without committed offsets, or a common stream partition, any start matches. Offsets of another
    topic never match. An unknown topic id matches any.
    """
    known = committed.offsets if committed is not None else {}
    if committed is not None and differ(committed.topic_id, topic_id):
        return OffsetComparison.ELSEWHERE
    common = start.keys() & known.keys()
    if all(start[partition] == known[partition] for partition in common):
        return OffsetComparison.MATCHES
    if any(start[partition] > known[partition] for partition in common):
        return OffsetComparison.AHEAD
    return OffsetComparison.BEHIND


# Built once: all supervisors read theirs again and again.
_COMMITTED = select(schema.offsets).where(schema.offsets.c.supervisor_id == bindparam("of"))


def read_committed(connection: Connection, supervisor_id: str) -> CommittedRow | None:
    """Return the committed offsets and their topic, None before the first."""
    found = connection.execute(_COMMITTED, {"of": supervisor_id}).one_or_none()
    return None if found is None else COMMITTED.record(found)


def write_committed(
    connection: Connection, supervisor_id: str, committed: CommittedRow | None, now_ms: int
) -> None:
    """Set the committed offsets unconditionally; None removes them."""
    # Announced files behind them are no longer shown.
    raise_revision(connection, segments=False)
    _write(connection, supervisor_id, committed, now_ms)


def _write(
    connection: Connection, supervisor_id: str, committed: CommittedRow | None, now_ms: int
) -> None:
    table = schema.offsets
    mine = table.c.supervisor_id == supervisor_id
    connection.execute(delete(table).where(mine))
    if committed is not None:
        connection.execute(
            insert(table).values(
                supervisor_id=supervisor_id, updated_ms=now_ms, **COMMITTED.values(committed)
            )
        )


def move_offsets(
    connection: Connection, supervisor_id: str, offsets: Offsets, now_ms: int
) -> dict[int, int]:
    """Set the committed offsets of some stream partitions; return all committed ones."""
    take_turn(connection)
    known = read_committed(connection, supervisor_id) or CommittedRow("", {})
    wanted = {**known.offsets, **offsets}
    write_committed(connection, supervisor_id, CommittedRow(known.topic_id, wanted), now_ms)
    return dict(sorted(wanted.items()))


def begin_offsets(
    connection: Connection, supervisor_id: str, first: CommittedRow, now_ms: int
) -> CommittedRow:
    """Commit a first offset, and a topic id, where there is none; return the committed ones."""
    take_turn(connection)
    known = read_committed(connection, supervisor_id) or CommittedRow("", {})
    if differ(known.topic_id, first.topic_id):
        raise Conflict(
            f"supervisor {supervisor_id!r}: its committed offsets are of the topic with the id "
            f"{known.topic_id}, not of {first.topic_id}: read the topic again"
        )
    wanted = CommittedRow(known.topic_id or first.topic_id, {**first.offsets, **known.offsets})
    if wanted != known:
        write_committed(connection, supervisor_id, wanted, now_ms)
    return CommittedRow(wanted.topic_id, dict(sorted(wanted.offsets.items())))


def begin_topic(
    connection: Connection, supervisor_id: str, was: str, first: CommittedRow, now_ms: int
) -> bool:
    """Switch to the next topic if the offsets are still those of the old one; set all of them."""
    take_turn(connection)
    known = read_committed(connection, supervisor_id)
    if known is None or known.topic_id != was:
        return False
    write_committed(connection, supervisor_id, first, now_ms)
    return True


def read_counts(connection: Connection, supervisor_id: str) -> CountsRow:
    """Return the sums of a supervisor, zeros before its first publish."""
    table = schema.counts
    found = connection.execute(
        select(table).where(table.c.supervisor_id == supervisor_id)
    ).one_or_none()
    return CountsRow() if found is None else COUNTS.record(found)


def read_all_counts(connection: Connection) -> dict[str, CountsRow]:
    """Return the sums of all supervisors that have published, by their ids."""
    found = connection.execute(select(schema.counts))
    return {row.supervisor_id: COUNTS.record(row) for row in found}


def advance(connection: Connection, request: PublishRequest, now_ms: int) -> None:
    """Overwrite the committed offsets with the end offsets of a publish, and add its counts.

    The caller raises the revision.
    """
    supervisor_id = request.supervisor_id or ""
    known = read_committed(connection, supervisor_id) or CommittedRow("", {})
    end = {**known.offsets, **(request.end_offsets or {})}
    moved = CommittedRow(known.topic_id or request.topic_id, end)
    _write(connection, supervisor_id, moved, now_ms)
    _add_counts(connection, supervisor_id, request.counts)


def _add_counts(connection: Connection, supervisor_id: str, counts: CountsRow) -> None:
    table = schema.counts
    added = asdict(counts)
    sums = {name: table.c[name] + number for name, number in added.items()}
    mine = table.c.supervisor_id == supervisor_id
    if not connection.execute(update(table).where(mine).values(sums)).rowcount:
        connection.execute(insert(table).values(supervisor_id=supervisor_id, **added))
