"""Segments that newer ones hide for ever: found stretch by stretch, and marked unused.

Owns where is looked: everywhere at first, later where segments came since. Segments that went hide
nothing, so that they are no reason to look. What is marked was found hidden at a revision after
which no segment changed; where one did, it is looked again.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Conflict, InvalidRequest
from penstock.segments.outline import outlined
from penstock.segments.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.intervals import Interval
    from penstock.storage.metadata import MetadataStore
    from penstock.storage.metadata.survey import Overview

_log = logging.getLogger(__name__)

# So many places one by one take longer than a look at everything.
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
        """Mark those unused that can be found now; return how many.

        Raises:
            Unavailable: The metadata store does not answer.
            Fenced: Another overlord leads by now.
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
        """Return where to look, and the revision that has then been looked at."""
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
        """Mark what is hidden within a time; None if that could not be found out."""
        for _ in range(_TRIES):
            try:
                found = self._metadata.survey.look(partial(_hidden, datasource, interval))
            except (InvalidRequest, Conflict) as error:
                _log.warning("what newer segments of %s hide is not known: %s", datasource, error)
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
    """Return the revision, and what is hidden then within a time.

    Of what lies across the ends of the time, a part is never seen to be hidden.
    """
    timeline = Timeline.of(outlined(overview.texts(datasource, interval)))
    hidden = timeline.find_fully_overshadowed()
    return overview.revision, [chunk.item.id for piece in hidden for chunk in piece.chunks]
