"""Rows of segments that a publish inserts: new ones, and copies of them under other ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, insert, select

from penstock.core.whole_numbers import is_int64
from penstock.storage.metadata import schema
from penstock.storage.metadata.chunk_summaries import chunks_of, enclosing_interval, not_hidden
from penstock.storage.metadata.revision import read_revision
from penstock.storage.metadata.row_mapper import SEGMENTS
from penstock.storage.metadata.rows.segments import SegmentRow, segment_id
from penstock.storage.metadata.sql_database import in_batches
from penstock.storage.metadata.time_chunks import chunk_named, of_chunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.intervals import Interval
    from penstock.storage.metadata.chunk_summaries import ChunkSummary
    from penstock.storage.metadata.payloads import JsonObject

# Keys of the number of core partitions in shard specs.
_CORE_KEYS = ("partitions", "numCorePartitions")
# Created once: an append uses it for each time chunk.
_CORE_IN_USE = (
    select(schema.segments.c.id)
    .where(
        schema.segments.c.used,
        *of_chunk(schema.segments),
        schema.segments.c.partition_number < bindparam("core"),
    )
    .limit(1)
)


def existing_ids(connection: Connection, ids: Sequence[str]) -> set[str]:
    """Return the existing ones of these ids, used or not."""
    table = schema.segments
    found: set[str] = set()
    for batch in in_batches(ids):
        found.update(connection.execute(select(table.c.id).where(table.c.id.in_(batch))).scalars())
    return found


def insert_segments(
    connection: Connection, rows: Sequence[SegmentRow], writers: Mapping[str, int], now_ms: int
) -> None:
    """Insert rows in one batch; `writers` has the publish that wrote each."""
    if not rows:
        return
    changed_revision = read_revision(connection)[0] + 1
    values = [SEGMENTS.values(row) for row in rows]
    for one, row in zip(values, rows, strict=True):
        one["bytes"], one["row_count"] = _number(row, "size"), _number(row, "totalRows")
        one["created_ms"] = one["created_ms"] or now_ms
        one["used_changed_ms"] = now_ms
        one["changed_revision"] = changed_revision
        one["publish_id"] = writers[str(one["id"])]
    connection.execute(insert(schema.segments), values)


def _number(row: SegmentRow, field: str) -> int:
    found = row.payload.get(field)
    return found if is_int64(found) else 0


def hidden_by_each_other(rows: Iterable[SegmentRow]) -> list[SegmentRow]:
    """Return the rows, marked unused if newer ones among them hide them entirely."""
    every = list(rows)
    if len({row.version for row in every}) < 2:
        return every
    shown = {
        (c.interval, c.version)
        for c in not_hidden(chunks_of(every).values(), enclosing_interval(every))
    }
    return [
        row if (row.interval, row.version) in shown else replace(row, used=False) for row in every
    ]


def without_lost_cores(connection: Connection, rows: Sequence[SegmentRow]) -> list[SegmentRow]:
    """Return the rows; those of a core set that was marked unused meanwhile then have none.

    An appended segment becomes visible once its core set is complete. If the entire core set was
    marked unused since the allocation, the appended segment would wait for it forever.
    """
    lost = {
        key
        for key, chunk in chunks_of(rows).items()
        if chunk.core_partitions > 0
        and not chunk.core_there
        and not _core_in_use(connection, rows[0].datasource, chunk)
    }
    return [
        with_core_partitions(row, 0) if (row.interval, row.version) in lost else row for row in rows
    ]


def _core_in_use(connection: Connection, datasource: str, chunk: ChunkSummary) -> bool:
    place = chunk_named(datasource, chunk.interval, chunk.version)
    found = connection.execute(_CORE_IN_USE, {**place, "core": chunk.core_partitions})
    return found.first() is not None


def copy_of(
    row: SegmentRow, interval: Interval, version: str, partition_number: int, core_partitions: int
) -> SegmentRow:
    """Return a row for the same file under another id, which its payload has, too."""
    name = segment_id(row.datasource, interval, version, partition_number)
    payload = {
        **row.payload,
        "interval": str(interval),
        "version": version,
        "shardSpec": {
            "type": "numbered",
            "partitionNum": partition_number,
            "partitions": core_partitions,
        },
        "identifier": name,
    }
    return SegmentRow(
        id=name,
        datasource=row.datasource,
        interval=interval,
        version=version,
        partition_number=partition_number,
        core_partitions=core_partitions,
        payload=payload,
        upgraded_from=row.upgraded_from or row.id,
    )


def with_core_partitions(row: SegmentRow, core_partitions: int) -> SegmentRow:
    """Return the row as one of a larger core set, with that size in its payload, too."""
    spec = shard_spec(row)
    known = [key for key in _CORE_KEYS if key in spec]
    changed: JsonObject = {
        **row.payload,
        **({"shardSpec": {**spec, known[0]: core_partitions}} if known else {}),
    }
    return replace(row, core_partitions=core_partitions, payload=changed)


def shard_spec(row: SegmentRow) -> JsonObject:
    """Return the shard spec in a row's payload, empty if there is none."""
    found = row.payload.get("shardSpec")
    return found if isinstance(found, Mapping) else {}
