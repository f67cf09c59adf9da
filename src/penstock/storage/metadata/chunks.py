"""Chunks: the used segments of one interval and version, as allocation and visibility see them.

Owns which chunks are visible, for the few decisions that a transaction makes itself; the timeline
of `penstock.segments` says the same in general, and a test compares the two. Of segments it reads
only what overlaps an interval, summed up by the database; but of chunks in which segments rewrite
others it reads each number, and of those that rewrite the payload, which says what they stand for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Connection, Select, Table, bindparam, case, func, select

from penstock.core.intervals import Interval
from penstock.core.timeindex import TimeIndex
from penstock.storage.metadata import schema
from penstock.storage.metadata.batches import batches
from penstock.storage.metadata.payloads import load
from penstock.storage.metadata.rows import OVERWRITE_START, RootRange
from penstock.storage.metadata.snapshots import segment_row

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from penstock.storage.metadata.rows import JsonObject, PartitionSpace, SegmentRow

NONE = -1
# No longer are hours, days, months and years: what is, is of all time or made by hand.
_USUAL_MS = 366 * 86_400_000

# Made once: to put a statement together takes longer than SQLite takes to answer it.
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


def roots_of(number: int, payload: JsonObject) -> RootRange:
    """Return what a segment stands for: its own number, unless it rewrites others."""
    spec = payload.get("shardSpec")
    if number < OVERWRITE_START or not isinstance(spec, Mapping):
        return RootRange(number, number + 1)
    names = ("startRootPartitionId", "endRootPartitionId", "minorVersion", "atomicUpdateGroupSize")
    given = [spec.get(name) for name in names]
    values = [value for value in given if isinstance(value, int)]
    return RootRange(*values) if len(values) == len(names) else RootRange(number, number + 1)


def of_chunk(table: Table) -> list[ColumnElement[bool]]:
    """Return the condition for what a table has of one chunk, which `chunk_named` names."""
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


@dataclass(frozen=True, slots=True)
class Chunk:
    """The used segments of one interval and version, summed up.

    Attributes:
        interval: Their interval.
        version: Their version.
        core_partitions: How many belong together from number 0 on; below 0: nobody knows.
        core_there: How many of those are there, or were rewritten by a group that is full.
        highest_root: The highest number of an ordinary segment, -1 without one.
        highest_overwrite: The highest number of one that rewrites others, -1 without one.
        torn: Whether a group that rewrites others lacks members, and nothing full stands for what
            it wrote.
    """

    interval: Interval
    version: str
    core_partitions: int
    core_there: int
    highest_root: int = NONE
    highest_overwrite: int = NONE
    torn: bool = False

    @classmethod
    def of(
        cls,
        interval: Interval,
        version: str,
        numbers: Collection[int],
        core_partitions: int,
        rewrites: Mapping[int, RootRange] | None = None,
    ) -> Chunk:
        """Return the chunk of segments with these numbers.

        Args:
            interval: Their interval.
            version: Their version.
            numbers: Their numbers.
            core_partitions: How many belong together.
            rewrites: What those stand for that rewrite others.
        """
        known = rewrites or {}
        root = [number for number in numbers if number < OVERWRITE_START]
        roots = [known.get(number, RootRange(number, number + 1)) for number in numbers]
        there, torn = _standing(roots, core_partitions) if known else (None, False)
        return cls(
            interval,
            version,
            core_partitions,
            core_there=sum(n < core_partitions for n in numbers) if there is None else there,
            highest_root=max(root, default=NONE),
            highest_overwrite=max(set(numbers) - set(root), default=NONE),
            torn=torn,
        )

    @property
    def complete(self) -> bool:
        """Whether all core partitions are there; only then does the chunk hide others."""
        return self.core_there >= self.core_partitions and not self.torn

    def joined(self, other: Chunk) -> Chunk:
        """Return the chunk with the other segments of its interval and version; none rewrites."""
        return Chunk(
            self.interval,
            self.version,
            max(self.core_partitions, other.core_partitions),
            self.core_there + other.core_there,
            max(self.highest_root, other.highest_root),
            max(self.highest_overwrite, other.highest_overwrite),
        )

    def highest(self, space: PartitionSpace) -> int:
        """Return the highest number in a space, -1 without one."""
        return self.highest_root if space == "root" else self.highest_overwrite


def _standing(members: Iterable[RootRange], core_partitions: int) -> tuple[int, bool]:
    """Return how many core numbers full groups stand for, and whether a group is torn."""
    counts = Counter(members)
    full = [group for group, count in counts.items() if count == group.group_size]
    newer = [group for group in full if group.minor_version]
    seen = [group for group in full if not any(other.overshadows(group) for other in newer)]
    there: set[int] = set()
    for group in seen:
        there.update(range(group.start, min(group.end, core_partitions)))
    waiting = [
        group
        for group, count in counts.items()
        if count != group.group_size and not any(other.overshadows(group) for other in newer)
    ]
    # As in the timeline: beside what is full, or newer, one that lacks members is not shown.
    torn = any(
        not any(group.overlaps(other) for other in seen)
        and not any(
            other.minor_version > group.minor_version for other in waiting if other.overlaps(group)
        )
        for group in waiting
    )
    return len(there), torn


class Skyline:
    """The times that something covers already, within one interval."""

    def __init__(self, interval: Interval) -> None:
        self._within = interval
        # Disjoint, in order, and none touches the next: so a covered time lies in one of them.
        self._starts: list[int] = []
        self._ends: list[int] = []

    def is_open(self, interval: Interval) -> bool:
        """Whether a part of an interval is not covered."""
        part = interval.intersection(self._within)
        if part is None or part.is_empty:
            return False
        at = bisect_right(self._starts, part.start_ms) - 1
        return at < 0 or self._ends[at] < part.end_ms

    def cover(self, interval: Interval) -> None:
        """Cover an interval, what of it lies within."""
        part = interval.intersection(self._within)
        if part is None or part.is_empty:
            return
        first = bisect_left(self._ends, part.start_ms)
        last = bisect_right(self._starts, part.end_ms)
        start_ms, end_ms = part.start_ms, part.end_ms
        if first < last:
            start_ms = min(start_ms, self._starts[first])
            end_ms = max(end_ms, self._ends[last - 1])
        self._starts[first:last] = [start_ms]
        self._ends[first:last] = [end_ms]


def not_hidden(chunks: Iterable[Chunk], interval: Interval) -> list[Chunk]:
    """Return the chunks, complete or not, of which something within `interval` is not hidden."""
    skyline = Skyline(interval)
    found = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.version, reverse=True):
        if skyline.is_open(chunk.interval):
            found.append(chunk)
            if chunk.complete:
                skyline.cover(chunk.interval)
    return found


def visible_chunks(chunks: Iterable[Chunk], interval: Interval) -> list[Chunk]:
    """Return the complete chunks of which something within `interval` is not hidden."""
    return [chunk for chunk in not_hidden(chunks, interval) if chunk.complete]


def by_chunk(rows: Iterable[SegmentRow]) -> dict[tuple[Interval, str], list[SegmentRow]]:
    """Return rows of one datasource by interval and version."""
    groups: dict[tuple[Interval, str], list[SegmentRow]] = {}
    for row in rows:
        groups.setdefault((row.interval, row.version), []).append(row)
    return groups


def chunks_of(rows: Iterable[SegmentRow]) -> dict[tuple[Interval, str], Chunk]:
    """Return rows of one datasource summed up by interval and version."""
    return {
        (interval, version): Chunk.of(
            interval,
            version,
            [row.partition_number for row in members],
            max(row.core_partitions for row in members),
            {
                row.partition_number: roots_of(row.partition_number, row.payload)
                for row in members
                if row.partition_number >= OVERWRITE_START
            },
        )
        for (interval, version), members in by_chunk(rows).items()
    }


def hull(rows: Iterable[SegmentRow]) -> Interval:
    """Return the shortest interval around all rows, of which there is one at least."""
    intervals = [row.interval for row in rows]
    return Interval(min(i.start_ms for i in intervals), max(i.end_ms for i in intervals))


def overlapping(
    connection: Connection, datasource: str, interval: Interval
) -> list[ColumnElement[bool]]:
    """Return the condition for segments that overlap an interval, so that an index finds them.

    What overlaps begins at most the length of the longest segment earlier. The database knows that
    length from an index, so a long history is not looked through.
    """
    table = schema.segments
    return [
        table.c.datasource == datasource,
        table.c.start_ms > interval.start_ms - _longest(connection, datasource),
        table.c.start_ms < interval.end_ms,
        table.c.end_ms > interval.start_ms,
    ]


def used_chunks(connection: Connection, datasource: str, interval: Interval) -> list[Chunk]:
    """Return the chunks that overlap an interval, visible or not.

    A history is not looked through for the sake of a segment of all time either.
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
    # They are few, and their starts fewer. A chunk has one, so that none is read in two parts. Ids
    # are asked for beside them as a database may think an index of starts alone the better one.
    begins = select(table.c.start_ms, table.c.id).where(
        table.c.datasource == datasource,
        _LENGTH > _USUAL_MS,
        table.c.start_ms < interval.end_ms,
        table.c.end_ms > interval.start_ms,
    )
    found = {row.start_ms for row in connection.execute(begins)}
    for starts in batches(sorted(found)):
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


def read_chunks(connection: Connection, conditions: Sequence[ColumnElement[bool]]) -> list[Chunk]:
    """Return the segments that satisfy the conditions, summed up by interval and version."""
    return _chunks(connection, _SUMS.where(*conditions), conditions, {})


def _chunks(
    connection: Connection,
    query: Select[int, int, str, int, int, int, int],
    conditions: Sequence[ColumnElement[bool]],
    parameters: Mapping[str, str | int],
) -> list[Chunk]:
    sums = [
        (Interval(row.start_ms, row.end_ms), row.version, row)
        for row in connection.execute(query, parameters).all()
    ]
    rewritten = {(interval, version) for interval, version, row in sums if row.overwrite != NONE}
    # Mostly there are none, and the statement need not even be put together.
    payloads = _payloads(connection, conditions, parameters, rewritten) if rewritten else {}
    return [
        _rewritten_chunk(interval, version, row.core, payloads[interval, version])
        if row.overwrite != NONE
        else Chunk(interval, version, row.core, row.core_there, highest_root=row.root)
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
    # By their start, as an index knows it; what else begins then is few.
    for starts in batches(sorted({interval.start_ms for interval, _ in chunks})):
        for row in connection.execute(query.where(_ROWS.start_ms.in_(starts)), parameters):
            members = found.get((Interval(row.start_ms, row.end_ms), row.version))
            if members is not None:
                members[row.partition_number] = row.payload
    return found


def _rewritten_chunk(
    interval: Interval, version: str, core_partitions: int, payloads: Mapping[int, str]
) -> Chunk:
    """Return a chunk in which segments rewrite others."""
    return Chunk.of(
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
    return [segment_row(row) for row in found]


def highest_minor(connection: Connection, datasource: str, interval: Interval, version: str) -> int:
    """Return the highest minor version of a chunk's segments, used or not; 0: none rewrites."""
    found = connection.execute(_REWRITING, chunk_named(datasource, interval, version))
    return max(
        (roots_of(row.partition_number, load(row.payload)).minor_version for row in found),
        default=0,
    )


def shown_if_used(connection: Connection, rows: Sequence[SegmentRow]) -> list[str]:
    """Return the ids of unused rows that would be seen, in part at least, if all were used.

    But for those whose time chunks overlap others of their version: see `_clashing`.
    """
    shown: list[str] = []
    of_datasource: dict[str, list[SegmentRow]] = {}
    for row in rows:
        of_datasource.setdefault(row.datasource, []).append(row)
    for datasource, asked in of_datasource.items():
        around = hull(asked)
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
    """Return which time chunks overlap others of their version: neither would hide the other.

    With both in view nobody could read the datasource. Of two that are wanted the longer one may.
    Appends have one version for all times, so a day and an hour of it may meet so. Places that are
    not published yet do not count: their publish is refused instead (`commits.beside`).
    """
    at: defaultdict[str, TimeIndex[Interval]] = defaultdict(TimeIndex)
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
    """Return the ids of those wanted back in one chunk whose root numbers others stand for.

    Neither comes back what a newer group has rewritten in part, nor a group that rewrote a part of
    what is used: rows would be seen twice.
    """
    kept = Counter(roots_of(row.partition_number, row.payload) for row in used)
    asked: dict[RootRange, list[str]] = {}
    for row in wanted:
        asked.setdefault(roots_of(row.partition_number, row.payload), []).append(row.id)
    standing = [roots for roots, count in kept.items() if count == roots.group_size]
    hidden: set[str] = set()
    for roots, ids in sorted(asked.items(), key=lambda one: one[0].minor_version, reverse=True):
        if any(roots.overlaps(other) and not roots.overshadows(other) for other in standing):
            hidden.update(ids)
        elif kept[roots] + len(ids) == roots.group_size:
            standing.append(roots)
    return hidden
