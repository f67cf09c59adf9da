"""Conflict checks of a publish against segments that were marked used or unused meanwhile.

Marking segments takes no locks, so each publish is checked in its transaction; each check
returns the reason for a refusal, or None.

- `refusal_of_basis`: a compaction, or another replace of rows that it has read, publishes these
  rows again. Segments that were hidden meanwhile would reappear, and segments that became
  visible would be hidden without being included.
- `refusal_of_appends`: a pending segment is allocated so that it is visible together with the
  segments that are visible at that time. If another time chunk becomes visible later, the append
  would hide that chunk or be hidden by it.
- `refusal_of_rewrites`: segments with partition numbers from 32768 on rewrite others of their
  version under locks on single segments. The group of one publish hides the root numbers from
  its first to its last, so it must replace exactly the visible segments in that range. Other root
  numbers stay visible, and other tasks may append or rewrite there.

Effects of concurrent replaces are not refused: segments appended under a replace's lock, which
its commit carries over; the copy of an append under a replace's version; and segments marked
unused because newer ones hide them. An inconsistent group raises the task's error; a consistent
one that marks have invalidated is refused as an outcome.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, select

from penstock.core.errors import InvalidRequest, counted
from penstock.core.intervals import Interval, condensed
from penstock.core.timeline.chunks import RootRange
from penstock.storage.metadata import schema
from penstock.storage.metadata.chunk_summaries import (
    by_chunk,
    chunks_of,
    enclosing_interval,
    not_hidden,
    roots_of,
    visible_chunks,
)
from penstock.storage.metadata.publish.upgrades import read_upgrades
from penstock.storage.metadata.row_mapper import SEGMENTS
from penstock.storage.metadata.rows.publish import PublishOutcome
from penstock.storage.metadata.sql_database import in_batches
from penstock.storage.metadata.time_chunks import overlapping, rows_of_chunk, used_chunks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from penstock.storage.metadata.chunk_summaries import ChunkSummary
    from penstock.storage.metadata.rows.publish import PublishBasis, PublishRequest
    from penstock.storage.metadata.rows.segments import SegmentRow


_NAMED_MAX: Final = 10
_NEXT: Final = (
    "nothing was published, so the task fails: submit it again for the current segments; automatic"
    " compaction plans the interval again by itself"
)


def refusal_of_basis(connection: Connection, request: PublishRequest) -> PublishOutcome | None:
    """Return why the publish is refused, None if its basis is unchanged."""
    basis = request.basis
    if basis is None:
        return None
    used = _used(connection, request.datasource, basis)
    if withdrawn := _withdrawn(connection, basis, used):
        what = "which it has read, was marked unused since: its rows would come back"
        return _refused(request, withdrawn, what)
    carried_over = read_upgrades(connection, request.task_id)
    known = {*basis.shown, *basis.hidden, *carried_over}
    if added := sorted(
        name for name, root in used.items() if name not in known and root not in carried_over
    ):
        what = "which it has not read, was marked used since: its rows would be hidden"
        return _refused(request, added, what)
    return None


def _used(connection: Connection, datasource: str, basis: PublishBasis) -> dict[str, str]:
    """Return the used segments in the intervals of the basis: the id of each, and of its file."""
    table = schema.segments
    found: dict[str, str] = {}
    for interval in condensed(basis.intervals):
        query = select(table.c.id, table.c.upgraded_from).where(
            table.c.used, *overlapping(connection, datasource, interval)
        )
        found.update((row.id, row.upgraded_from) for row in connection.execute(query))
    return found


def _withdrawn(connection: Connection, basis: PublishBasis, used: Collection[str]) -> list[str]:
    """Return the shown segments that were marked unused or killed.

    Newer segments of the basis may hide them. Segments that were appended since hide none: in a
    time chunk that was completely removed they start a new version, above the old one.
    """
    wanted = sorted(name for name in basis.shown if name not in used)
    if not wanted:
        return []
    table = schema.segments
    rows = [
        SEGMENTS.record(row)
        for batch in in_batches(sorted(basis.shown))
        for row in connection.execute(select(table).where(table.c.id.in_(batch)))
    ]
    if not rows:
        return wanted
    seen = {
        (chunk.interval, chunk.version)
        for chunk in not_hidden(chunks_of(rows).values(), enclosing_interval(rows))
    }
    hidden = {row.id for row in rows if (row.interval, row.version) not in seen}
    return [name for name in wanted if name not in hidden]


def _refused(request: PublishRequest, names: list[str], what: str) -> PublishOutcome:
    others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return PublishOutcome(
        ok=False,
        reason=f"task {request.task_id!r}: segment {names[0]!r}{others}, {what}; {_NEXT}",
        outdated_by=tuple(islice(names, _NAMED_MAX)),
    )


_NEXT_OF_APPENDS: Final = (
    "nothing was published, so the task fails: a supervisor starts another one, which reads the"
    " same messages again; a batch task must be submitted again"
)


def refusal_of_appends(
    connection: Connection, request: PublishRequest, rows: Sequence[SegmentRow]
) -> PublishOutcome | None:
    """Return why the publish is refused, None if no pending and visible segments hide each other.

    Args:
        connection: The transaction.
        request: The publish.
        rows: The rows to insert, including copies for the copies of pending segments. Rows without
            a pending segment are ignored: a replace is meant to hide.
    """
    placed = _of_places(connection, request.datasource, rows)
    if not placed:
        return None
    visible = _VisibleSegments(connection, request.datasource, [row.interval for row in placed])
    seen: set[str] = set()
    hidden: dict[str, tuple[SegmentRow, ChunkSummary]] = {}
    for row in placed:
        if (clash := visible.clash(row.interval, row.version)) is not None:
            return _refused_clash(request, row, clash)
        others = visible.others(row.interval, row.version)
        if older := [chunk for chunk in others if chunk.version <= row.version]:
            return _append_refused(request, row, older[0], "they would be hidden by it")
        if others:
            hidden[row.upgraded_from or row.id] = (row, others[0])
        else:
            seen.add(row.upgraded_from or row.id)
    for name, (row, newer) in hidden.items():
        if name not in seen:
            return _append_refused(request, row, newer, "they would hide it")
    return None


def _of_places(
    connection: Connection, datasource: str, rows: Sequence[SegmentRow]
) -> list[SegmentRow]:
    """Return the rows whose ids are pending segments."""
    table = schema.pending
    starts = sorted({row.interval.start_ms for row in rows})
    places = {
        (Interval(found.start_ms, found.end_ms), found.version, found.partition_number)
        for batch in in_batches(starts)
        for found in connection.execute(
            select(
                table.c.start_ms, table.c.end_ms, table.c.version, table.c.partition_number
            ).where(table.c.datasource == datasource, table.c.start_ms.in_(batch))
        )
    }
    return [row for row in rows if (row.interval, row.version, row.partition_number) in places]


class _VisibleSegments:
    """The visible segments around some intervals, before the publish."""

    def __init__(
        self, connection: Connection, datasource: str, intervals: Iterable[Interval]
    ) -> None:
        found = {
            (chunk.interval, chunk.version): chunk
            for around in condensed(intervals)
            for chunk in used_chunks(connection, datasource, around)
        }
        self._chunks = sorted(found.values(), key=lambda chunk: chunk.interval)
        self._longest_ms = max((chunk.interval.length_ms for chunk in self._chunks), default=0)
        self._others: dict[tuple[Interval, str], list[ChunkSummary]] = {}
        self._clashes: dict[tuple[Interval, str], ChunkSummary | None] = {}

    def others(self, interval: Interval, version: str) -> list[ChunkSummary]:
        """Return the visible chunks within an interval; none if the version's own is among them."""
        key = interval, version
        if key not in self._others:
            visible = visible_chunks(self._overlapping(interval), interval)
            mine = any((chunk.interval, chunk.version) == key for chunk in visible)
            self._others[key] = [] if mine else visible
        return self._others[key]

    def clash(self, interval: Interval, version: str) -> ChunkSummary | None:
        """Return another, hidden chunk of the version that overlaps an interval.

        The rest of a group that lacks members is hidden, but nevertheless in the timeline.
        """
        key = interval, version
        if key not in self._clashes:
            found = (
                chunk
                for chunk in self._overlapping(interval)
                if chunk.version == version and chunk.interval != interval and not chunk.complete
            )
            self._clashes[key] = next(found, None)
        return self._clashes[key]

    def _overlapping(self, interval: Interval) -> list[ChunkSummary]:
        chunks = self._chunks
        first = bisect_right(
            chunks, interval.start_ms - self._longest_ms - 1, key=lambda one: one.interval.start_ms
        )
        last = bisect_left(chunks, interval.end_ms, key=lambda one: one.interval.start_ms)
        return [chunk for chunk in chunks[first:last] if chunk.interval.overlaps(interval)]


def _append_refused(
    request: PublishRequest, row: SegmentRow, chunk: ChunkSummary, what: str
) -> PublishOutcome:
    return PublishOutcome(
        ok=False,
        reason=(
            f"task {request.task_id!r}: its segment {row.id!r} was allocated while the segments of"
            f" {chunk.interval} with the version {chunk.version!r} were hidden; they are visible"
            f" again, and {what}; {_NEXT_OF_APPENDS}"
        ),
    )


def _refused_clash(request: PublishRequest, row: SegmentRow, chunk: ChunkSummary) -> PublishOutcome:
    return PublishOutcome(
        ok=False,
        reason=(
            f"task {request.task_id!r}: its segment {row.id!r} overlaps the segments of"
            f" {chunk.interval}, which have its version, so the two could not be read together."
            " These lack others of their group, so they are hidden: mark those used, or these"
            f" unused; {_NEXT_OF_APPENDS}"
        ),
    )


def refusal_of_rewrites(connection: Connection, request: PublishRequest) -> PublishOutcome | None:
    """Return why the publish is refused, None if each group covers what it rewrites.

    Raises:
        InvalidRequest: A group is incomplete, or does not cover the root numbers of the segments
            that it rewrites.
    """
    rewriting = [row for row in request.segments if rewrites(row)]
    left = set(request.overwritten)
    for (interval, version), group in by_chunk(rewriting).items():
        there = {r.id: r for r in rows_of_chunk(connection, request.datasource, interval, version)}
        old = [there[name] for name in sorted(left & there.keys())]
        left -= there.keys()
        roots = _roots_of_group(request, group)
        if gone := [row.id for row in old if not row.used]:
            what = "which it has rewritten, was marked unused since: its rows would come back"
            return _rewrite_refused(request, gone[0], what)
        _check_range(request, roots, old, there.values())
        if (refusal := _refusal_beside(request, roots, old, there.values())) is not None:
            return refusal
    if left:
        what = "which it has rewritten, was deleted since: its rows would come back"
        return _rewrite_refused(request, min(left), what)
    return None


def rewrites(row: SegmentRow) -> bool:
    """Return whether a segment rewrites others of its version."""
    return roots_of(row.partition_number, row.payload).minor_version > 0


def _roots_of_group(request: PublishRequest, group: Sequence[SegmentRow]) -> RootRange:
    """Return the root numbers of a group, after a check of its size."""
    found = {roots_of(row.partition_number, row.payload) for row in group}
    roots = next(iter(found))
    if len(found) > 1 or not roots.is_full(len(group)):
        raise InvalidRequest(
            f"publish of task {request.task_id!r}: the atomic update group of segment"
            f" {group[0].id!r} does not consist of {counted(len(group), 'segment')}: publish all of"
            " it at once"
        )
    return roots


def _check_range(
    request: PublishRequest,
    roots: RootRange,
    old: Sequence[SegmentRow],
    there: Iterable[SegmentRow],
) -> None:
    """Check that a group has exactly the root numbers of its old segments, without a gap."""
    members = Counter(roots_of(r.partition_number, r.payload) for r in there if r.used)
    mine = Counter(roots_of(row.partition_number, row.payload) for row in old)
    at = roots.start
    for one in sorted(mine):
        if one.start != at or mine[one] != members[one] or not one.is_full(mine[one]):
            break
        at = one.end
    else:
        if at == roots.end and mine:
            return
    raise InvalidRequest(
        f"publish of task {request.task_id!r}: the root numbers {roots.start} to {roots.end - 1}"
        f" are not those of the {counted(len(old), 'segment')} that it rewrites: name all of"
        " them in segmentsToBeOverwritten"
    )


def _refusal_beside(
    request: PublishRequest,
    roots: RootRange,
    old: Sequence[SegmentRow],
    there: Collection[SegmentRow],
) -> PublishOutcome | None:
    """Return why other segments with the root numbers refuse the publish, None if none do."""
    names = {row.id for row in old}
    mine = {roots_of(row.partition_number, row.payload) for row in old}
    members = Counter(roots_of(r.partition_number, r.payload) for r in there if r.used)
    for row in there:
        other = roots_of(row.partition_number, row.payload)
        if not roots.overlaps(other):
            continue
        if other.minor_version >= roots.minor_version:
            what = "has rewritten the same root numbers at the same time or later"
            return _rewrite_refused(request, row.id, what)
        if not row.used or row.id in names:
            continue
        # The rest of a group that lacks members is hidden, and stays hidden.
        if other.is_full(members[other]) and not any(one.overshadows(other) for one in mine):
            what = "which it has not read, was marked used since: its rows would be hidden"
            return _rewrite_refused(request, row.id, what)
    return None


def _rewrite_refused(request: PublishRequest, name: str, what: str) -> PublishOutcome:
    return PublishOutcome(
        ok=False,
        reason=f"task {request.task_id!r}: segment {name!r}, {what}; {_NEXT}",
        outdated_by=(name,),
    )
