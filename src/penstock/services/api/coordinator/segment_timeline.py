"""API of the segment timeline: all segments of a datasource by time and state, for a picture.

Owns the form of the answer, and the list of single segments, which an answer has if they are few.
`penstock.segments.segment_cells` adds up. The columns of large datasources are kept by
`segment_sums`, also for the sums on other pages.

The first answer for a datasource has the database add up all of its segments, which takes seconds
for 1,000,000. Later ones read only the times that changed since. So `TimelineRefresher` asks for
the timelines of large datasources when the process starts, and every few minutes while it runs.
Sums of several datasources are kept while they are not too many.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.core.intervals import END_OF_TIME_MS, START_OF_TIME_MS, Interval, format_time
from penstock.core.threads import OnDeath, OwnedThread
from penstock.core.timeline.entries import TimelineEntry
from penstock.core.timeline.timeline import Timeline
from penstock.segments.segment_cells import CellSums, Grid, SegmentStates, StateSums, files_in
from penstock.segments.segment_groups import GroupKind
from penstock.segments.segment_summary import summarized
from penstock.services.api.asgi import JsonResponse
from penstock.services.api.coordinator.segment_sums import KEPT_MIN, SegmentSums
from penstock.services.api.indexer.request_parts import datasource_of, query_count, query_interval

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.core.timeline.chunks import PartitionChunk
    from penstock.core.timeline.timeline import Member
    from penstock.segments.segment_cells import VisibleTotals
    from penstock.segments.segment_summary import SegmentSummary
    from penstock.storage.metadata import AnnouncedRow, MetadataStore, PublishRecord, SegmentText
    from penstock.storage.metadata.segment_overview import SegmentOverview

_logger = logging.getLogger(__name__)

REFRESHED_MIN: Final = KEPT_MIN
"""Segments from which on the sums of a datasource are kept ready."""

REFRESH_EVERY_S: Final = 300.0
RETRY_S: Final = 5.0
"""Pause after the metadata could not be read, as while its database starts."""

REFRESH_RESTS: Final = 100
"""A refresh costs at most 1 % of a core while segments change all the time."""

CONSOLE_CELLS: Final = 80
"""Cells that the console asks for (`console/src/segment_timeline.tsx`)."""

_CELLS: Final = 200
_CELLS_MAX: Final = 400
_LISTED_MAX: Final = 300
_HIDERS_MAX: Final = 10
_VERSIONS_MAX: Final = 10
# About 100 bytes for each group.
_GROUPS_KEPT_MAX: Final = 3_000_000
# A request for a datasource that was not added up yet takes a thread for seconds.
_REQUESTS_MAX: Final = 4


class _DatasourceStates(NamedTuple):
    """The sums and states of a datasource at one revision."""

    visible: VisibleTotals
    states: SegmentStates


class _Sight(NamedTuple):
    """The result of one read transaction."""

    kept: _DatasourceStates
    announced: Sequence[AnnouncedRow]
    texts: Sequence[SegmentText] | None
    unused: Sequence[SegmentText]

    @property
    def states(self) -> SegmentStates:
        """The states of the segments."""
        return self.kept.states


class SegmentTimelineRoutes:
    """The route of the segment timeline, and the sums that it keeps.

    Args:
        store: The metadata store.
        sums: The columns of large datasources.
    """

    def __init__(self, store: MetadataStore, sums: SegmentSums) -> None:
        self._store = store
        self._sums = sums
        # One request adds up at a time: others would read the same segments, or need the memory.
        self._mutex = threading.Lock()
        self._slots = threading.BoundedSemaphore(_REQUESTS_MAX)
        self._kept: OrderedDict[str, _DatasourceStates] = OrderedDict()
        self._refreshed_at = -1  # revision

    def routes(self) -> list[BaseRoute]:
        """Return the route."""
        path = "/penstock/v1/datasources/{datasource}/segments/timeline"
        return [Route(path, self.timeline)]

    def timeline(self, request: Request) -> Response:
        """Return sums over the segments of an interval by cells of time and by state.

        Raises:
            NotFound: The datasource has no segments and no announced files.
            InvalidRequest: A parameter is invalid.
            Unavailable: Other requests for timelines are waiting.
        """
        name = datasource_of(request, self._store.is_stored_name)
        cells = query_count(request, "cells", default=_CELLS, most=_CELLS_MAX)
        interval = query_interval(request)
        if interval is not None and interval.is_empty:
            raise InvalidRequest("the interval is empty: set a later end", place="interval")
        if not self._slots.acquire(blocking=False):
            raise Unavailable(
                f"{_REQUESTS_MAX} requests for timelines of segments are being answered: try again"
            )
        try:
            with self._mutex:
                return JsonResponse(self.answer(name, interval, cells))
        finally:
            self._slots.release()

    def answer(self, name: str, interval: Interval | None, cells: int) -> Mapping[str, object]:
        """Return the answer for a datasource; one thread at a time. Raises as `timeline`."""
        sight, grid, whole = self._sums.read(
            lambda overview: self._sight(overview, name, interval, cells)
        )
        self._keep(name, sight.kept)
        within = _times(grid)
        files = [row for row in sight.announced if row.file.interval.overlaps(within)]
        count, newest = sight.states.newest_versions(within, _VERSIONS_MAX)
        return {
            "datasource": name,
            "revision": sight.states.groups.revision,
            "range": str(whole),
            "interval": str(within),
            "cellMs": grid.length_ms,
            "segments": sight.states.count_within(within),
            "files": len(files),
            "versions": {"count": count, "newest": newest},
            "cells": list(_cells(sight.states, sight.states.cells(grid), files)),
            "segmentList": None if sight.texts is None else self._listed(sight, within),
            "fileList": None if len(files) > _LISTED_MAX else [_file_to_json(row) for row in files],
        }

    def refresh(self) -> None:
        """Read what has changed in the large datasources, so that no request waits for it.

        Raises:
            Unavailable: The metadata cannot be read.
        """
        revision, counts = self._store.segment_overviews.read(
            lambda overview: (
                overview.revision,
                {name: overview.count(name) for name in overview.datasources()},
            )
        )
        if revision == self._refreshed_at:
            return
        room = _GROUPS_KEPT_MAX
        for name, count in sorted(counts.items(), key=lambda one: -one[1]):
            if count < REFRESHED_MIN:
                break
            if count > room:
                continue
            room -= count
            try:
                with self._mutex:
                    self.answer(name, None, CONSOLE_CELLS)
            except Unavailable:
                raise
            except PenstockError as error:  # narrow: requests for this datasource get it
                _logger.debug("the timeline of %s cannot be kept ready: %s", name, error)
        self._refreshed_at = revision

    def _listed(self, sight: _Sight, within: Interval) -> list[Mapping[str, object]]:
        """Return the segments, each with the task that published its rows."""
        listed = list(_listed(sight, within))
        publishes = self._store.publishes.of_segments([str(one["segment"]) for one in listed])
        return [{**one, **_published(publishes.get(str(one["segment"])))} for one in listed]

    def _sight(
        self, overview: SegmentOverview, name: str, interval: Interval | None, cells: int
    ) -> tuple[_Sight, Grid, Interval]:
        kept = self._kept.get(name)
        visible = self._sums.visible(overview, name, None if kept is None else kept.visible)
        if kept is None or visible.groups is not kept.states.groups:
            kept = _DatasourceStates(visible, SegmentStates(visible.groups))
        states = kept.states
        announced = overview.announced(name)
        times = [row.file.interval for row in announced]
        if states.extent is not None:
            times.append(states.extent)
        if not times:
            raise NotFound(f"there is no datasource {name!r} with segments or announced files")
        whole = Interval(min(t.start_ms for t in times), max(t.end_ms for t in times))
        grid = Grid.of(interval or whole, cells)
        within = _times(grid)
        few = states.count_within(within) <= _LISTED_MAX
        texts = overview.texts(name, within) if few else None
        unused = overview.texts(name, within, used=False) if few else ()
        return _Sight(kept, announced, texts, unused), grid, whole

    def _keep(self, name: str, kept: _DatasourceStates) -> None:
        self._kept[name] = kept
        self._kept.move_to_end(name)
        while (
            len(self._kept) > 1
            and sum(len(one.states.groups) for one in self._kept.values()) > _GROUPS_KEPT_MAX
        ):
            self._kept.popitem(last=False)


class TimelineRefresher:
    """Thread that keeps the sums of large datasources ready, from the start of the process on.

    Args:
        timelines: The timelines.
        clock: Measures what a refresh takes, and waits.
    """

    def __init__(self, timelines: SegmentTimelineRoutes, clock: Clock) -> None:
        self._timelines = timelines
        self._clock = clock
        self._changed = threading.Condition()
        self._thread = OwnedThread("timelines", self._run, on_death=OnDeath.RESTART)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a refresh that runs is awaited for a second."""
        self._thread.end(self._changed, 1.0)

    def _run(self) -> None:
        while not self._thread.is_end_expected:
            pause_s = self._refreshed()
            with self._changed:
                if not self._thread.is_end_expected:
                    self._clock.wait(self._changed, pause_s)

    def _refreshed(self) -> float:
        """Refresh, and return the pause until the next time, in seconds."""
        began_s = self._clock.monotonic_s()
        try:
            self._timelines.refresh()
        except PenstockError as error:
            _logger.debug("the timelines are not refreshed now: %s", error)
            return RETRY_S
        return max(REFRESH_EVERY_S, REFRESH_RESTS * (self._clock.monotonic_s() - began_s))


def _times(grid: Grid) -> Interval:
    """Return the interval of a grid, within the times that can be written."""
    return Interval(max(grid.start_ms, START_OF_TIME_MS), min(grid.end_ms, END_OF_TIME_MS))


def _cells(
    states: SegmentStates, sums: CellSums, files: Sequence[AnnouncedRow]
) -> Iterator[Mapping[str, object]]:
    """Yield the cells that are not empty, each with the states that it has."""
    grid, names = sums.grid, states.groups.names
    running = files_in(grid, ((row.file.interval, _bytes_of(row), row.file.rows) for row in files))
    for at in range(grid.count):
        if not sums.segments[at] and not running.segments[at]:
            continue
        start_ms = grid.start_ms + at * grid.length_ms
        time = _times(Grid(start_ms, grid.length_ms, 1))
        cell: dict[str, object] = {
            "start": format_time(time.start_ms),
            "end": format_time(time.end_ms),
            "segments": int(sums.segments[at]),
            "versions": int(sums.versions[at]),
            "newestVersion": _name(names, int(sums.newest[at])),
            "hiddenBy": _name(names, int(sums.hidden_by[at])),
        }
        for state, found in sums.states.items():
            if found.segments[at]:
                cell[state] = {"segments": int(found.segments[at]), **_sizes(found, at)}
        if running.segments[at]:
            cell["running"] = {"files": int(running.segments[at]), **_sizes(running, at)}
        yield cell


def _sizes(found: StateSums, at: int) -> dict[str, int]:
    return {"bytes": round(found.bytes[at]), "rows": round(found.rows[at])}


def _name(names: Sequence[str], at: int) -> str | None:
    return names[at] if at >= 0 else None


def _bytes_of(row: AnnouncedRow) -> int:
    size = row.file.payload.get("bytes")
    return size if isinstance(size, int) else 0


def _file_to_json(row: AnnouncedRow) -> Mapping[str, object]:
    return {
        "task": row.task_id,
        "interval": str(row.file.interval),
        "bytes": _bytes_of(row),
        "rows": row.file.rows,
    }


def _published(record: PublishRecord | None) -> dict[str, object]:
    if record is None:  # it was published before the log began, or is no longer logged
        return {"task": None, "published": None}
    return {"task": record.task_id, "published": format_time(record.published_ms)}


def _listed(sight: _Sight, within: Interval) -> Iterator[Mapping[str, object]]:
    """Yield the segments in the order of time and version, first the used ones."""
    # The metadata accepts segments without time; they have no rows that queries could see.
    members = [one for one in summarized(sight.texts or ()) if not one[0].is_empty]
    chunks: dict[tuple[Interval, str], list[PartitionChunk[SegmentSummary]]] = {}
    for interval, version, chunk in members:
        chunks.setdefault((interval, version), []).append(chunk)
    entries = {key: TimelineEntry(*key, tuple(found)) for key, found in chunks.items()}
    states = sight.states.whole_states(within)
    spans = list(Timeline.of(members).visible().spans(within))
    for interval, version, chunk in members:
        part = interval.intersection(within)
        over = dict.fromkeys(
            (entry.interval, entry.version)
            for start_ms, end_ms, entry in spans
            if part is not None and part.overlaps(Interval(start_ms, end_ms))
        )
        kind = _kind(entries[interval, version], chunk)
        state = states[interval, version, kind]
        hiders = [one for one in over if one[1] > version and state != "incomplete"]
        if kind == GroupKind.REPLACED:
            hiders.insert(0, (interval, version))
        yield _segment_to_json((interval, version, chunk), state, hiders)
    for member in summarized(sight.unused):
        yield _segment_to_json(member, "unused", ())


def _kind(entry: TimelineEntry[SegmentSummary], chunk: PartitionChunk[SegmentSummary]) -> GroupKind:
    """Return the kind of group that has a segment, as `SegmentGroups` divides its entry."""
    arrangement = entry.arrangement
    if arrangement is not None and chunk in arrangement.overshadowed:
        return GroupKind.REPLACED
    stands_by = arrangement is not None and chunk in arrangement.standby
    return GroupKind.COMPLETE if entry.complete and not stands_by else GroupKind.INCOMPLETE


def _segment_to_json(
    member: Member[SegmentSummary], state: str, hiders: Sequence[tuple[Interval, str]]
) -> Mapping[str, object]:
    interval, version, chunk = member
    return {
        "segment": chunk.item.id,
        "interval": str(interval),
        "version": version,
        "partition": chunk.number,
        "bytes": chunk.item.size,
        "rows": chunk.item.rows,
        "state": state,
        "hiddenBy": [
            {"interval": str(time), "version": name} for time, name in hiders[:_HIDERS_MAX]
        ],
    }
