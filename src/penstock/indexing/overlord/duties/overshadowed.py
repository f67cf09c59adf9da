"""Marks segments unused that newer ones hide permanently.

Searches everywhere at first, later only where segments were added; removed segments hide nothing,
so they cause no search. A segment is marked only if no segment of its interval changed
since the revision at which it was found hidden; otherwise the interval is searched again.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Conflict, InvalidRequest
from penstock.segments.segment_summary import outlined
from penstock.segments.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.intervals import Interval
    from penstock.storage.metadata import MetadataStore
    from penstock.storage.metadata.survey import Overview

_log = logging.getLogger(__name__)

# Above this number of intervals, a search of everything is faster.
_PLACES_MAX: Final = 1_000
_TRIES: Final = 3


class Overshadowed:
    """Marks overshadowed segments. One owner.

    Args:
        metadata: The metadata store of the term.
    """

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._looked_at = -1

    def mark(self) -> int:
        """Mark hidden segments unused; return their number.

        Raises:
            Unavailable: The metadata store does not answer.
            Fenced: Another overlord leads now.
        """
        revision, places = self._metadata.survey.look(self._places)
        marked, everywhere = 0, True
        for datasource, within in places:
            for interval in self._metadata.survey.look(partial(_crowded, datasource, within)):
                count = self._mark_within(datasource, interval)
                everywhere &= count is not None
                marked += count or 0
        if everywhere:
            self._looked_at = revision
        return marked

    def _places(self, overview: Overview) -> tuple[int, list[tuple[str, Interval | None]]]:
        """Return the intervals to search and the current revision."""
        revision = overview.revision
        if revision == self._looked_at:
            return revision, []
        if self._looked_at >= 0:
            added = overview.additions(self._looked_at)
            places = [(name, time) for name, times in added.items() for time in times]
            if len(places) <= _PLACES_MAX:
                return revision, list(places)
        return revision, [(name, None) for name in overview.datasources()]

    def _mark_within(self, datasource: str, interval: Interval) -> int | None:
        """Mark hidden segments within an interval; None if they could not be determined."""
        for _ in range(_TRIES):
            try:
                found = self._metadata.survey.look(partial(_hidden, datasource, interval))
            except (InvalidRequest, Conflict) as error:
                _log.warning("cannot find overshadowed segments of %s: %s", datasource, error)
                return None
            revision, ids = found
            if not ids:
                return 0
            marked = self._metadata.segments.mark_overshadowed_unused(ids, revision)
            if marked:
                return marked
        return None


def _crowded(datasource: str, within: Interval | None, overview: Overview) -> Iterator[Interval]:
    found = overview.stretches(datasource, within, crowded=True)
    return (stretch.interval for stretch in found)


def _hidden(datasource: str, interval: Interval, overview: Overview) -> tuple[int, list[str]]:
    """Return the revision and the ids of segments that are hidden within an interval.

    A segment that crosses an end of the interval is never reported as hidden.
    """
    timeline = Timeline.of(outlined(overview.texts(datasource, interval)))
    hidden = timeline.find_fully_overshadowed()
    return overview.revision, [chunk.item.id for piece in hidden for chunk in piece.chunks]
