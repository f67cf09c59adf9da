"""Janitor duty: removes overshadowed segments, orphaned files, pending segments and old records.

`JanitorDuty` removes only data that has been unused for longer than any running task can need it:
also tasks that ended long ago, records of publishes without segments, and the last batches of
streaming queries of Spark that stopped long ago.
Files of segments that were marked unused stay, because deleting data is a user's decision.
`OvershadowedSegments` marks segments unused that newer ones hide completely: it checks all
intervals first and later only those that received segments, because a removed segment hides
nothing. It marks segments that were hidden at a revision after which no segment of the interval
changed, and checks again otherwise.

Threading: runs on its own lane; `OvershadowedSegments` has one owner. Invariant: an overlord
that no longer leads removes nothing: each round begins with a write to the term's store, which
then refuses it, and files are deleted last.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import Conflict, InvalidRequest, PenstockError, counted
from penstock.indexing.overlord.duties.duty import before_all_tasks
from penstock.indexing.specs.batch.spark_write import FILES_AGE_MAX_MS
from penstock.segments.segment_summary import hidden_ids
from penstock.storage.metadata.segment_overview import load_specs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.core.clock import Clock
    from penstock.core.intervals import Interval
    from penstock.segments.deep_storage import KnownFiles
    from penstock.storage.metadata import MetadataStore
    from penstock.storage.metadata.segment_overview import SegmentOverview


_log = logging.getLogger(__name__)

# Above this number of intervals, a search of everything is faster.
_PLACES_MAX: Final = 1_000
_TRIES: Final = 3


class OvershadowedSegments:
    """Marks overshadowed segments. One owner.

    Args:
        metadata: The metadata store of the term.
    """

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._marked_revision = -1

    def mark(self) -> int:
        """Mark hidden segments unused; return their number.

        Raises:
            Unavailable: The metadata store does not answer.
            Fenced: Another overlord leads now.
        """
        revision, places = self._metadata.segment_overviews.read(self._places)
        marked, everywhere = 0, True
        for datasource, within in places:
            for interval in self._metadata.segment_overviews.read(
                partial(_time_ranges, datasource, within)
            ):
                count = self._mark_within(datasource, interval)
                everywhere &= count is not None
                marked += count or 0
        if everywhere:
            self._marked_revision = revision
        return marked

    def _places(self, overview: SegmentOverview) -> tuple[int, list[tuple[str, Interval | None]]]:
        """Return the intervals to search and the current revision."""
        revision = overview.revision
        if revision == self._marked_revision:
            return revision, []
        if self._marked_revision >= 0:
            added = overview.additions(self._marked_revision)
            places = [(name, time) for name, times in added.items() for time in times]
            if len(places) <= _PLACES_MAX:
                return revision, list(places)
        return revision, [(name, None) for name in overview.datasources()]

    def _mark_within(self, datasource: str, interval: Interval) -> int | None:
        """Mark hidden segments within an interval; None if they could not be determined."""
        for _ in range(_TRIES):
            try:
                found = self._metadata.segment_overviews.read(
                    partial(_hidden, datasource, interval)
                )
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


def _time_ranges(
    datasource: str, within: Interval | None, overview: SegmentOverview
) -> Iterator[Interval]:
    found = overview.time_ranges(datasource, within, may_be_hidden=True)
    return (one.interval for one in found)


def _hidden(
    datasource: str, interval: Interval, overview: SegmentOverview
) -> tuple[int, list[str]]:
    """Return the revision, and the ids of segments that are hidden within an interval."""
    return overview.revision, hidden_ids(overview, datasource, interval)


CLOCKS_APART_MS: Final = 600_000
"""Upper bound of the difference between the clocks of two hosts."""


class SweptStore(Protocol):
    """The part of deep storage that the janitor uses."""

    def known_files(self, load_specs: Iterable[Mapping[str, object]]) -> KnownFiles:
        """Return the files that load specs name."""
        ...

    def list_orphans(
        self, known: KnownFiles, *, modified_before_ms: int
    ) -> list[Mapping[str, object]]:
        """Return the files older than a time that no segment refers to."""
        ...

    def kill(self, load_spec: Mapping[str, object]) -> None:
        """Delete a file."""
        ...


@dataclass(frozen=True, slots=True)
class SweepReport:
    """Counts of the items that one round removed."""

    marked_unused: int = 0
    files_deleted: int = 0
    places_freed: int = 0
    tasks_forgotten: int = 0
    publishes_forgotten: int = 0
    batches_forgotten: int = 0


class JanitorDuty:
    """Removes unneeded data. On its lane.

    Args:
        metadata: The metadata store of the term.
        deep_store: Deep storage.
        clock: Measures ages.
        interval_ms: Period of the duty.
        orphan_age_ms: A file that no segment refers to is deleted at this age, unless a task of
            the same age is still active and may publish it.
        task_age_ms: A task is deleted this long after it ended, and the record of a publish of
            which no segment exists any longer this long after the publish.
        marks_after_ms: Time after the start of the term before overshadowed segments are first
            marked unused, so that users can notice errors of a new leader.
    """

    name = "janitor"

    def __init__(
        self,
        metadata: MetadataStore,
        deep_store: SweptStore,
        clock: Clock,
        *,
        interval_ms: int = 600_000,
        orphan_age_ms: int = 6 * 3_600_000,
        task_age_ms: int = 90 * 86_400_000,
        marks_after_ms: int = 900_000,
    ) -> None:
        self._metadata = metadata
        self._deep_store = deep_store
        self._clock = clock
        self.interval_ms = interval_ms
        self._orphan_age_ms = orphan_age_ms
        self._task_age_ms = task_age_ms
        # A duty is created when its term starts.
        self._marks_from_s = clock.monotonic_s() + marks_after_ms / 1_000
        self._overshadowed = OvershadowedSegments(metadata)
        self._publishes_after = 0
        self._batches_after = ""

    def run(self) -> None:
        """Run one round; the next round retries failed work. Raises as `sweep`."""
        report = self.sweep()
        if report != SweepReport():
            _log.info("cleaned up: %s", report)

    def sweep(self) -> SweepReport:
        """Run one round and return its counts.

        Raises:
            Unavailable: The metadata store or deep storage does not answer.
            Fenced: Another overlord leads now.
        """
        now_ms = self._clock.now_ms()
        # A running task may still publish a pending segment that is as old as the task, and files
        # that Spark wrote before the task was submitted.
        before_ms = before_all_tasks(
            self._metadata, now_ms - self._orphan_age_ms, CLOCKS_APART_MS + FILES_AGE_MAX_MS
        )
        # Rows first, because these writes detect that the term is over.
        places_freed = self._metadata.segments.delete_pending(created_before_ms=before_ms)
        tasks_forgotten = self._metadata.tasks.delete_complete(
            ended_before_ms=now_ms - self._task_age_ms
        )
        publishes_forgotten, self._publishes_after = self._metadata.publishes.forget(
            before_ms=now_ms - self._task_age_ms, after=self._publishes_after
        )
        batches_forgotten, self._batches_after = self._metadata.query_batches.forget(
            after=self._batches_after
        )
        return SweepReport(
            marked_unused=self._mark_overshadowed(),
            files_deleted=self._delete_orphans(before_ms),
            places_freed=places_freed,
            tasks_forgotten=tasks_forgotten,
            publishes_forgotten=publishes_forgotten,
            batches_forgotten=batches_forgotten,
        )

    def _mark_overshadowed(self) -> int:
        if self._clock.monotonic_s() < self._marks_from_s:
            return 0
        return self._overshadowed.mark()

    def _delete_orphans(self, before_ms: int) -> int:
        known = self._metadata.segment_overviews.read(
            lambda overview: self._deep_store.known_files(load_specs(overview))
        )
        deleted = 0
        for load_spec in self._deep_store.list_orphans(known, modified_before_ms=before_ms):
            try:
                self._deep_store.kill(load_spec)
                deleted += 1
            except PenstockError as error:
                _log.warning("cannot delete the orphan %s: %s", load_spec, error)
        if deleted:
            _log.info("deleted %s that no publish refers to", counted(deleted, "file"))
        return deleted
