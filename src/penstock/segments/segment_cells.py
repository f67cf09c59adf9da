"""Sums over a datasource's segments by equal cells of time and by state, and over visible ones.

Owns which parts of segments are visible, hidden or neither, for a million groups at once, and their
sums in cells and as a whole. All steps are operations on whole columns, so that they take time in
proportion to the number of groups, however these overlap. The rules are those of
`penstock.core.timeline`, which tests compare.

Bytes and rows of a segment count evenly over its interval, because the metadata has nothing finer.
A segment counts in each cell that it overlaps, in each state that it has there. `VisibleTotals` are
brought to a later revision by the groups that overlap a changed one; all others stay as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from penstock.core.intervals import Interval
from penstock.segments.segment_groups import GroupKind, SegmentGroups
from penstock.storage.metadata import SegmentTotals

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from numpy.typing import NDArray

    from penstock.storage.metadata.segment_overview import SegmentOverview

    Numbers = NDArray[np.int64]
    Fractions = NDArray[np.float64]
    Flags = NDArray[np.bool_]

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_LENGTHS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(seconds * _SECOND for seconds in (1, 2, 5, 10, 15, 30)),
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR for hours in (1, 2, 3, 6, 12)),
    *(days * 10**power * _DAY for power in range(7) for days in (1, 2, 3, 5, 7)),
)
"""Lengths of cells, in ms."""

_NONE: Final = -1

# About 50 KB each.
_GRIDS_KEPT_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class StateSums:
    """Segments, bytes and rows of one state in each cell; the latter with fractions."""

    segments: Numbers
    bytes: Fractions
    rows: Fractions


@dataclass(frozen=True, slots=True)
class CellSums:
    """Sums in the cells of a grid.

    Attributes:
        grid: The cells.
        segments: Number of segments that overlap each cell, of any state.
        states: Sums by state: `visible`, `overshadowed`, `incomplete` and `unused`.
        hidden_by: The newest version that hides another one in each cell; -1 if none does.
        versions: Number of distinct versions of used segments.
        newest: The newest of them; -1 if there is none.
    """

    grid: Grid
    segments: Numbers
    states: dict[str, StateSums]
    hidden_by: Numbers
    versions: Numbers
    newest: Numbers


@dataclass(frozen=True, slots=True)
class Grid:
    """Adjacent cells of one length, in ms."""

    start_ms: int
    length_ms: int
    count: int

    @classmethod
    def of(cls, interval: Interval, most: int) -> Grid:
        """Return the finest grid of up to `most` cells that covers an interval.

        Its length is a round one, such as a quarter of an hour, and its cells begin at multiples of
        it, so that cells of hours are the hours of clocks.
        """
        for length_ms in _LENGTHS:
            first, last = interval.start_ms // length_ms, -(-interval.end_ms // length_ms)
            if last - first <= most:
                return cls(first * length_ms, length_ms, last - first)
        # The longest cell is longer than all of time, which lies on both sides of 1970.
        return cls(-_LENGTHS[-1], 2 * _LENGTHS[-1], 1)

    @property
    def end_ms(self) -> int:
        """End of the last cell."""
        return self.start_ms + self.count * self.length_ms

    def cells_of(self, starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
        """Return the first and the last cell of intervals that overlap the grid."""
        low = (np.maximum(starts, self.start_ms) - self.start_ms) // self.length_ms
        high = (np.minimum(ends, self.end_ms) - 1 - self.start_ms) // self.length_ms
        return low, high

    def overlapping(self, starts: Numbers, ends: Numbers) -> Flags:
        """Return which intervals overlap the grid; empty ones do not."""
        return (starts < self.end_ms) & (ends > self.start_ms) & (starts < ends)

    def count_in(self, low: Numbers, high: Numbers, amounts: Numbers) -> Numbers:
        """Return the sum of the amounts whose cells, from low to high, include each cell."""
        found = np.zeros(self.count + 1, np.int64)
        some = low <= high
        np.add.at(found, low[some], amounts[some])
        np.subtract.at(found, high[some] + 1, amounts[some])
        return np.cumsum(found[:-1])

    def spread(self, starts: Numbers, ends: Numbers, density: Fractions) -> Fractions:
        """Return the amounts in each cell of intervals with amounts per ms."""
        low, high = self.cells_of(starts, ends)
        starts, ends = np.maximum(starts, self.start_ms), np.minimum(ends, self.end_ms)
        several = low < high
        within = np.where(several, self.start_ms + (low + 1) * self.length_ms, ends) - starts
        found = np.bincount(low, density * within, self.count)
        if several.any():
            low, high, ends, density = low[several], high[several], ends[several], density[several]
            last = ends - (self.start_ms + high * self.length_ms)
            found += np.bincount(high, density * last, self.count)
            between = np.bincount(low + 1, density, self.count + 1)
            between -= np.bincount(high, density, self.count + 1)
            found += np.cumsum(between[:-1]) * self.length_ms
        return np.maximum(found, 0)


@dataclass(frozen=True, slots=True)
class _Spans:
    """Spans of time, in order, each with a number."""

    starts: Numbers
    ends: Numbers
    values: Numbers

    def within(self, grid: Grid) -> _Spans:
        some = grid.overlapping(self.starts, self.ends)
        return _Spans(self.starts[some], self.ends[some], self.values[some])


class SegmentSizes(NamedTuple):
    """Number, bytes and rows of segments."""

    segments: int
    bytes: int
    rows: int

    @classmethod
    def sum(cls, sizes: Iterable[SegmentSizes]) -> SegmentSizes:
        """Return the sum of several."""
        every = list(sizes)
        return cls(*(sum(one[at] for one in every) for at in range(3)))


class VisibleAmounts(NamedTuple):
    """Segments of each group that are visible at least in part, and the sizes of their parts."""

    segments: Numbers
    bytes: Numbers
    rows: Numbers

    def sums(self, which: Flags) -> SegmentSizes:
        """Return the sums over some groups."""
        return SegmentSizes(*(int(amounts[which].sum()) for amounts in self))


class SegmentStates:
    """The state of each part of a datasource's segments at one revision. Any thread may read it.

    Args:
        groups: The groups of its segments.
    """

    def __init__(self, groups: SegmentGroups) -> None:
        self.groups = groups
        # Open pages ask for the same cells again and again, and zooming out comes back to them.
        self._kept: dict[Grid, CellSums] = {}
        candidates = np.flatnonzero(
            (groups.kinds <= GroupKind.INCOMPLETE) & (groups.starts < groups.ends)
        )
        starts, ends = groups.starts[candidates], groups.ends[candidates]
        edges = _distinct_times(np.concatenate([starts, ends]))
        low, high = np.searchsorted(edges, starts), np.searchsorted(edges, ends)
        spans = max(len(edges) - 1, 0)
        complete = groups.kinds[candidates] == GroupKind.COMPLETE
        # The number of a group follows its version, so that the largest one has both.
        keys = groups.versions[candidates] * max(len(groups), 1) + candidates
        best = largest(spans, low[complete], high[complete], keys[complete])
        winners = np.where(best >= 0, best % max(len(groups), 1), _NONE)
        versions = np.where(best >= 0, groups.versions[winners], _NONE)
        hidden = np.zeros(len(candidates), bool)
        hidden[~complete] = (
            _smallest(versions, low[~complete], high[~complete])
            > groups.versions[candidates][~complete]
        )
        self._is_hidden = np.zeros(len(groups), bool)
        self._is_hidden[candidates[hidden]] = True
        counted = complete | hidden
        covering = np.zeros(spans + 1, np.int64)
        np.add.at(covering, low[counted], 1)
        np.subtract.at(covering, high[counted], 1)
        hides = np.cumsum(covering)[:spans] > 1
        self._hiders = _Spans(edges[:-1][hides], edges[1:][hides], versions[hides])
        self._visible = _merged(edges, winners)
        lengths = self._visible.ends - self._visible.starts
        self._visible_ms = np.zeros(len(groups), np.int64)
        np.add.at(self._visible_ms, self._visible.values, lengths)

    def whole_states(self, interval: Interval) -> dict[tuple[Interval, str, GroupKind], str]:
        """Return the states of the groups that overlap an interval, over all of their own ones.

        They are `visible`, `partlyVisible`, `overshadowed`, `incomplete` and `unused`.
        """
        groups = self.groups
        some = (groups.starts < interval.end_ms) & (groups.ends > interval.start_ms)
        found: dict[tuple[Interval, str, GroupKind], str] = {}
        for at in np.flatnonzero(some).tolist():
            time = Interval(int(groups.starts[at]), int(groups.ends[at]))
            kind = GroupKind(groups.kinds[at])
            state = "unused"
            if kind == GroupKind.COMPLETE and self._visible_ms[at]:
                state = "visible" if self._visible_ms[at] == time.length_ms else "partlyVisible"
            elif kind != GroupKind.UNUSED:
                waits = kind == GroupKind.INCOMPLETE and not self._is_hidden[at]
                state = "incomplete" if waits else "overshadowed"
            found[time, groups.names[groups.versions[at]], kind] = state
        return found

    def visible_amounts(self) -> VisibleAmounts:
        """Return the visible part of each group."""
        groups, seen_ms = self.groups, self._visible_ms
        lengths = groups.ends - groups.starts
        is_part = np.flatnonzero((seen_ms > 0) & (seen_ms < lengths))
        shares = seen_ms[is_part] / lengths[is_part]

        def seen(amounts: Numbers) -> Numbers:
            found = np.where(seen_ms > 0, amounts, 0)
            found[is_part] = np.rint(amounts[is_part] * shares)
            return found

        segments = np.where(seen_ms > 0, groups.segments, 0)
        return VisibleAmounts(segments, seen(groups.bytes), seen(groups.rows))

    @property
    def extent(self) -> Interval | None:
        """From the earliest start to the latest end; None without segments."""
        groups = self.groups
        if not len(groups):
            return None
        return Interval(int(groups.starts.min()), int(groups.ends.max()))

    def count_within(self, interval: Interval) -> int:
        """Return the number of segments, used or unused, that overlap an interval."""
        groups = self.groups
        some = (groups.starts < interval.end_ms) & (groups.ends > interval.start_ms)
        return int(groups.segments[some].sum())

    def newest_versions(self, interval: Interval, most: int) -> tuple[int, list[str]]:
        """Return how many versions the used segments of an interval have, and the newest ones."""
        groups = self.groups
        some = (groups.starts < interval.end_ms) & (groups.ends > interval.start_ms)
        used = groups.versions[some & (groups.kinds != GroupKind.UNUSED)]
        found = np.flatnonzero(np.bincount(used, minlength=len(groups.names)))
        return len(found), [groups.names[at] for at in found[::-1][:most]]

    def cells(self, grid: Grid) -> CellSums:
        """Return the sums in the cells of a grid, which no caller may change."""
        found = self._kept.get(grid)
        if found is None:
            if len(self._kept) >= _GRIDS_KEPT_MAX:
                self._kept = {}
            found = self._kept[grid] = self._cells(grid)
        return found

    def _cells(self, grid: Grid) -> CellSums:
        groups = self.groups
        some = np.flatnonzero(grid.overlapping(groups.starts, groups.ends))
        kinds = groups.kinds[some]
        complete = some[kinds == GroupKind.COMPLETE]
        replaced = some[kinds == GroupKind.REPLACED]
        incomplete = some[kinds == GroupKind.INCOMPLETE]
        is_hidden = self._is_hidden[incomplete]
        partly = self._sums(grid, complete)
        # Mostly nothing hides another one here, and all complete groups are visible.
        are_shown = not grid.overlapping(self._hiders.starts, self._hiders.ends).any()
        visible, whole = (partly, partly.segments) if are_shown else self._visible_sums(grid)
        hidden = self._sums(grid, np.concatenate([replaced, incomplete[is_hidden]]))
        overshadowed = StateSums(
            hidden.segments + partly.segments - whole,
            hidden.bytes + np.maximum(partly.bytes - visible.bytes, 0),
            hidden.rows + np.maximum(partly.rows - visible.rows, 0),
        )
        none = overshadowed.segments == 0
        # Both sums are of fractions: a difference of nothing is none.
        overshadowed.bytes[none] = 0
        overshadowed.rows[none] = 0
        low, high = grid.cells_of(groups.starts[some], groups.ends[some])
        every = grid.count_in(low, high, groups.segments[some])
        is_used = kinds != GroupKind.UNUSED
        used, low, high = some[is_used], low[is_used], high[is_used]
        return CellSums(
            grid,
            every,
            {
                "visible": visible,
                "overshadowed": overshadowed,
                "incomplete": self._sums(grid, incomplete[~is_hidden]),
                "unused": self._sums(grid, some[kinds == GroupKind.UNUSED]),
            },
            self._hidden_by(grid, replaced),
            _distinct(grid, low, high, groups.versions[used]),
            largest(grid.count, low, high + 1, groups.versions[used]),
        )

    def _sums(self, grid: Grid, which: Numbers) -> StateSums:
        groups = self.groups
        starts, ends = groups.starts[which], groups.ends[which]
        lengths = ends - starts
        return StateSums(
            grid.count_in(*grid.cells_of(starts, ends), groups.segments[which]),
            grid.spread(starts, ends, groups.bytes[which] / lengths),
            grid.spread(starts, ends, groups.rows[which] / lengths),
        )

    def _visible_sums(self, grid: Grid) -> tuple[StateSums, Numbers]:
        """Return the sums of visible parts, and the number of segments without a hidden part."""
        groups, spans = self.groups, self._visible.within(grid)
        starts, ends, winners = spans.starts, spans.ends, spans.values
        low, high = grid.cells_of(starts, ends)
        counts = groups.segments[winners]
        lengths = groups.ends[winners] - groups.starts[winners]
        # A group with two spans in one cell counts once there.
        order = np.lexsort((starts, winners))
        again = np.zeros(len(low), bool)
        before, after = order[:-1], order[1:]
        again[after] = (winners[after] == winners[before]) & (high[before] == low[after])
        # A span shows all of its group that lies in a cell, if it ends there only where that does.
        cell_ends = grid.start_ms + (high + 1) * grid.length_ms
        cell_starts = grid.start_ms + low * grid.length_ms
        starts_late = starts > np.maximum(groups.starts[winners], cell_starts)
        ends_early = ends < np.minimum(groups.ends[winners], cell_ends)
        return (
            StateSums(
                grid.count_in(low + again, high, counts),
                grid.spread(starts, ends, groups.bytes[winners] / lengths),
                grid.spread(starts, ends, groups.rows[winners] / lengths),
            ),
            grid.count_in(low + starts_late, high - ends_early, counts),
        )

    def _hidden_by(self, grid: Grid, replaced: Numbers) -> Numbers:
        groups, spans = self.groups, self._hiders.within(grid)
        starts = np.concatenate([spans.starts, groups.starts[replaced]])
        ends = np.concatenate([spans.ends, groups.ends[replaced]])
        low, high = grid.cells_of(starts, ends)
        values = np.concatenate([spans.values, groups.versions[replaced]])
        return largest(grid.count, low, high + 1, values)


@dataclass(frozen=True, slots=True)
class VisibleTotals:
    """Sums over the segments of a datasource that queries read.

    Attributes:
        groups: The groups of all of its segments.
        totals: The sums; the interval and the time are those of all used segments. None: there are
            no used segments.
    """

    groups: SegmentGroups
    totals: SegmentTotals | None

    @classmethod
    def read(
        cls,
        overview: SegmentOverview,
        datasource: str,
        known: VisibleTotals | None = None,
        *,
        needs_unused: bool = True,
    ) -> VisibleTotals:
        """Return the sums of a datasource.

        Args:
            overview: The segments.
            datasource: The datasource.
            known: Its sums at an earlier revision; unchanged times are not added up again.
            needs_unused: Whether unused segments that were deleted must be gone from the groups.

        Raises:
            InvalidRequest: A payload cannot be read; the message names its segment.
            Conflict: Segments of a group exclude each other.
        """
        groups = SegmentGroups.read(
            overview,
            datasource,
            None if known is None else known.groups,
            needs_unused=needs_unused,
        )
        if known is not None and groups is known.groups:
            return known
        used = groups.kinds != GroupKind.UNUSED
        if not used.any():
            return cls(groups, None)
        starts = groups.read_starts
        if known is None or known.totals is None or starts is None:
            sums = SegmentStates(groups).visible_amounts().sums(used)
        else:
            before = SegmentSizes(known.totals.count, known.totals.bytes, known.totals.rows)
            sums = _moved_sums(before, known.groups, groups, starts)
        interval = Interval(int(groups.starts[used].min()), int(groups.ends[used].max()))
        return cls(groups, SegmentTotals(interval, *sums, int(groups.newest[used].max())))


def visible_sums(groups: SegmentGroups, within: Interval | None = None) -> SegmentSizes:
    """Return sums over the visible parts of groups within an interval; None means all."""
    if within is None:
        return SegmentStates(groups).visible_amounts().sums(np.ones(len(groups), bool))
    near = groups.where((groups.starts < within.end_ms) & (groups.ends > within.start_ms))
    inside = (near.starts >= within.start_ms) & (near.ends <= within.end_ms)
    return SegmentStates(near).visible_amounts().sums(inside)


def _moved_sums(
    sums: SegmentSizes, old: SegmentGroups, new: SegmentGroups, starts: Collection[int]
) -> SegmentSizes:
    """Return the visible sums after the groups that begin at some times were replaced."""
    changed = _union([side.where(side.begin_at(starts)) for side in (old, new)])
    touched = [changed.overlapping(side.starts, side.ends) for side in (old, new)]
    # The visible part of a group depends on those that overlap it.
    around = _union([side.where(some) for side, some in zip((old, new), touched, strict=True)])
    found = []
    for side, some in zip((old, new), touched, strict=True):
        near = around.overlapping(side.starts, side.ends)
        found.append(SegmentStates(side.where(near)).visible_amounts().sums(some[near]))
    before, after = found
    return SegmentSizes(
        *(total - gone + come for total, gone, come in zip(sums, before, after, strict=True))
    )


class _Union(NamedTuple):
    """Disjoint intervals in the order of time."""

    starts: Numbers
    ends: Numbers

    def overlapping(self, starts: Numbers, ends: Numbers) -> Flags:
        """Return which intervals overlap one of these; empty ones do not."""
        if not len(self.starts):
            return np.zeros(len(starts), bool)
        at = np.searchsorted(self.starts, ends) - 1
        return (at >= 0) & (self.ends[at] > starts) & (starts < ends)


def _union(parts: Sequence[SegmentGroups]) -> _Union:
    """Return the times of groups."""
    starts = np.concatenate([groups.starts for groups in parts])
    ends = np.concatenate([groups.ends for groups in parts])
    has_time = starts < ends
    order = np.argsort(starts[has_time], kind="stable")
    starts = starts[has_time][order]
    reached = np.maximum.accumulate(ends[has_time][order])
    begins = np.ones(len(starts), bool)
    begins[1:] = starts[1:] > reached[:-1]
    at = np.flatnonzero(begins)
    return _Union(starts[at], reached[np.append(at[1:], len(starts))[: len(at)] - 1])


def largest(count: int, lows: Numbers, highs: Numbers, values: Numbers) -> Numbers:
    """Return for each index the largest value of the ranges that include it; -1 if none does.

    A range is two ranges, which may overlap, of the largest power of two that fits. Each power
    passes its maxima on to the next smaller one, so that no range is walked through.

    Args:
        count: Number of indexes.
        lows: First index of each range.
        highs: Index behind each range, which is not empty.
        values: A value of 0 or more for each range.
    """
    found = np.full(count, _NONE, np.int64)
    if not len(lows):
        return found
    levels = np.frexp((highs - lows).astype(np.float64))[1] - 1
    for level in range(int(levels.max()), -1, -1):
        mine = levels == level
        if mine.any():
            np.maximum.at(found, lows[mine], values[mine])
            np.maximum.at(found, highs[mine] - (1 << level), values[mine])
        if level:
            half = 1 << (level - 1)
            passed = found.copy()
            np.maximum(passed[half:], found[:-half], out=passed[half:])
            found = passed
    return found


def _smallest(values: Numbers, lows: Numbers, highs: Numbers) -> Numbers:
    """Return the smallest value of each range of indexes; ranges are not empty."""
    if not len(lows):
        return np.empty(0, np.int64)
    bounds = np.column_stack([lows, highs]).ravel()
    # The last range may end behind the last value, which is not an index.
    return np.minimum.reduceat(np.append(values, 0), bounds)[::2]


def _merged(edges: Numbers, winners: Numbers) -> _Spans:
    """Return the spans of adjacent winners that are the same; gaps have none."""
    begins = np.ones(len(winners), bool)
    begins[1:] = winners[1:] != winners[:-1]
    at = np.flatnonzero(begins)
    until = np.append(at[1:], len(winners))[: len(at)]
    shown = winners[at] != _NONE
    return _Spans(edges[at[shown]], edges[until[shown]], winners[at[shown]])


def _distinct_times(times: Numbers) -> Numbers:
    """Return the times in order, each once.

    `np.unique` of NumPy 2.3 and later has a hash table, which takes five times as long for these.
    """
    times = np.sort(times, kind="stable")  # they are nearly in order
    is_first = np.ones(len(times), bool)
    np.not_equal(times[1:], times[:-1], out=is_first[1:])
    return times[is_first]


def _distinct(grid: Grid, low: Numbers, high: Numbers, versions: Numbers) -> Numbers:
    """Return the number of distinct versions in each cell."""
    # Ranges of one version that overlap or touch become one; versions lie far from each other.
    base = versions * (grid.count + 2)
    order = np.argsort(base + low, kind="stable")
    firsts, lasts = (base + low)[order], (base + high)[order]
    reached = np.maximum.accumulate(lasts)
    begins = np.ones(len(firsts), bool)
    begins[1:] = firsts[1:] > reached[:-1]
    at = np.flatnonzero(begins)
    runs = np.append(at[1:], len(firsts))[: len(at)] - 1
    offset = base[order][at]
    return grid.count_in(firsts[at] - offset, reached[runs] - offset, np.ones(len(at), np.int64))


def files_in(grid: Grid, files: Iterable[tuple[Interval, int, int]]) -> StateSums:
    """Return the number, bytes and rows of files in each cell.

    Args:
        grid: The cells.
        files: Interval, bytes and rows of each.
    """
    columns = np.array(
        [(time.start_ms, time.end_ms, size, rows) for time, size, rows in files], np.int64
    ).reshape(-1, 4)
    starts, ends, sizes, rows = columns[grid.overlapping(columns[:, 0], columns[:, 1])].T
    return StateSums(
        grid.count_in(*grid.cells_of(starts, ends), np.ones(len(starts), np.int64)),
        grid.spread(starts, ends, sizes / (ends - starts)),
        grid.spread(starts, ends, rows / (ends - starts)),
    )
