"""Automatic compaction: which intervals of a datasource need it. Pure.

A unit needs compaction when any of its segments was not made as the configuration says; that is
written in each segment that a compaction made. The newest go first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.core.intervals import Interval, condensed
from penstock.indexing.spec.rules import start_of_period

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from penstock.indexing.overlord.duties.compactionunits import Table
    from penstock.indexing.spec.compaction import CompactionConfig

DUE_MAX: Final = 10_000
"""Of what is due so much is named: more than fail and are left alone at a time, by far."""


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
        due: The intervals to compact, the newest first, `DUE_MAX` at most; those that are locked
            are left out.
        awaiting: What is due or waits for a lock.
        compacted: What is as it should be.
        skipped: What is too new or too large.
    """

    due: tuple[Interval, ...]
    awaiting: Tally
    compacted: Tally
    skipped: Tally


_NOTHING: Final = CompactionPlan((), Tally(), Tally(), Tally())


def plan_compaction(
    config: CompactionConfig, units: Table, locked: Iterable[Interval]
) -> CompactionPlan:
    """Return what is to be compacted.

    Args:
        config: What segments should look like.
        units: The units of the datasource, as `CompactionUnits` has them.
        locked: Times that others work on, disjoint.
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
    """Tell of each unit whether nobody works on a part of it."""
    # The first lock that ends behind the start of the unit; behind all of them is one at the end.
    starts_ms = np.array([*(lock.start_ms for lock in busy), np.iinfo(np.int64).max])
    first = np.searchsorted([lock.end_ms for lock in busy], units["start"], "right")
    free: NDArray[np.bool_] = starts_ms[first] >= units["end"]
    return free


def _tally(units: Table) -> Tally:
    return Tally(int(units["bytes"].sum()), int(units["segments"].sum()), len(units))
