"""Automatic compaction: which intervals of a datasource need it. Pure.

A *unit* is what one task compacts: a time chunk of the wanted granularity, or each chunk as it is.
It needs compaction when any of its segments was not made as the configuration says; that is written
in each segment that a compaction made. The newest go first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.intervals import Granularity, Interval, condensed
from penstock.indexing.spec.batch import aligned
from penstock.indexing.spec.rules import start_of_period

if TYPE_CHECKING:
    from penstock.indexing.spec.compaction import CompactionConfig
    from penstock.segments.catalogue import VisiblePiece


@dataclass(frozen=True, slots=True)
class Tally:
    """Bytes, segments and intervals of one kind."""

    bytes: int = 0
    segments: int = 0
    intervals: int = 0


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What a datasource needs.

    Attributes:
        due: The intervals to compact, the newest first; those that are locked are left out.
        awaiting: What is due or waits for a lock.
        compacted: What is as it should be.
        skipped: What is too new or too large.
    """

    due: tuple[Interval, ...]
    awaiting: Tally
    compacted: Tally
    skipped: Tally


def plan_compaction(
    config: CompactionConfig, visible: Sequence[VisiblePiece], locked: Iterable[Interval]
) -> CompactionPlan:
    """Return what is to be compacted.

    Args:
        config: What segments should look like.
        visible: The visible pieces of the datasource, in order of time.
        locked: Times that others work on, disjoint.
    """
    if not visible:
        return CompactionPlan((), Tally(), Tally(), Tally())
    newest_ms = max(piece.interval.end_ms for piece in visible)
    too_new_ms = start_of_period(config.skip_offset_from_latest, newest_ms)
    busy = condensed(locked)
    wanted = _wanted_state(config)
    awaiting: list[_Unit] = []
    compacted: list[_Unit] = []
    skipped: list[_Unit] = []
    for unit in _units(config, visible):
        if unit.interval.end_ms > too_new_ms or unit.bytes > config.input_segment_size_bytes:
            skipped.append(unit)
        elif all(_is_as_wanted(piece, wanted) for piece in unit.pieces):
            compacted.append(unit)
        else:
            awaiting.append(unit)
    ends_ms = [lock.end_ms for lock in busy]

    def is_free(interval: Interval) -> bool:
        first = bisect_right(ends_ms, interval.start_ms)
        return first == len(busy) or not busy[first].overlaps(interval)

    due = [unit.interval for unit in awaiting if is_free(unit.interval)]
    return CompactionPlan(
        tuple(reversed(due)), _tally(awaiting), _tally(compacted), _tally(skipped)
    )


@dataclass(slots=True)
class _Unit:
    interval: Interval
    pieces: list[VisiblePiece]

    @property
    def bytes(self) -> int:
        return sum(piece.segment.size for piece in self.pieces)


def _units(config: CompactionConfig, visible: Sequence[VisiblePiece]) -> list[_Unit]:
    """Return the units in order of time; chunks that share a wanted chunk are in one."""
    named = config.granularity_spec.segment_granularity
    granularity = None if named is None else Granularity.parse(named)
    units: list[_Unit] = []
    for piece in visible:
        whole = piece.segment.interval
        if granularity is not None:
            whole = aligned(whole, granularity)
        if units and (last := units[-1]).interval.overlaps(whole):
            start_ms = min(last.interval.start_ms, whole.start_ms)
            last.interval = Interval(start_ms, max(last.interval.end_ms, whole.end_ms))
            last.pieces.append(piece)
        else:
            units.append(_Unit(whole, [piece]))
    return units


def _wanted_state(config: CompactionConfig) -> dict[str, object]:
    """Return what the state of a segment must have, as far as the configuration says."""
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


def _is_as_wanted(piece: VisiblePiece, wanted: Mapping[str, object]) -> bool:
    state = piece.segment.last_compaction_state
    if state is None or piece.clipped:
        return False
    granularity = state.get("granularitySpec")
    if isinstance(granularity, Mapping) and not granularity.get("rollup"):
        # Metrics are made by a roll-up; where there was none, the same task would make none again.
        wanted = {name: value for name, value in wanted.items() if name != "metricsSpec"}
    return _covers(state, wanted)


def _covers(found: object, wanted: object) -> bool:
    """Tell whether all that is wanted was so; what is not wanted does not matter."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            _covers(found.get(name), value) for name, value in wanted.items()
        )
    return found == wanted


def _tally(units: Sequence[_Unit]) -> Tally:
    return Tally(
        sum(unit.bytes for unit in units),
        sum(len(unit.pieces) for unit in units),
        len(units),
    )
