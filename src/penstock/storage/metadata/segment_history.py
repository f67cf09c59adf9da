"""History of segments: which ones were used at an earlier revision.

A row of a segment has the revision at which it was inserted, or last marked. If it is marked
unused, the period in which it was used is recorded beside it, so an insert costs nothing here, and
a row that is marked several times has several periods. A kill deletes the periods of the row, and
raises the oldest revision that is known.

Invariants: the segments of a revision are exactly those that a snapshot of this revision has; a
revision older than the oldest one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    text,
    union_all,
)

from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.intervals import Interval, condensed
from penstock.storage.metadata import schema
from penstock.storage.metadata.revision import read_revision
from penstock.storage.metadata.row_mapper import SEGMENTS
from penstock.storage.metadata.sql_database import in_batches
from penstock.storage.metadata.time_chunks import overlapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.storage.metadata.rows.segments import SegmentRow
    from penstock.storage.metadata.sql_database import Transactions

_TIMES_MAX: Final = 100
"""Changed times that are read one by one; of more, those with the smallest gaps are joined."""

# One statement for both databases.
_RAISE_OLDEST: Final = text("""
INSERT INTO penstock_oldest_revisions (datasource, revision) VALUES (:datasource, :revision)
ON CONFLICT (datasource) DO UPDATE SET revision = excluded.revision
  WHERE penstock_oldest_revisions.revision < excluded.revision
""")


@dataclass(frozen=True, slots=True)
class SegmentsBetween:
    """The segments around the changes between two revisions.

    Attributes:
        times: Intervals in which segments were added or removed, disjoint and in order.
        before: The segments of the earlier revision that overlap these times.
        after: Those of the later revision.
    """

    times: tuple[Interval, ...]
    before: list[SegmentRow]
    after: list[SegmentRow]


class SegmentHistory:
    """The used segments of datasources at the current and at earlier revisions."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def at(self, datasource: str, revision: int) -> list[SegmentRow]:
        """Return the segments that were used at a revision, in order of time and version.

        Raises:
            InvalidRequest: There is no such revision yet.
            NotFound: The revision is no longer known.
        """

        def work(connection: Connection) -> list[SegmentRow]:
            _require(connection, datasource, revision)
            return _used_at(connection, datasource, revision, None)

        return self._database.read(work)

    def between(self, datasource: str, after: int, revision: int) -> SegmentsBetween:
        """Return the segments around the changes after one revision until another one.

        Args:
            datasource: The datasource.
            after: The earlier revision.
            revision: The later revision.

        Raises:
            InvalidRequest: There is no such revision yet, or they are in the wrong order.
            NotFound: The earlier revision is no longer known.
        """
        if after > revision:
            raise InvalidRequest(
                f"revision {after} is newer than {revision}: name the older one first"
            )

        def work(connection: Connection) -> SegmentsBetween:
            _require(connection, datasource, revision)
            _require(connection, datasource, after)
            times = _changed_times(connection, datasource, after, revision)
            before: dict[str, SegmentRow] = {}
            later: dict[str, SegmentRow] = {}
            for time in times:
                # A segment may overlap several times.
                for rows, at in ((before, after), (later, revision)):
                    rows.update((row.id, row) for row in _used_at(connection, datasource, at, time))
            return SegmentsBetween(times, list(before.values()), list(later.values()))

        return self._database.read(work)

    def changed(self, datasource: str, after: int, limit: int) -> tuple[list[int], int]:
        """Return revisions after another one at which segments of a datasource changed.

        Args:
            datasource: The datasource.
            after: The other revision.
            limit: Maximum number.

        Returns:
            The first ones, in order, and the last of all; without any, `after`.

        Raises:
            InvalidRequest: There is no such revision yet.
            NotFound: It is older than the oldest one that is kept.
        """

        def work(connection: Connection) -> tuple[list[int], int]:
            _require(connection, datasource, after)
            return _changed_revisions(connection, datasource, after, limit)

        return self._database.read(work)

    def inserted(self, ids: Iterable[str], revision: int) -> set[str]:
        """Return those of some segments that were inserted at a revision, and not marked then."""
        wanted = list(ids)

        def work(connection: Connection) -> set[str]:
            rows, periods = schema.segments.c, schema.used_periods.c
            mine = periods.segment_id == rows.id
            earlier = exists().where(mine, periods.from_revision < revision)
            began = exists().where(mine, periods.from_revision == revision)
            found: set[str] = set()
            for batch in in_batches(wanted):
                query = select(rows.id).where(
                    rows.id.in_(batch), or_(rows.changed_revision == revision, began), ~earlier
                )
                found.update(connection.execute(query).scalars())
            return found

        return self._database.read(work)

    def newest(self, datasource: str) -> int:
        """Return the last revision at which segments of a datasource changed; 0: none did."""
        return self._database.read(lambda c: _changed_revisions(c, datasource, 0, 0)[1])

    def changed_ms(self, datasource: str, revision: int) -> int | None:
        """Return when segments of a datasource last changed at or before a revision.

        A change is not known if its segments are killed, or have changed again; then the time is
        that of an earlier one.

        Returns:
            Milliseconds since 1970, by the clock of the process that changed them; None: no change
            is known.
        """
        rows = schema.segments.c
        query = (
            select(rows.used_changed_ms)
            .where(rows.datasource == datasource, rows.changed_revision <= revision)
            .order_by(rows.changed_revision.desc())
            .limit(1)
        )
        return self._database.read(lambda c: c.execute(query).scalar())

    def oldest(self, datasource: str) -> int:
        """Return the oldest revision of a datasource that is known."""
        return self._database.read(lambda c: _oldest(c, datasource))


def end_periods(
    connection: Connection,
    conditions: Sequence[ColumnElement[bool]],
    new_revision: int,
    each: Sequence[Mapping[str, object]] | None,
) -> None:
    """Record the periods of used segments that this transaction marks unused. Call it before.

    Args:
        connection: The connection of the transaction.
        conditions: Conditions of these segments.
        new_revision: The revision that the transaction commits.
        each: Values of the parameters in the conditions.
    """
    rows, periods = schema.segments.c, schema.used_periods.c
    ended = select(rows.id, rows.changed_revision, literal(new_revision), rows.datasource).where(
        *conditions
    )
    names = [periods.segment_id, periods.from_revision, periods.to_revision, periods.datasource]
    connection.execute(insert(schema.used_periods).from_select(names, ended), each)


def forget(connection: Connection, rows: Sequence[SegmentRow]) -> None:
    """Delete the periods of killed segments, whose revisions are no longer known."""
    table = schema.used_periods
    ends: dict[str, int] = {}
    for batch in in_batches([row.id for row in rows]):
        mine = table.c.segment_id.in_(batch)
        last = func.max(table.c.to_revision).label("last")
        query = select(table.c.datasource, last).where(mine).group_by(table.c.datasource)
        for found in connection.execute(query):
            ends[found.datasource] = max(found.last, ends.get(found.datasource, 0))
        connection.execute(delete(table).where(mine))
    if ends:
        values = [{"datasource": name, "revision": end} for name, end in ends.items()]
        connection.execute(_RAISE_OLDEST, values)


def _require(connection: Connection, datasource: str, revision: int) -> None:
    newest = read_revision(connection)[0]
    if not 0 <= revision <= newest:
        raise InvalidRequest(
            f"there is no revision {revision}: the newest one is {newest}, and the first one is 0"
        )
    oldest = _oldest(connection, datasource)
    if revision < oldest:
        raise NotFound(
            f"revision {revision} of datasource {datasource!r} is no longer known, because segments"
            " that were used then are deleted, or an older release wrote them: use revision"
            f" {oldest} or a later one"
        )


def _oldest(connection: Connection, datasource: str) -> int:
    table = schema.oldest_revisions
    query = select(func.max(table.c.revision)).where(table.c.datasource.in_(("", datasource)))
    return int(connection.execute(query).scalar() or 0)


def _used_at(
    connection: Connection, datasource: str, revision: int, time: Interval | None
) -> list[SegmentRow]:
    rows, periods = schema.segments.c, schema.used_periods.c
    within = [rows.datasource == datasource]
    if time is not None:
        within = overlapping(connection, datasource, time)
    was_used = exists().where(
        periods.segment_id == rows.id,
        periods.from_revision <= revision,
        periods.to_revision > revision,
    )
    query = (
        select(schema.segments)
        .where(*within, or_(and_(rows.used, rows.changed_revision <= revision), was_used))
        .order_by(rows.start_ms, rows.end_ms, rows.version, rows.partition_number)
    )
    return [SEGMENTS.record(row) for row in connection.execute(query)]


def _changed_revisions(
    connection: Connection, datasource: str, after: int, limit: int
) -> tuple[list[int], int]:
    """Return the first revisions with changes after another one, and the last of all.

    Each is looked up in indexes, so the number of changes does not matter.
    """
    rows, periods = schema.segments.c, schema.used_periods.c
    columns = (
        (rows.datasource, rows.changed_revision),
        (periods.datasource, periods.from_revision),
        (periods.datasource, periods.to_revision),
    )
    last = [select(func.max(one)).where(name == datasource) for name, one in columns]
    newest = max(after, *(connection.execute(query).scalar() or 0 for query in last))
    seen: BindParameter[int] = bindparam("seen")
    following = [
        select(func.min(one).label("revision")).where(name == datasource, one > seen)
        for name, one in columns
    ]
    first = select(func.min(union_all(*following).subquery().c.revision))
    found: list[int] = []
    revision = after
    while len(found) < limit and revision < newest:
        revision = connection.execute(first, {"seen": revision}).scalar_one()
        found.append(revision)
    return found, newest


def _changed_times(
    connection: Connection, datasource: str, after: int, revision: int
) -> tuple[Interval, ...]:
    rows, periods = schema.segments.c, schema.used_periods.c
    times = select(rows.start_ms, rows.end_ms).distinct()
    of_periods = times.where(rows.id == periods.segment_id, periods.datasource == datasource)
    queries = [
        times.where(
            rows.datasource == datasource, *_between(rows.changed_revision, after, revision)
        ),
        of_periods.where(*_between(periods.to_revision, after, revision)),
        of_periods.where(*_between(periods.from_revision, after, revision)),
    ]
    found = {
        Interval(row.start_ms, row.end_ms) for query in queries for row in connection.execute(query)
    }
    return tuple(_joined(condensed(found)))


def _between(
    column: ColumnElement[int], after: int, revision: int
) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return column > after, column <= revision


def _joined(times: Sequence[Interval]) -> list[Interval]:
    """Join the neighbours with the smallest gaps until `_TIMES_MAX` intervals are left."""
    gaps = sorted(range(1, len(times)), key=lambda at: times[at - 1].end_ms - times[at].start_ms)[
        : _TIMES_MAX - 1
    ]
    starts = [0, *sorted(gaps)]
    ends = [*starts[1:], len(times)]
    return [
        Interval(times[start].start_ms, times[end - 1].end_ms)
        for start, end in zip(starts, ends, strict=True)
        if times
    ]
