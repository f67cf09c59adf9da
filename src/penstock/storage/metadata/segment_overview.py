"""Overview of all used segments: totals, changes, and payloads in batches.

For callers that read all segments but must not hold them all in memory: time is divided into
ranges of a few thousand segments, and the payloads of one range are returned at a time, as text.

Invariants: an overview shows one instant; no segment crosses the end of a range, unless it crosses
the end of the requested interval.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeVar
from typing import cast as cast_type

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    type_coerce,
)

from penstock.core.intervals import Interval, condensed
from penstock.core.timeline.chunks import OVERWRITE_START
from penstock.storage.metadata import schema
from penstock.storage.metadata.payloads import load_spec
from penstock.storage.metadata.revision import read_revision
from penstock.storage.metadata.rows.segments import (
    AnnouncedRow,
    IntervalCount,
    ListedSegment,
    NewestData,
    SegmentChanges,
    SegmentGroup,
    SegmentText,
    SegmentTotals,
)
from penstock.storage.metadata.snapshots import read_announced
from penstock.storage.metadata.sql_database import in_batches
from penstock.storage.metadata.time_chunks import overlapping

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from sqlalchemy import Table

    from penstock.storage.metadata.payloads import JsonObject
    from penstock.storage.metadata.sql_database import Transactions

T = TypeVar("T")

RANGE_SEGMENTS: Final = 5_000

# Number of rows that the database returns at a time. With more objects, Python's collector would
# scan them, and stop all threads meanwhile.
_ROWS_AT_ONCE: Final = 1_000
_HALF: Final = re.compile("[\ud800-\udfff]")


class SegmentOverviews:
    """Provides overviews, each from one read transaction of the metadata store."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def read(self, work: Callable[[SegmentOverview], T]) -> T:
        """Call a function with an overview, which is valid until it returns; return its result.

        Args:
            work: Must not change anything, because it may be called again after a conflict.
        """
        return self._database.read(lambda connection: work(SegmentOverview(connection)))

    def newest(self, after: int | None = None) -> NewestData:
        """Return how new the data of all datasources is.

        Args:
            after: `published` only has datasources with a segment that changed since this revision;
                None means all, for which the database reads all segments.
        """

        def read(connection: Connection) -> NewestData:
            revision, running = read_revision(connection)[1], _newest_running_rows(connection)
            if revision == after:
                return NewestData(revision, None, {}, running)
            published = _newest_publishes(connection, after)
            return NewestData(revision, _used_counts(connection), published, running)

        return self._database.read(read)


class SegmentOverview:
    """All segments at one instant."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def revision(self) -> int:
        """The revision at which segments last changed."""
        return read_revision(self._connection)[1]

    def datasources(self) -> list[str]:
        """Return the datasources that have used segments, in order."""
        table = schema.segments
        query = select(table.c.datasource).distinct().where(table.c.used)
        return sorted(self._connection.execute(query).scalars())

    def names(self, used: Collection[str] | None = None) -> list[str]:
        """Return the datasources that have used segments or announced files, in order.

        Args:
            used: Those that have used segments; None: they are read.
        """
        query = select(schema.announced.c.datasource).distinct()
        announced = self._connection.execute(query).scalars()
        return sorted({*(self.datasources() if used is None else used), *announced})

    def has(self, datasource: str) -> bool:
        """Return whether a datasource has used segments or announced files."""
        segments, announced = schema.segments, schema.announced
        some = (
            select(segments.c.id).where(segments.c.used, segments.c.datasource == datasource),
            select(announced.c.path).where(announced.c.datasource == datasource),
        )
        return any(self._connection.execute(one.limit(1)).first() is not None for one in some)

    def has_name(self, name: str) -> bool:
        """Return whether anything is stored under exactly this name of a datasource or supervisor.

        Segments, announced files, retention rules, specs, offsets and active tasks count.
        """
        is_postgres = self._connection.dialect.name == "postgresql"
        if (is_postgres and "\0" in name) or _HALF.search(name):
            return False  # The database can neither store such a text nor search for it.
        tasks = schema.tasks
        some = (
            select(schema.segments.c.id).where(schema.segments.c.datasource == name),
            select(schema.announced.c.path).where(schema.announced.c.datasource == name),
            select(schema.rules.c.datasource).where(schema.rules.c.datasource == name),
            select(schema.supervisors.c.id).where(schema.supervisors.c.id == name),
            select(schema.offsets.c.supervisor_id).where(schema.offsets.c.supervisor_id == name),
            select(tasks.c.id).where(tasks.c.active, tasks.c.datasource == name),
            select(tasks.c.id).where(tasks.c.id == name),
        )
        return any(self._connection.execute(one.limit(1)).first() is not None for one in some)

    def is_dropped(self, datasource: str) -> bool:
        """Return whether a datasource has only unused segments, and no announced file."""
        table = schema.segments
        unused = select(table.c.id).where(table.c.used.is_(False), table.c.datasource == datasource)
        some = self._connection.execute(unused.limit(1)).first() is not None
        return some and not self.has(datasource)

    def time_chunks(
        self, datasources: Collection[str] | None = None
    ) -> Iterator[tuple[str, int, int]]:
        """Yield datasource, start and end of the intervals of used segments, each once.

        Args:
            datasources: The datasources; None means all.
        """
        table = schema.segments
        query = select(table.c.datasource, table.c.start_ms, table.c.end_ms).distinct()
        query = query.where(table.c.used).execution_options(yield_per=_ROWS_AT_ONCE)
        some = (
            [query]
            if datasources is None
            else [query.where(table.c.datasource.in_(b)) for b in in_batches(sorted(datasources))]
        )
        for one in some:
            for row in self._connection.execute(one):
                yield tuple(row)

    def totals(self, datasource: str | None = None) -> dict[str, SegmentTotals]:
        """Return sums over the used segments of each datasource, or of one, if there are any."""
        table = schema.segments
        query = select(
            table.c.datasource,
            func.min(table.c.start_ms),
            func.max(table.c.end_ms),
            func.count(),
            _sum(table.c.bytes),
            _sum(table.c.row_count),
            func.max(table.c.created_ms),
        ).where(table.c.used)
        if datasource is not None:
            query = query.where(table.c.datasource == datasource)
        query = query.group_by(table.c.datasource).order_by(table.c.datasource)
        return {
            name: SegmentTotals(Interval(start_ms, end_ms), *sums)
            for name, start_ms, end_ms, *sums in self._connection.execute(query)
        }

    def totals_by_time(
        self, datasource: str, within: Interval | None = None, *, used: bool = True
    ) -> list[SegmentTotals]:
        """Return sums over the used segments of each interval, the newest first.

        Args:
            datasource: The datasource.
            within: Only intervals within this one.
            used: Whether to sum up the used segments, or the unused ones.
        """
        table = schema.segments
        times = (table.c.start_ms, table.c.end_ms)
        query = (
            select(*times, func.count(), _sum(table.c.bytes), _sum(table.c.row_count))
            .where(*_used(datasource, within, used=used))
            .group_by(*times)
            .order_by(*(time.desc() for time in times))
        )
        return [
            SegmentTotals(Interval(start_ms, end_ms), count, size, rows)
            for start_ms, end_ms, count, size, rows in self._connection.execute(query)
        ]

    def ids(self, datasource: str, within: Interval | None = None) -> list[str]:
        """Return the ids of used segments, or of those within an interval, in order."""
        table = schema.segments
        query = (
            select(table.c.id)
            .where(*_used(datasource, within))
            .order_by(table.c.start_ms, table.c.end_ms, table.c.version, table.c.partition_number)
        )
        return list(self._connection.execute(query).scalars())

    def changes(self, datasource: str, after: int) -> SegmentChanges:
        """Return the intervals in which segments were added, removed or changed since a revision.

        A segment that was removed and then deleted since then shows only in the number of used
        segments.
        """
        table = schema.segments
        times = {time for name, time, _ in self._changed(after) if name == datasource}
        count = select(func.count()).where(table.c.used, table.c.datasource == datasource)
        return SegmentChanges(
            tuple(condensed(Interval(*time) for time in times)),
            self._connection.execute(count).scalar_one(),
        )

    def groups(
        self, datasource: str, starts: Collection[int] | None = None
    ) -> Iterator[Sequence[SegmentGroup]]:
        """Yield sums over all segments of a datasource by interval, version and use, in no order.

        The database adds up; it returns a row for each group, and no payload. They come in batches,
        as the rows of the database: records would take as long as all the rest.

        Args:
            datasource: The datasource.
            starts: Only segments whose interval begins at one of these times; None means all.
        """
        table = schema.segments
        # An index has all of this in the order of the groups.
        of_group = (table.c.start_ms, table.c.end_ms, table.c.version, _plain(table.c.used))
        number, core = table.c.partition_number, table.c.core_partitions
        sums = (
            func.count(),
            _sum(table.c.bytes),
            _sum(table.c.row_count),
            func.max(table.c.created_ms),
            _plain(func.sum(case((number < core, 1), else_=0)) >= func.max(core)),
            _plain(or_(func.max(number) >= OVERWRITE_START, func.min(core) < 0)),
        )
        columns = zip(SegmentGroup._fields, (*of_group, *sums), strict=True)
        query = select(*(column.label(name) for name, column in columns))
        query = query.where(table.c.datasource == datasource)
        for batch in [None] if starts is None else in_batches(sorted(starts)):
            part = query if batch is None else query.where(table.c.start_ms.in_(batch))
            part = part.group_by(*of_group).execution_options(yield_per=_ROWS_AT_ONCE)
            for rows in self._connection.execute(part).partitions():
                yield cast_type("Sequence[SegmentGroup]", rows)

    def changed_starts(self, after: int) -> dict[str, set[int]]:
        """Return the starts of segments that were added or marked since a revision, by datasource.

        Segments that became unused and were deleted since then only show in `count`.
        """
        found: dict[str, set[int]] = {}
        for name, time, _ in self._changed(after):
            found.setdefault(name, set()).add(time[0])
        return found

    def count(
        self, datasource: str, *, used: bool | None = None, across: Interval | None = None
    ) -> int:
        """Return how many segments there are: all, used or unused ones.

        `across`: only those that overlap this interval without lying within it.
        """
        table = schema.segments
        start, end = table.c.start_ms, table.c.end_ms
        query = select(func.count()).where(table.c.datasource == datasource)
        if used is not None:
            query = query.where(table.c.used if used else ~table.c.used)
        if across is not None:
            query = query.where(
                start < across.end_ms,
                end > across.start_ms,
                (start < across.start_ms) | (end > across.end_ms),
            )
        return int(self._connection.execute(query).scalar_one())

    def announced(self, datasource: str | None) -> tuple[AnnouncedRow, ...]:
        """Return the announced files of a datasource, or of all, that queries read."""
        return read_announced(self._connection, datasource)

    def additions(self, after: int) -> dict[str, list[Interval]]:
        """Return the intervals with segments published or used again since a revision."""
        found: dict[str, set[tuple[int, int]]] = {}
        for name, time, used in self._changed(after):
            if used:
                found.setdefault(name, set()).add(time)
        return {name: condensed(Interval(*time) for time in times) for name, times in found.items()}

    def _changed(self, after: int) -> Iterator[tuple[str, tuple[int, int], bool]]:
        """Yield datasource, interval and use of each row that changed since a revision."""
        table = schema.segments
        columns = (table.c.datasource, table.c.start_ms, table.c.end_ms, table.c.used)
        # No other condition, because a database might use that condition's index and read all rows.
        query = select(*columns).where(table.c.changed_revision > after)
        found = self._connection.execute(query.execution_options(yield_per=_ROWS_AT_ONCE))
        for datasource, start_ms, end_ms, used in found:
            yield datasource, (start_ms, end_ms), used

    def extent(self, datasource: str, interval: Interval) -> Interval:
        """Return the interval, extended to include the used segments that overlap it."""
        table = schema.segments
        query = select(func.min(table.c.start_ms), func.max(table.c.end_ms)).where(
            table.c.used, *overlapping(self._connection, datasource, interval)
        )
        start_ms, end_ms = self._connection.execute(query).one()
        if start_ms is None:
            return interval
        return Interval(min(start_ms, interval.start_ms), max(end_ms, interval.end_ms))

    def time_ranges(
        self, datasource: str, within: Interval | None = None, *, may_be_hidden: bool = False
    ) -> list[IntervalCount]:
        """Return the time ranges of used segments, in order, without reading payloads.

        A range has at most `RANGE_SEGMENTS`, unless more segments overlap each other.

        Args:
            datasource: The datasource.
            within: Only segments that overlap it; None means all.
            may_be_hidden: Only ranges with segments that others may hide.
        """
        table = schema.segments
        conditions = [table.c.used, table.c.datasource == datasource]
        if within is not None:
            conditions += overlapping(self._connection, datasource, within)
        return _joined(
            _overlapping_groups(self._connection, conditions), may_be_hidden=may_be_hidden
        )

    def texts(self, datasource: str, interval: Interval, *, used: bool = True) -> list[SegmentText]:
        """Return the used or unused segments that overlap an interval, by time and version."""
        table = schema.segments
        in_use = table.c.used if used else ~table.c.used
        conditions = [in_use, *overlapping(self._connection, datasource, interval)]
        query = (
            select(*(table.c[name] for name in SegmentText._fields))
            .where(*conditions)
            .order_by(table.c.start_ms, table.c.end_ms, table.c.version, table.c.partition_number)
        )
        return [SegmentText(*row) for row in self._connection.execute(query)]

    def listed(
        self,
        datasource: str | None = None,
        *,
        used: bool | None = True,
        has_payloads: bool = False,
    ) -> Iterator[Sequence[ListedSegment]]:
        """Yield the segments of a datasource, or of all, some at a time and in no order.

        Args:
            datasource: The datasource; None means all.
            used: Whether to list the used or the unused ones; None means both.
            has_payloads: Whether the payloads are needed; otherwise they are empty.
        """
        table = schema.segments
        payload = table.c.payload if has_payloads else literal("").label("payload")
        columns = (table.c[name] for name in ListedSegment._fields if name != "payload")
        query = select(*columns, payload)
        if used is not None:
            query = query.where(table.c.used if used else ~table.c.used)
        if datasource is not None:
            query = query.where(table.c.datasource == datasource)
        found = self._connection.execute(query.execution_options(yield_per=_ROWS_AT_ONCE))
        for rows in found.partitions():
            yield [*map(ListedSegment._make, rows)]


def load_specs(overview: SegmentOverview) -> Iterator[JsonObject]:
    """Yield the load spec of every segment that has one, used or not."""
    for rows in overview.listed(used=None, has_payloads=True):
        for row in rows:
            if (spec := load_spec(row.payload)) is not None:
                yield spec


def _sum(column: ColumnElement[int]) -> ColumnElement[int]:
    # The sum of PostgreSQL is a decimal number.
    return cast(func.coalesce(func.sum(column), 0), BigInteger)


def _plain(column: ColumnElement[bool]) -> ColumnElement[int]:
    """Return a column whose values are passed on as the database returns them."""
    return type_coerce(column, Integer)


def _used(
    datasource: str, within: Interval | None, *, used: bool = True
) -> list[ColumnElement[bool]]:
    table = schema.segments
    conditions = [table.c.used if used else ~table.c.used, table.c.datasource == datasource]
    if within is not None:
        conditions += [table.c.start_ms >= within.start_ms, table.c.end_ms <= within.end_ms]
    return conditions


def _overlapping_groups(
    connection: Connection, conditions: list[ColumnElement[bool]]
) -> Iterator[tuple[IntervalCount, bool]]:
    """Yield the interval and count of each group of overlapping segments.

    Also yields whether some segments of the group may be hidden.
    """
    table = schema.segments
    query = (
        select(
            table.c.start_ms,
            table.c.end_ms,
            table.c.version,
            func.count(),
            func.max(table.c.partition_number),
        )
        .where(*conditions)
        .group_by(table.c.start_ms, table.c.end_ms, table.c.version)
        .order_by(table.c.start_ms)
        .execution_options(yield_per=_ROWS_AT_ONCE)
    )
    first_ms = last_ms = rows = 0
    may_be_hidden = False
    for start_ms, end_ms, _version, count, highest in connection.execute(query):
        if rows and start_ms < last_ms:
            last_ms, rows, may_be_hidden = max(last_ms, end_ms), rows + count, True
            continue
        if rows:
            yield IntervalCount(Interval(first_ms, last_ms), rows), may_be_hidden
        first_ms, last_ms, rows = start_ms, end_ms, count
        may_be_hidden = highest >= OVERWRITE_START
    if rows:
        yield IntervalCount(Interval(first_ms, last_ms), rows), may_be_hidden


def _joined(
    groups: Iterable[tuple[IntervalCount, bool]], *, may_be_hidden: bool
) -> list[IntervalCount]:
    """Merge neighbouring ranges while they have at most `RANGE_SEGMENTS` segments together.

    With `may_be_hidden`, groups whose segments are all visible are left out, unless they are
    between two groups that are merged.
    """
    made: list[IntervalCount] = []
    between = 0
    for group, group_may_be_hidden in groups:
        if may_be_hidden and not group_may_be_hidden:
            between += group.rows
            continue
        if made and made[-1].rows + between + group.rows <= RANGE_SEGMENTS:
            whole = Interval(made[-1].interval.start_ms, group.interval.end_ms)
            made[-1] = IntervalCount(whole, made[-1].rows + between + group.rows)
        else:
            made.append(group)
        between = 0
    return made


def _used_counts(connection: Connection) -> dict[str, tuple[int, int]]:
    """Return the number of used segments and the end of the newest one.

    An index has all of it except for the ends of the newest ones.
    """
    table = schema.segments
    query = (
        select(table.c.datasource, func.count(), func.max(table.c.start_ms))
        .where(table.c.used)
        .group_by(table.c.datasource)
    )
    found = {}
    for name, count, start_ms in connection.execute(query).all():
        newest = select(func.max(table.c.end_ms)).where(
            table.c.used, table.c.datasource == name, table.c.start_ms == start_ms
        )
        found[name] = (count, connection.execute(newest).scalar_one())
    return found


def _newest_publishes(connection: Connection, after: int | None) -> dict[str, int]:
    table = schema.segments
    created = case((table.c.used, table.c.created_ms), else_=0)
    if after is None:
        query = select(table.c.datasource, func.max(created)).group_by(table.c.datasource)
        return {name: int(created_ms) for name, created_ms in connection.execute(query)}
    # Not grouped, because a database would read all rows in the order of the groups.
    changed = select(table.c.datasource, created).where(table.c.changed_revision > after)
    found: dict[str, int] = {}
    for name, created_ms in connection.execute(changed.execution_options(yield_per=_ROWS_AT_ONCE)):
        found[name] = max(found.get(name, 0), int(created_ms))
    return found


def _newest_running_rows(connection: Connection) -> dict[str, int]:
    table = schema.announced
    newest = func.max(_number(connection, table, "maxTimeMs"))
    query = select(table.c.datasource, newest).group_by(table.c.datasource)
    return {name: int(ms) for name, ms in connection.execute(query) if ms is not None}


def _number(connection: Connection, table: Table, field: str) -> ColumnElement[int]:
    """Return a number in the payloads of a table, in the SQL of each database."""
    if connection.dialect.name == "sqlite":
        value = type_coerce(table.c.payload, JSON)[field].as_string()
    else:
        value = cast(table.c.payload, JSON)[field].as_string()
    return cast(value, BigInteger)
