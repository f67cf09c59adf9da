"""What a batch task that writes segments reads of datasources: what its plan may ask.

Owns on what the task's publish is founded (`basis`): the segments of its own datasource that it saw
when it read them. Does not own the locks (`locks`), nor what becomes of what is read (`ingesting`).

Invariant: whatever of its own datasource is read to be replaced is in the basis, so that somebody's
change of it meanwhile refuses the publish; or the task has locked those very segments.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from penstock.core.intervals import condensed
from penstock.indexing.actions import DatasourceList, MarkSegmentsToUpgrade, SegmentListUsed
from penstock.indexing.batch.engine import SegmentInput
from penstock.indexing.batch.job import ids_digest
from penstock.indexing.batch.visible import basis_of, joined, visible_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from penstock.core.intervals import Interval
    from penstock.indexing.batch.insisting import Insistence
    from penstock.indexing.batch.locks.claiming import TaskLocks
    from penstock.indexing.batch.ports import AttemptStore
    from penstock.indexing.batch.visible import VisibleSegment
    from penstock.storage.metadata import Basis, SegmentRow


class TaskReading:
    """What one task reads. On its thread.

    Args:
        datasource: The task's own, which it replaces.
        locks: What it has locked.
        insistence: Asks the overlord.
        store: Knows where the files of segments are.

    Attributes:
        basis: On what its publish is founded; None: on nothing that is there.
    """

    def __init__(
        self, datasource: str, locks: TaskLocks, insistence: Insistence, store: AttemptStore
    ) -> None:
        self._datasource = datasource
        self._locks = locks
        self._insistence = insistence
        self._store = store
        self.basis: Basis | None = None

    def lock(self, intervals: Iterable[Interval]) -> None:
        """Lock intervals beside those that are locked.

        Raises:
            PenstockError: As `TaskLocks.lock`.
        """
        self._locks.lock(intervals)

    def claim(
        self,
        intervals: Sequence[Interval],
        *,
        read: Sequence[Interval] | None = None,
        named: Collection[str] = (),
    ) -> list[VisibleSegment]:
        """Lock what the task replaces, and return what is visible of it, which it reads.

        Segments are locked one by one where the task asks for that and they allow it.

        Args:
            intervals: Where.
            read: What of it is read; None: all.
            named: The segments, where they are known; if time chunks are locked, all are returned.

        Raises:
            PenstockError: As `TaskLocks.lock`.
        """
        wanted = intervals if read is None else read
        found = self._locks.claim(intervals, read=wanted, named=named)
        return self.to_replace(wanted) if found is None else found

    def visible(self, datasource: str, intervals: Iterable[Interval]) -> list[VisibleSegment]:
        """Return what is visible of any datasource in intervals."""
        return visible_segments(*self._list(datasource, intervals, replacing=False))

    def datasources(self) -> tuple[str, ...]:
        """Return the names of the datasources that have data, in order."""
        return self._insistence.ask("listing datasources", DatasourceList())

    def to_replace(
        self, intervals: Iterable[Interval], basis: Iterable[Interval] | None = None
    ) -> list[VisibleSegment]:
        """Return what is visible of the task's own datasource, which it reads and replaces.

        The publish is refused when somebody marks a segment of it meanwhile.

        Args:
            intervals: Where.
            basis: Where a mark matters, if that is not the same.
        """
        rows, wanted = self._list(self._datasource, intervals, replacing=True)
        found = basis_of(rows, wanted if basis is None else basis)
        self.basis = found if self.basis is None else joined(self.basis, found)
        return visible_segments(rows, wanted)

    def to_replace_some(
        self,
        interval: Interval,
        part: Callable[[Sequence[VisibleSegment]], tuple[list[VisibleSegment], set[str]]],
    ) -> list[VisibleSegment]:
        """Return some of what is visible, which it reads and replaces; its publish keeps others.

        Args:
            interval: Where.
            part: Returns those that it reads, and the ids of those that the publish lists again;
                the rest it does not touch.
        """
        rows, wanted = self._list(self._datasource, [interval], replacing=False)
        chosen, kept = part(visible_segments(rows, wanted))
        if kept:
            action = MarkSegmentsToUpgrade(tuple(sorted(kept)))
            self._insistence.ask("keeping segments", action)
        found = basis_of(rows, wanted)
        # What is kept the publish looks at by itself, as at what was appended since: so a second
        # try finds the same basis, and what the first one wrote.
        self.basis = dataclasses.replace(found, shown=frozenset(found.shown) - kept)
        return chosen

    def as_input(self, found: Iterable[VisibleSegment]) -> SegmentInput:
        """Return visible segments as the engine takes them."""
        return SegmentInput(tuple(one.to_input(self._store) for one in found))

    def trial(self) -> str:
        """Return what tells the input of one try of the task from that of another."""
        claimed = self._locks.claimed
        return digest(self.basis) if claimed is None else claimed

    def _list(
        self, datasource: str, intervals: Iterable[Interval], *, replacing: bool
    ) -> tuple[tuple[SegmentRow, ...], tuple[Interval, ...]]:
        """Return what is there, `replacing` without what the task's own publish carries over."""
        wanted = tuple(condensed(intervals))
        action = SegmentListUsed(datasource, wanted, replacing)
        return self._insistence.ask("listing segments", action), wanted


def digest(basis: Basis | None) -> str:
    """Return what tells what one try of a task has listed from what another has."""
    return "" if basis is None else ids_digest(list(basis.shown))
