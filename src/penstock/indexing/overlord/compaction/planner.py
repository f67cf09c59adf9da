"""Planner of automatic compaction: which intervals of a datasource need compaction.

`plan_compaction` selects the units, the newest first. A *unit* is the input of one compaction
task: a time chunk of the configured granularity, or each existing chunk. A unit needs
compaction if any of its segments was not made as configured, according to the compaction state
that each compacted segment stores. `WantedState` compares these states and caches the results,
because few of them differ. `CompactionUnits` keeps the units of one datasource under one
configuration in columns and updates them from the segments that changed.

Invariants: units are disjoint and ordered. The time ranges in which whole units lie are
disjoint and ordered too, and no segment crosses the end of one. About sixty bytes are kept for
each unit and nothing for each segment. The plan and the state comparison are pure;
`CompactionUnits` has one owner and reads the metadata store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import orjson

from penstock.core.intervals import ETERNITY, Granularity, Interval, apart, condensed
from penstock.core.timeline.timeline import Timeline
from penstock.indexing.specs.batch.task import aligned
from penstock.indexing.specs.retention_rules import start_of_period
from penstock.segments.catalog import with_rows
from penstock.segments.segment_summary import SegmentSummary, summarized

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.indexing.specs.compaction import CompactionConfig
    from penstock.storage.metadata import SegmentText
    from penstock.storage.metadata.segment_overview import SegmentOverview, SegmentOverviews


DUE_MAX: Final = 10_000
"""Maximum number of due intervals in a plan: far more than can fail and be skipped at a time."""


@dataclass(frozen=True, slots=True)
class SegmentTally:
    """Numbers of bytes, segments and intervals."""

    bytes: int = 0
    segments: int = 0
    intervals: int = 0


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """State of a datasource with respect to its compaction configuration.

    Attributes:
        due: The intervals to compact, newest first, at most `DUE_MAX`, without locked ones.
        awaiting: Units to compact, including locked ones.
        compacted: Units that match the configuration.
        skipped: Units that are too new or too large.
    """

    due: tuple[Interval, ...]
    awaiting: SegmentTally
    compacted: SegmentTally
    skipped: SegmentTally


_NOTHING: Final = CompactionPlan((), SegmentTally(), SegmentTally(), SegmentTally())


def plan_compaction(
    config: CompactionConfig, units: Table, locked: Iterable[Interval]
) -> CompactionPlan:
    """Return the compaction plan of a datasource.

    Args:
        config: The compaction configuration.
        units: The units of the datasource, from `CompactionUnits`.
        locked: Intervals locked by other tasks, disjoint.
    """
    if not len(units):
        return _NOTHING
    too_new_ms = start_of_period(config.skip_offset_from_latest, int(units["newest"].max()))
    skipped = (units["end"] > too_new_ms) | (units["bytes"] > config.input_segment_size_bytes)
    awaiting = units[~skipped & ~units["as_wanted"]]
    due = awaiting[_are_free(awaiting, condensed(locked))][: -DUE_MAX - 1 : -1]
    return CompactionPlan(
        tuple(map(Interval, due["start"].tolist(), due["end"].tolist())),
        _tally(awaiting),
        _tally(units[~skipped & units["as_wanted"]]),
        _tally(units[skipped]),
    )


def _are_free(units: Table, busy: list[Interval]) -> NDArray[np.bool_]:
    """Return for each unit whether it overlaps none of the locks."""
    # Find the first lock that ends after the unit's start; a sentinel follows the last lock.
    starts_ms = np.array([*(lock.start_ms for lock in busy), np.iinfo(np.int64).max])
    first = np.searchsorted([lock.end_ms for lock in busy], units["start"], "right")
    free: NDArray[np.bool_] = starts_ms[first] >= units["end"]
    return free


def _tally(units: Table) -> SegmentTally:
    return SegmentTally(int(units["bytes"].sum()), int(units["segments"].sum()), len(units))


_DECIDED_MAX: Final = 1_000


class WantedState:
    """Compares compaction states with the configuration.

    Results are cached, because many segments share few states.

    Args:
        config: The compaction configuration.
    """

    def __init__(self, config: CompactionConfig) -> None:
        self._wanted = _wanted_of(config)
        self._decided: dict[bytes, bool] = {b"": False}

    def is_met(self, state: bytes) -> bool:
        """Return whether a state in JSON matches; the empty state of no compaction does not."""
        found = self._decided.get(state)
        if found is None:
            if len(self._decided) >= _DECIDED_MAX:
                self._decided = {b"": False}
            found = self._decided[state] = self._decide(orjson.loads(state))
        return found

    def _decide(self, state: object) -> bool:
        if not isinstance(state, Mapping):
            return False
        wanted = self._wanted
        granularity = state.get("granularitySpec")
        if isinstance(granularity, Mapping) and not granularity.get("rollup"):
            # Roll-up creates the metrics; without roll-up, the same task would create none either.
            wanted = {name: value for name, value in wanted.items() if name != "metricsSpec"}
        return _covers(state, wanted)


def _wanted_of(config: CompactionConfig) -> dict[str, object]:
    """Return the parts of a segment's state that the configuration specifies."""
    granularity = config.granularity_spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    partitions = config.tuning.partitions
    wanted: dict[str, object] = {
        "partitionsSpec": partitions.model_dump(mode="json", by_alias=True, exclude_none=True),
        "granularitySpec": granularity,
    }
    if config.dimensions_spec is not None:
        wanted["dimensionsSpec"] = config.dimensions_spec.model_dump(mode="json", by_alias=True)
    if config.metrics_spec is not None:
        wanted["metricsSpec"] = [
            metric.model_dump(mode="json", by_alias=True) for metric in config.metrics_spec
        ]
    if config.transform_spec.filter is not None:
        wanted["transformSpec"] = config.transform_spec.model_dump(mode="json", by_alias=True)
    return wanted


def _covers(found: object, wanted: object) -> bool:
    """Return whether the found state contains the configured one; other parts are ignored."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            _covers(found.get(name), value) for name, value in wanted.items()
        )
    return found == wanted


Table: TypeAlias = "NDArray[np.void]"

UNIT: Final = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("newest", "i8"),  # end of its visible rows
        ("bytes", "i8"),
        ("segments", "i4"),
        ("as_wanted", "?"),
    ]
)
_PLACE: Final = np.dtype([("start", "i8"), ("end", "i8"), ("rows", "i4")])

# More changes than this are read faster by reading everything.
_CHANGES_MAX: Final = 1_000
# If more segments than this overlap their neighbours in a chain, everything is read.
_WIDENINGS_MAX: Final = 100


class CompactionUnits:
    """The units of one datasource under one configuration. One owner.

    Args:
        config: The compaction configuration.
        overviews: Read access to the metadata store.
    """

    def __init__(self, config: CompactionConfig, overviews: SegmentOverviews) -> None:
        self.config = config
        self._overviews = overviews
        named = config.granularity_spec.segment_granularity
        self._granularity = None if named is None else Granularity.parse(named)
        self._wanted = WantedState(config)
        self._revision = -1
        self._places: Table = np.empty(0, _PLACE)
        self.table: Table = np.empty(0, UNIT)

    def refresh(self) -> None:
        """Read the changes since the last call.

        Raises:
            InvalidRequest: The payload of a segment is invalid; the message names the segment.
            Conflict: Two segments exclude each other.
        """
        if not (self._revision >= 0 and self._overviews.read(self._follow)):
            self._overviews.read(self._read_all)

    def _follow(self, overview: SegmentOverview) -> bool:
        """Read the changes; return false if they are unknown."""
        revision = overview.revision
        if revision == self._revision:
            return True
        changes = overview.changes(self.config.datasource, self._revision)
        if len(changes.times) > _CHANGES_MAX:
            return False
        edits = [
            (around, *self._read(overview, self._windows(overview, around)))
            for around in self._around(overview, changes.times)
        ]
        places = _edited(self._places, [(around, places) for around, places, _ in edits])
        if int(places["rows"].sum()) != changes.used:
            return False  # Some segments were killed.
        table = _edited(self.table, [(around, units) for around, _, units in edits])
        self._revision, self._places, self.table = revision, places, table
        return True

    def _read_all(self, overview: SegmentOverview) -> None:
        revision = overview.revision
        places, table = self._read(overview, self._windows(overview, None))
        self._revision, self._places, self.table = revision, places, table

    def _windows(self, overview: SegmentOverview, within: Interval | None) -> list[Interval]:
        """Return the intervals with segments, cut between units into pieces to read at once."""
        ranges = overview.time_ranges(self.config.datasource, within)
        return apart(self._aligned(one.interval) for one in ranges)

    def _around(self, overview: SegmentOverview, times: Sequence[Interval]) -> list[Interval]:
        """Return intervals that contain the times and all places, old and new, that they touch."""
        found = apart(self._widened(overview, time) for time in times)
        # Two overlapping intervals together may reach into a third place.
        while (wider := apart(self._widened(overview, one) for one in found)) != found:
            found = wider
        return found

    def _widened(self, overview: SegmentOverview, interval: Interval) -> Interval:
        for _ in range(_WIDENINGS_MAX):
            whole = overview.extent(self.config.datasource, self._aligned(interval))
            low, high = _span(self._places, whole)
            if low < high:
                start_ms = min(whole.start_ms, int(self._places["start"][low]))
                whole = Interval(start_ms, max(whole.end_ms, int(self._places["end"][high - 1])))
            if whole == interval:
                return whole
            interval = whole
        return ETERNITY

    def _aligned(self, interval: Interval) -> Interval:
        return interval if self._granularity is None else aligned(interval, self._granularity)

    def _read(self, overview: SegmentOverview, windows: Iterable[Interval]) -> tuple[Table, Table]:
        """Return the places and the units of some windows, which are disjoint and in order."""
        places, units = [np.empty(0, _PLACE)], [np.empty(0, UNIT)]
        for window in windows:
            rows = overview.texts(self.config.datasource, window)
            places.append(np.array(list(self._places_of(rows)), _PLACE))
            units.append(np.array(list(self._units_of(rows)), UNIT))
        return np.concatenate(places), np.concatenate(units)

    def _places_of(self, rows: Sequence[SegmentText]) -> Iterator[tuple[int, int, int]]:
        start_ms = end_ms = count = 0
        for time, same in groupby(rows, lambda row: (row.start_ms, row.end_ms)):
            whole = self._aligned(Interval(*time))
            if count and whole.start_ms >= end_ms:
                yield start_ms, end_ms, count
                count = 0
            start_ms = min(start_ms, whole.start_ms) if count else whole.start_ms
            end_ms = max(end_ms, whole.end_ms) if count else whole.end_ms
            count += len(list(same))
        if count:
            yield start_ms, end_ms, count

    def _units_of(
        self, rows: Sequence[SegmentText]
    ) -> Iterator[tuple[int, int, int, int, int, bool]]:
        visible = Timeline.of(summarized(rows)).visible()
        unit: tuple[int, int, int, int, int, bool] | None = None
        for from_ms, to_ms, entry in visible.spans(ETERNITY):
            whole = self._aligned(entry.interval)
            clipped = (from_ms, to_ms) != (entry.interval.start_ms, entry.interval.end_ms)
            segments: list[SegmentSummary] = list(with_rows(entry))
            if not segments:
                continue
            size = sum(segment.size for segment in segments)
            as_wanted = not clipped and all(
                self._wanted.is_met(segment.compaction_state) for segment in segments
            )
            if unit is not None and whole.start_ms >= unit[1]:
                yield unit
                unit = None
            if unit is None:
                unit = whole.start_ms, whole.end_ms, to_ms, size, len(segments), as_wanted
            else:
                unit = (
                    min(unit[0], whole.start_ms),
                    max(unit[1], whole.end_ms),
                    to_ms,
                    unit[3] + size,
                    unit[4] + len(segments),
                    unit[5] and as_wanted,
                )
        if unit is not None:
            yield unit


def _span(table: Table, interval: Interval) -> tuple[int, int]:
    """Return the index range of the rows that overlap an interval."""
    low = int(np.searchsorted(table["end"], interval.start_ms, "right"))
    return low, max(low, int(np.searchsorted(table["start"], interval.end_ms, "left")))


def _edited(table: Table, edits: Iterable[tuple[Interval, Table]]) -> Table:
    """Return a table in which the rows that overlap some intervals, in order, are replaced."""
    made, at = [], 0
    for interval, rows in edits:
        low, high = _span(table, interval)
        made += [table[at:low], rows]
        at = high
    return np.concatenate([*made, table[at:]]) if made else table
