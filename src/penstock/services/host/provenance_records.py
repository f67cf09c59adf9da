"""Provenance events as a source of records for their topic, with the position in it.

    flow/provenance/position.json     which events are in the topic

Owns the position. `audit_publisher` publishes the events, and the spool of the flow keeps the
commits from which they are derived.

Invariants: an event has the same number whenever it is derived, so a batch that is sent again has
the same records. Events of commits that the spool deleted before they were published are counted
by the spool.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.access.private_file import read_bounded, replace_private
from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.core.metrics import MetricRegistry
from penstock.flow.provenance.provenance_events import EVENT_BITS
from penstock.services.host.audit_files import AuditPosition
from penstock.services.host.audit_publisher import EncodedLines

if TYPE_CHECKING:
    from penstock.flow.repository.commit_spool import CommitSpool
    from penstock.services.host.provenance_process import ProvenanceQueries

_POSITION: Final = "position.json"
_POSITION_BYTES_MAX: Final = 10_000

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProvenanceBatch:
    """Events in the order of their numbers.

    Attributes:
        lines: The events.
        last: Number of the last one.
    """

    lines: EncodedLines
    last: int


class ProvenanceRecords:
    """The events of one flow. One thread.

    Args:
        spool: Commits of the flow.
        queries: Derives events from them.
        registry: Metrics of the process.
    """

    def __init__(
        self, spool: CommitSpool, queries: ProvenanceQueries, registry: MetricRegistry
    ) -> None:
        self._spool = spool
        self._queries = queries
        self._path = Path(spool.folder) / _POSITION
        self._published = registry.counter(
            "penstock_provenance_published_total", "Events of provenance that were published"
        )
        about = "Commits whose events do not reach the topic of provenance"
        registry.read(
            "counter", "penstock_provenance_lost_commits_total", about, lambda: float(spool.lost)
        )
        registry.read(
            "counter",
            "penstock_provenance_commits_total",
            "Commits of the flow that were kept for provenance",
            lambda: float(spool.written),
        )
        registry.read(
            "gauge",
            "penstock_provenance_kept_bytes",
            "Size of the commits that are kept for provenance",
            lambda: float(spool.size_bytes()),
        )
        self._waiting_from = 0
        with suppress(Unavailable):  # the publisher reads it again
            self._waiting_from = self._position().following >> EVENT_BITS
        registry.read(
            "gauge",
            "penstock_provenance_waiting_commits",
            "Commits whose events are not in the topic of provenance yet",
            lambda: float(max(0, spool.last - self._waiting_from + 1)),
        )
        spool.published(self._waiting_from - 1)

    def position(self) -> AuditPosition:
        """Return which events are in the topic.

        Raises:
            Unavailable: The file cannot be read.
        """
        return self._position()

    def set_position(self, position: AuditPosition) -> None:
        """Store which events are in the topic, durably.

        Raises:
            Unavailable: It cannot be written.
        """
        replace_private(self._path, msgspec.json.encode(position))
        self._waiting_from = position.following >> EVENT_BITS
        self._spool.published(self._waiting_from - 1)

    def read_next(self, number: int) -> ProvenanceBatch:
        """Return the next batch. Raises Unavailable if it cannot be derived now."""
        return self._batch(number, 0)

    def read_again(self, first: int, last: int) -> ProvenanceBatch:
        """Return the batch with these numbers. Raises as `read_next`."""
        return self._batch(first, last)

    def settled(self, first: int, last: int, count: int) -> None:
        """Count the events of a batch that are in the topic."""
        del first, last
        self._published.add(count)

    def _batch(self, following: int, last: int) -> ProvenanceBatch:
        found = self._queries.events(following, last)
        return ProvenanceBatch(EncodedLines(found.count, found.body), found.last)

    def _position(self) -> AuditPosition:
        try:
            content = read_bounded(self._path, _POSITION_BYTES_MAX, is_private=True)
            return msgspec.json.decode(content, type=AuditPosition)
        except NotFound:  # narrow: the record is new, or of another repository
            pass
        except (InvalidRequest, msgspec.DecodeError) as error:
            _logger.warning("%s is damaged, and is written again: %s", self._path, error)
        # Another producer: the broker does not take its events for repeated ones.
        position = AuditPosition(f"provenance-{os.urandom(8).hex()}", 0)
        replace_private(self._path, msgspec.json.encode(position))
        return position
