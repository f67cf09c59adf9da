"""What nobody needs any more: overshadowed segments, orphaned files, unused places, old tasks.

Removes only what was of no use for so long that no task can still come back to it; segments that
were marked unused keep their files, since deleting data is a user's decision. An overlord that does
not lead any more removes nothing: each round begins with a write to the term's store, which refuses
it then, and files go last.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import PenstockError, counted
from penstock.indexing.overlord.duties.duty import before_all_tasks
from penstock.indexing.overlord.duties.overshadowed import Overshadowed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.core.clock import Clock
    from penstock.segments.deepstore import KnownFiles
    from penstock.storage.metadata import MetadataStore

_log = logging.getLogger(__name__)


CLOCKS_APART_MS: Final = 600_000
"""The clocks of two hosts differ by less than this."""


class SweptStore(Protocol):
    """Deep storage, as the janitor sees it."""

    def known(self, load_specs: Iterable[Mapping[str, object]]) -> KnownFiles:
        """Return which files load specs name."""
        ...

    def list_orphans(
        self, known: KnownFiles, *, modified_before_ms: int
    ) -> list[Mapping[str, object]]:
        """Return the files that no segment refers to and that are older than a time."""
        ...

    def kill(self, load_spec: Mapping[str, object]) -> None:
        """Delete a file."""
        ...


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one round did."""

    marked_unused: int = 0
    files_deleted: int = 0
    places_freed: int = 0
    tasks_forgotten: int = 0


class JanitorDuty:
    """Tidies up. On its lane.

    Args:
        metadata: The metadata store of the term.
        deep_store: Deep storage.
        clock: Tells ages.
        interval_ms: How often it is due.
        orphan_age_ms: A file that no segment refers to is deleted at this age, unless a task that
            is as old is still active and may yet publish it.
        task_age_ms: A task that ended is forgotten this long after.
        marks_after_ms: So long after its term began the overlord marks overshadowed segments unused
            for the first time: one who finds a new leader at fault has that long to say so.
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
        # A duty is made when its term begins.
        self._marks_from_s = clock.monotonic_s() + marks_after_ms / 1_000
        self._overshadowed = Overshadowed(metadata)

    def run(self) -> None:
        """Do one round; what fails is left for the next. Raises as `sweep`."""
        report = self.sweep()
        if report != SweepReport():
            _log.info("tidied up: %s", report)

    def sweep(self) -> SweepReport:
        """Do one round and tell what it did.

        Raises:
            Unavailable: The metadata store or deep storage does not answer.
            Fenced: Another overlord leads by now.
        """
        now_ms = self._clock.now_ms()
        # A task that still runs may yet publish a file, or under a place, from long ago.
        before_ms = before_all_tasks(self._metadata, now_ms - self._orphan_age_ms, CLOCKS_APART_MS)
        # In this order: rows first, whose writes find out whether the term is over.
        places_freed = self._metadata.segments.delete_pending(created_before_ms=before_ms)
        tasks_forgotten = self._metadata.tasks.delete_complete(
            ended_before_ms=now_ms - self._task_age_ms
        )
        return SweepReport(
            marked_unused=self._mark_overshadowed(),
            files_deleted=self._delete_orphans(before_ms),
            places_freed=places_freed,
            tasks_forgotten=tasks_forgotten,
        )

    def _mark_overshadowed(self) -> int:
        if self._clock.monotonic_s() < self._marks_from_s:
            return 0
        return self._overshadowed.mark()

    def _delete_orphans(self, before_ms: int) -> int:
        known = self._metadata.survey.look(
            lambda overview: self._deep_store.known(overview.load_specs())
        )
        deleted = 0
        for load_spec in self._deep_store.list_orphans(known, modified_before_ms=before_ms):
            try:
                self._deep_store.kill(load_spec)
                deleted += 1
            except PenstockError as error:
                _log.warning("cannot delete the orphan %s: %s", load_spec, error)
        if deleted:
            _log.info("deleted %s of publishes that never came", counted(deleted, "file"))
        return deleted
