"""Additional rows of an append: copies for earlier replaces, and records for running ones.

A replace that was committed while the appending task ran has left a copy of each of its pending
segments: the segment appears under that id, too. For a replace that is not committed yet, the
segment is recorded, and the replace copies it at its commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from penstock.storage.metadata import schema
from penstock.storage.metadata.batches import batches
from penstock.storage.metadata.pending_segments import pending_row
from penstock.storage.metadata.publish.segment_rows import copy_of
from penstock.storage.metadata.publish.upgrades import add_upgrades

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.storage.metadata.rows import PublishRequest, SegmentRow


def copies_for_twins(connection: Connection, rows: Sequence[SegmentRow]) -> list[SegmentRow]:
    """Return a copy of each row for every copy of its pending segment."""
    by_id = {row.id: row for row in rows}
    table = schema.pending
    twins = [
        pending_row(found)
        for batch in batches(list(by_id))
        for found in connection.execute(select(table).where(table.c.upgraded_from.in_(batch)))
    ]
    return [
        copy_of(
            by_id[twin.upgraded_from],
            twin.interval,
            twin.version,
            twin.partition_number,
            twin.core_partitions,
        )
        for twin in twins
    ]


def keep_for_replace(
    connection: Connection, request: PublishRequest, taken: Collection[str]
) -> None:
    """Record the new segments for the replacing tasks whose locks cover them."""
    add_upgrades(
        connection,
        [
            (lock.task_id, name, lock.version)
            for name, lock in request.covering.items()
            if name not in taken
        ],
    )
