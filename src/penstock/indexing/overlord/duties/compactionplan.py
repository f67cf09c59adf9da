"""Automatic compaction: selects the intervals of a datasource that need it. Pure.

A unit needs compaction if any of its segments was not written according to the configuration.
Compaction records its state in each segment that it writes. The newest intervals come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.core.intervals import Interval, condensed
from penstock.indexing.specs.retention_rules import start_of_period

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from penstock.indexing.overlord.duties.compactionunits import Table
    from penstock.indexing.specs.compaction import CompactionConfig

DUE_MAX: Final = 10_000
"""Maximum number of due intervals in a plan: far more than can fail and be skipped at a time."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Bytes, segments and intervals of one kind."""

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
    awaiting: Tally
    compacted: Tally
    skipped: Tally


_NOTHING: Final = CompactionPlan((), Tally(), Tally(), Tally())


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


def _tally(units: Table) -> Tally:
    return Tally(int(units["bytes"].sum()), int(units["segments"].sum()), len(units))
