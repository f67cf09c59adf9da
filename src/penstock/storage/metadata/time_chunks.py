"""Queries over the time chunks of a datasource in the metadata store.

`read_chunks` and its helpers summarize segments by interval and version. They read only aggregates
of most segments that overlap an interval. In chunks where segments rewrite others, they read each
partition number, and the payloads of the rewriting segments, which list the replaced numbers.
`shown_if_used` returns which unused segments would be visible if they were marked used. It leaves
out those that would make rows visible twice or the datasource unreadable.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Connection, Select, Table, bindparam, case, func, select

from penstock.core.interval_index import IntervalIndex
from penstock.core.intervals import Interval
from penstock.core.timeline.chunks import OVERWRITE_START, UpdateGroups
from penstock.storage.metadata import schema
from penstock.storage.metadata.chunk_summaries import (
    NONE,
    ChunkSummary,
    by_chunk,
    chunks_of,
    enclosing_interval,
    not_hidden,
    roots_of,
)
from penstock.storage.metadata.payloads import load
from penstock.storage.metadata.row_mapper import SEGMENTS
from penstock.storage.metadata.sql_database import in_batches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penstock.core.timeline.chunks import RootRange
    from penstock.storage.metadata.rows.segments import SegmentRow


# Hours, days, months and years are not longer: longer intervals are all of time or custom ones.
_USUAL_MS = 366 * 86_400_000

# Created once: building a statement takes longer than SQLite takes to answer it.
_ROWS = schema.segments.c
_LENGTH = _ROWS.end_ms - _ROWS.start_ms
_LONGEST = (
    select(_LENGTH).where(_ROWS.datasource == bindparam("of")).order_by(_LENGTH.desc()).limit(1)
)
_LONGEST_USUAL = _LONGEST.where(_LENGTH <= _USUAL_MS)
_SUMS = select(
    _ROWS.start_ms,
    _ROWS.end_ms,
    _ROWS.version,
    func.max(_ROWS.core_partitions).label("core"),
    func.sum(case((_ROWS.partition_number < _ROWS.core_partitions, 1), else_=0)).label(
        "core_there"
    ),
    func.max(
        case((_ROWS.partition_number < OVERWRITE_START, _ROWS.partition_number), else_=NONE)
    ).label("root"),
    func.max(
        case((_ROWS.partition_number >= OVERWRITE_START, _ROWS.partition_number), else_=NONE)
    ).label("overwrite"),
).group_by(_ROWS.start_ms, _ROWS.end_ms, _ROWS.version)
_USED = (
    _ROWS.used,
    _LENGTH <= _USUAL_MS,
    _ROWS.datasource == bindparam("of"),
    _ROWS.start_ms > bindparam("after_ms"),
    _ROWS.start_ms < bindparam("to_ms"),
    _ROWS.end_ms > bindparam("from_ms"),
)
_USED_SUMS = _SUMS.where(*_USED)


def of_chunk(table: Table) -> list[ColumnElement[bool]]:
    """Return the condition for the rows of one chunk, which `chunk_named` identifies."""
    return [
        table.c.datasource == bindparam("of"),
        table.c.start_ms == bindparam("from_ms"),
        table.c.end_ms == bindparam("to_ms"),
        table.c.version == bindparam("named"),
    ]


def chunk_named(datasource: str, interval: Interval, version: str) -> dict[str, str | int]:
    """Return the parameters of `of_chunk`."""
    return {
        "of": datasource,
        "from_ms": interval.start_ms,
        "to_ms": interval.end_ms,
        "named": version,
    }


_OF_CHUNK = select(schema.segments).where(*of_chunk(schema.segments))
_REWRITING = select(_ROWS.partition_number, _ROWS.payload).where(
    *of_chunk(schema.segments), _ROWS.partition_number >= OVERWRITE_START
)


def overlapping(
    connection: Connection, datasource: str, interval: Interval
) -> list[ColumnElement[bool]]:
    """Return the condition for segments that overlap an interval, in a form that uses an index.

    An overlapping segment begins at most the length of the longest segment earlier. The database
    reads that length from an index, so it does not scan a long history.
    """
    table = schema.segments
    return [
        table.c.datasource == datasource,
        table.c.start_ms > interval.start_ms - _longest(connection, datasource),
        table.c.start_ms < interval.end_ms,
        table.c.end_ms > interval.start_ms,
    ]


def used_chunks(connection: Connection, datasource: str, interval: Interval) -> list[ChunkSummary]:
    """Return the chunks that overlap an interval, visible or not.

    A segment of all time does not cause a scan of the history either.
    """
    table = schema.segments
    longest = _longest(connection, datasource)
    usual = longest
    if longest > _USUAL_MS:
        usual = connection.execute(_LONGEST_USUAL, {"of": datasource}).scalar() or 0
    place: dict[str, str | int] = {
        "of": datasource,
        "after_ms": interval.start_ms - usual,
        "from_ms": interval.start_ms,
        "to_ms": interval.end_ms,
    }
    chunks = _chunks(connection, _USED_SUMS, _USED, place)
    if longest == usual:
        return chunks
    # Few segments are that long, and they have few distinct starts. All segments of a chunk have
    # one start, so no chunk is split between batches. The condition also has their ids, because a
    # database might choose an index that has only starts.
    begins = select(table.c.start_ms, table.c.id).where(
        table.c.datasource == datasource,
        _LENGTH > _USUAL_MS,
        table.c.start_ms < interval.end_ms,
        table.c.end_ms > interval.start_ms,
    )
    found = {row.start_ms for row in connection.execute(begins)}
    for starts in in_batches(sorted(found)):
        long = [
            table.c.used,
            table.c.datasource == datasource,
            table.c.start_ms.in_(starts),
            table.c.end_ms > interval.start_ms,
            _LENGTH > _USUAL_MS,
        ]
        chunks += read_chunks(connection, long)
    return chunks


def _longest(connection: Connection, datasource: str) -> int:
    """Return the length of a datasource's longest segment."""
    return connection.execute(_LONGEST, {"of": datasource}).scalar() or 0


def read_chunks(
    connection: Connection, conditions: Sequence[ColumnElement[bool]]
) -> list[ChunkSummary]:
    """Return the segments that match the conditions, summed up by interval and version."""
    return _chunks(connection, _SUMS.where(*conditions), conditions, {})


def _chunks(
    connection: Connection,
    query: Select[int, int, str, int, int, int, int],
    conditions: Sequence[ColumnElement[bool]],
    parameters: Mapping[str, str | int],
) -> list[ChunkSummary]:
    sums = [
        (Interval(row.start_ms, row.end_ms), row.version, row)
        for row in connection.execute(query, parameters).all()
    ]
    rewritten = {(interval, version) for interval, version, row in sums if row.overwrite != NONE}
    # Mostly there are none, and the statement need not be built.
    payloads = _payloads(connection, conditions, parameters, rewritten) if rewritten else {}
    return [
        _rewritten_chunk(interval, version, row.core, payloads[interval, version])
        if row.overwrite != NONE
        else ChunkSummary(interval, version, row.core, row.core_there, highest_root=row.root)
        for interval, version, row in sums
    ]


def _payloads(
    connection: Connection,
    conditions: Sequence[ColumnElement[bool]],
    parameters: Mapping[str, str | int],
    chunks: Collection[tuple[Interval, str]],
) -> dict[tuple[Interval, str], dict[int, str]]:
    """Return the numbers of chunks, each with its payload if it is of one that rewrites others."""
    number = _ROWS.partition_number
    query = select(
        _ROWS.start_ms,
        _ROWS.end_ms,
        _ROWS.version,
        number,
        case((number >= OVERWRITE_START, _ROWS.payload), else_="{}").label("payload"),
    ).where(*conditions)
    found: dict[tuple[Interval, str], dict[int, str]] = {key: {} for key in chunks}
    # By their start, which has an index; few other segments begin at the same time.
    for starts in in_batches(sorted({interval.start_ms for interval, _ in chunks})):
        for row in connection.execute(query.where(_ROWS.start_ms.in_(starts)), parameters):
            members = found.get((Interval(row.start_ms, row.end_ms), row.version))
            if members is not None:
                members[row.partition_number] = row.payload
    return found


def _rewritten_chunk(
    interval: Interval, version: str, core_partitions: int, payloads: Mapping[int, str]
) -> ChunkSummary:
    """Return a chunk in which segments rewrite others."""
    return ChunkSummary.of(
        interval,
        version,
        payloads.keys(),
        core_partitions,
        {
            number: roots_of(number, load(payload))
            for number, payload in payloads.items()
            if number >= OVERWRITE_START
        },
    )


def rows_of_chunk(
    connection: Connection, datasource: str, interval: Interval, version: str
) -> list[SegmentRow]:
    """Return every segment of a chunk, used or not."""
    found = connection.execute(_OF_CHUNK, chunk_named(datasource, interval, version))
    return [SEGMENTS.record(row) for row in found]


def highest_minor(connection: Connection, datasource: str, interval: Interval, version: str) -> int:
    """Return the highest minor version of a chunk's segments, used or not; 0 if none rewrites."""
    found = connection.execute(_REWRITING, chunk_named(datasource, interval, version))
    return max(
        (roots_of(row.partition_number, load(row.payload)).minor_version for row in found),
        default=0,
    )


def shown_if_used(connection: Connection, rows: Sequence[SegmentRow]) -> list[str]:
    """Return the ids of unused rows that would be visible, at least in part, if all were used.

    Rows whose time chunks overlap others of their version are left out: see `_clashing`.
    """
    shown: list[str] = []
    of_datasource: dict[str, list[SegmentRow]] = {}
    for row in rows:
        of_datasource.setdefault(row.datasource, []).append(row)
    for datasource, asked in of_datasource.items():
        around = enclosing_interval(asked)
        chunks = chunks_of(asked)
        there = used_chunks(connection, datasource, around)
        for key in _clashing(chunks, ((one.interval, one.version) for one in there)):
            del chunks[key]
        mine = [row for row in asked if (row.interval, row.version) in chunks]
        rewritten = {key for key, chunk in chunks.items() if chunk.highest_overwrite != NONE}
        for used in there:
            key = used.interval, used.version
            if key in chunks and used.highest_overwrite != NONE:
                rewritten.add(key)
            chunks[key] = used.joined(chunks[key]) if key in chunks else used
        hidden: set[str] = set()
        groups = by_chunk(mine)
        for key in rewritten:
            rows_there = [r for r in rows_of_chunk(connection, datasource, *key) if r.used]
            wanted = groups[key]
            hidden |= _rewritten(rows_there, wanted)
            left = [row for row in wanted if row.id not in hidden]
            chunks |= chunks_of([*rows_there, *left])
        seen = {(chunk.interval, chunk.version) for chunk in not_hidden(chunks.values(), around)}
        shown += [
            row.id for row in mine if (row.interval, row.version) in seen and row.id not in hidden
        ]
    return shown


def _clashing(
    wanted: Iterable[tuple[Interval, str]], there: Iterable[tuple[Interval, str]]
) -> list[tuple[Interval, str]]:
    """Return the time chunks that overlap another one of their version: neither hides the other.

    If both were visible, the datasource could not be read. If both are unused, the longer one is
    allowed. Appends have one version for all times, so a day and an hour within it may overlap.
    Pending segments are ignored: their publish is refused instead (`publish.conflicts`).
    """
    at: defaultdict[str, IntervalIndex[Interval]] = defaultdict(IntervalIndex)
    for interval, version in there:
        at[version].add(interval, interval)
    found = []
    for interval, version in sorted(wanted, key=lambda one: (-one[0].length_ms, one)):
        if any(other != interval for other in at[version].overlapping(interval)):
            found.append((interval, version))
        else:
            at[version].add(interval, interval)
    return found


def _rewritten(used: Iterable[SegmentRow], wanted: Iterable[SegmentRow]) -> set[str]:
    """Return the ids of unused segments of one chunk that would make rows visible twice.

    These are segments that a newer group has partly rewritten, and a group that rewrote a part of
    the used ones.
    """
    kept = Counter(roots_of(row.partition_number, row.payload) for row in used)
    asked: defaultdict[RootRange, list[str]] = defaultdict(list)
    for row in wanted:
        asked[roots_of(row.partition_number, row.payload)].append(row.id)
    added = {roots: len(ids) for roots, ids in asked.items()}
    return {name for roots in UpdateGroups.clashing(kept, added) for name in asked[roots]}
