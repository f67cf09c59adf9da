"""Reads of datasources by a batch task that writes segments, for its plan.

Owns the basis of the task's publish: the segments of its own datasource that were visible when it
read them. Does not own the locks (`batch_locks`), nor the use of the rows (`ingest_task`).

Invariant: all segments of its own datasource that the task reads in order to replace them are in
the basis, so that a concurrent change of them refuses the publish; or the task has locked those
segments themselves.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from penstock.indexing.actions import DatasourceList, MarkSegmentsToUpgrade
from penstock.indexing.batch.batch_engine import SegmentInput
from penstock.indexing.batch.input_segments import basis_of, joined, visible_segments
from penstock.indexing.batch.job import ids_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from penstock.core.intervals import Interval
    from penstock.indexing.batch.batch_locks import BatchTaskLocks
    from penstock.indexing.batch.batch_ports import AttemptStore
    from penstock.indexing.batch.input_segments import SegmentListing, VisibleSegment
    from penstock.indexing.batch.retrying_caller import RetryingCaller
    from penstock.storage.metadata import PublishBasis


class TaskInput:
    """The reads of one task. On its thread.

    Args:
        datasource: The task's own, which it replaces.
        locks: Its locks.
        retries: Sends actions to the overlord.
        listing: Lists segments.
        store: Locates the files of segments.

    Attributes:
        basis: The basis of its publish; None if it read no segments that it replaces.
    """

    def __init__(
        self,
        datasource: str,
        locks: BatchTaskLocks,
        retries: RetryingCaller,
        listing: SegmentListing,
        store: AttemptStore,
    ) -> None:
        self._datasource = datasource
        self._locks = locks
        self._retries = retries
        self._listing = listing
        self._store = store
        self.basis: PublishBasis | None = None

    def lock(self, intervals: Iterable[Interval]) -> None:
        """Lock intervals in addition to those that are locked.

        Raises:
            PenstockError: As `BatchTaskLocks.lock`.
        """
        self._locks.lock(intervals)

    def claim(
        self,
        intervals: Sequence[Interval],
        *,
        read: Sequence[Interval] | None = None,
        named: Collection[str] = (),
    ) -> list[VisibleSegment]:
        """Lock the segments that the task replaces, and return the visible ones, which it reads.

        Segments are locked one by one if the task asks for that and the segments allow it.

        Args:
            intervals: The intervals.
            read: The parts of them to read; None means all.
            named: The ids of the segments, if they are known; under time chunk locks, all segments
                are returned.

        Raises:
            PenstockError: As `BatchTaskLocks.lock`.
        """
        wanted = intervals if read is None else read
        found = self._locks.claim(intervals, read=wanted, named=named)
        return self.to_replace(wanted) if found is None else found

    def visible(self, datasource: str, intervals: Iterable[Interval]) -> list[VisibleSegment]:
        """Return the visible segments of any datasource in intervals."""
        return self._listing.visible(datasource, intervals)

    def datasources(self) -> tuple[str, ...]:
        """Return the names of the datasources that have data, in order."""
        return self._retries.perform("listing datasources", DatasourceList())

    def to_replace(
        self, intervals: Iterable[Interval], basis: Iterable[Interval] | None = None
    ) -> list[VisibleSegment]:
        """Return the visible segments of the task's own datasource, which it reads and replaces.

        The publish is refused if a segment of it is marked used or unused meanwhile.

        Args:
            intervals: The intervals.
            basis: The intervals in which a mark matters, if they differ.
        """
        rows, wanted = self._listing.rows(self._datasource, intervals, replacing=True)
        found = basis_of(rows, wanted if basis is None else basis)
        self.basis = found if self.basis is None else joined(self.basis, found)
        return visible_segments(rows, wanted)

    def to_replace_some(
        self,
        interval: Interval,
        part: Callable[[Sequence[VisibleSegment]], tuple[list[VisibleSegment], set[str]]],
    ) -> list[VisibleSegment]:
        """Return some of the visible segments, which it replaces; its publish keeps the others.

        Args:
            interval: The interval.
            part: Returns the segments to read, and the ids of those that the publish lists again;
                the others are not changed.
        """
        rows, wanted = self._listing.rows(self._datasource, [interval], replacing=False)
        chosen, kept = part(visible_segments(rows, wanted))
        if kept:
            action = MarkSegmentsToUpgrade(tuple(sorted(kept)))
            self._retries.perform("keeping segments", action)
        found = basis_of(rows, wanted)
        # The publish looks up the kept segments itself, as those that were appended since. So a
        # second attempt finds the same basis, and the output of the first.
        self.basis = dataclasses.replace(found, shown=frozenset(found.shown) - kept)
        return chosen

    def as_input(self, found: Iterable[VisibleSegment]) -> SegmentInput:
        """Return visible segments in the form that the engine takes."""
        return SegmentInput(tuple(one.to_input(self._store) for one in found))

    def trial(self) -> str:
        """Return a fingerprint of the input of this attempt."""
        claimed = self._locks.claimed
        return digest(self.basis) if claimed is None else claimed


def digest(basis: PublishBasis | None) -> str:
    """Return a fingerprint of a basis: attempts that list other segments have another one."""
    return "" if basis is None else ids_digest(list(basis.shown))
