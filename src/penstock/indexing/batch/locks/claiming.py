"""What a batch task has locked: time chunks, or the segments that it replaces, one by one.

Owns which of the two it is, and what of the segments the task has read already. Not what is listed
for a basis, nor what is published: that is the task's.

A task begins with segments where its spec asks for that, and falls back to time chunks when what is
there does not allow it:

    never both for one time      a task's own lock would be in the way of its other one, so those of
                                 segments are released before time chunks are locked, and no time
                                 chunk is locked around another of the task
    locked is what is visible    who had the locks before may have replaced what they are on, so
                                 what is visible is looked up again under the locks
    read is what is locked       once segments were read that are locked one by one, there is no
                                 way back: the task fails where it would have to fall back; and of
                                 a time chunk that is locked so nothing more is taken in later
    seen again by the next peon  one that dies leaves its locks; who goes on after it with locks of
                                 time chunks keeps to these
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import Conflict, InvalidRequest
from penstock.core.intervals import condensed
from penstock.indexing.actions import LockList, LockRelease, LockTryAcquire
from penstock.indexing.batch.job import ids_digest
from penstock.indexing.batch.locks.locking import acquire, outside, rewrites_of
from penstock.indexing.spec.context import IngestionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from penstock.core.intervals import Granularity, Interval
    from penstock.indexing.actions import TaskLockView
    from penstock.indexing.batch.insisting import Insistence
    from penstock.indexing.batch.locks.locking import HeldLocks, Rewrite
    from penstock.indexing.batch.ports import BatchPorts
    from penstock.indexing.batch.visible import VisibleSegment
    from penstock.indexing.spec.context import TaskContext

_log = logging.getLogger(__name__)

_LOOKS_MAX: Final = 5


class LockingSpec(Protocol):
    """What is needed of the spec of a task that locks."""

    @property
    def id(self) -> str:
        """Its name."""
        ...

    @property
    def mode(self) -> IngestionMode:
        """What becomes of what is there."""
        ...

    @property
    def settings(self) -> TaskContext:
        """The context with its defaults."""
        ...

    @property
    def segment_granularity(self) -> Granularity | None:
        """Its time chunks; None: those that are there."""
        ...

    @property
    def locks_segments(self) -> bool:
        """Whether it locks segments one by one, if what is there allows it."""
        ...

    @property
    def locks_max(self) -> int | None:
        """How many locks it may have; None: any number."""
        ...


class TaskLocks:
    """The locks of one task. On the task's thread.

    Args:
        spec: What the task is.
        ports: What it works with.
        insistence: Asks until there is an answer.
        visible: Returns what is visible of the task's datasource in intervals.
    """

    def __init__(
        self,
        spec: LockingSpec,
        ports: BatchPorts,
        insistence: Insistence,
        visible: Callable[[Iterable[Interval]], list[VisibleSegment]],
    ) -> None:
        self._spec = spec
        self._ports = ports
        self._insistence = insistence
        self._visible = visible
        self._by_segment = spec.locks_segments
        self._locked: list[Interval] = []
        self._rewrites: dict[Interval, Rewrite] = {}
        self._claimed: str | None = None

    @property
    def by_segment(self) -> bool:
        """Whether segments are locked one by one, as far as is known."""
        return self._by_segment

    @property
    def rewrites(self) -> Mapping[Interval, Rewrite]:
        """The segments that are locked one by one, by time chunk."""
        return self._rewrites

    @property
    def claimed(self) -> str | None:
        """What tells the segments that were read under locks of their own from others, if any."""
        return self._claimed

    def types(self) -> list[str]:
        """Return the types of all locks that the task has."""
        return [lock.type for lock in self._held()]

    def check_count(self, more: int) -> None:
        """Return if the task may have so many locks beside those on segments that it rewrites.

        Raises:
            InvalidRequest: It may not.
        """
        most = self._spec.locks_max
        locks = more + sum(len(rewrite.segments) for rewrite in self._rewrites.values())
        if most is not None and locks > most:
            raise InvalidRequest(
                f"the rows lie in times that need {locks} locks, more than"
                f" maxAllowedLockCount {most}: raise it, or ingest fewer time chunks at once",
                place="tuningConfig.maxAllowedLockCount",
            )

    def lock(self, intervals: Iterable[Interval]) -> HeldLocks:
        """Lock intervals beside those that are locked.

        Raises:
            InvalidRequest: They would be more than the task may have.
            PenstockError: As `locking.acquire`.
        """
        if not self._locked:
            # Of an earlier peon; with its places it may have got others than it had asked for.
            held = {one.interval for one in self._held() if one.partition_number is None}
            self._locked = sorted(held)
        # Never one lock across another of the task: it would wait for itself.
        more = outside(condensed(intervals), condensed(self._locked))
        self._locked = sorted([*self._locked, *more])
        self.check_count(len(self._locked))
        return self._acquire(
            LockTryAcquire(
                tuple(self._locked),
                appends=self._spec.mode is IngestionMode.APPEND,
                exclusive=self._by_segment,
            )
        )

    def cover(self, intervals: Sequence[Interval]) -> None:
        """Lock what is replaced without being read: segments, if the task may, or time chunks.

        Raises:
            PenstockError: As `lock`.
        """
        if self._by_segment and self._spec.mode is IngestionMode.APPEND:
            return  # It locks the segments that it adds.
        if not self._by_segment or not self._rewrite(intervals):
            self.lock(intervals)

    def cover_written(self, chunks: Sequence[Interval]) -> None:
        """Lock the segments of time chunks that only the rows told, if the task still may.

        Of a task that has locked segments before nothing more is: what is there beside them stays.

        Raises:
            PenstockError: As `lock`.
        """
        if self._by_segment and chunks and not self._rewrites and self._claimed is None:
            self._rewrite(chunks)

    def claim(
        self, intervals: Sequence[Interval], *, read: Sequence[Interval], named: Collection[str]
    ) -> list[VisibleSegment] | None:
        """Lock what the task replaces, and return the segments of it that it reads.

        Args:
            intervals: Where.
            read: What of it is read.
            named: The segments, where they are known.

        Returns:
            None if time chunks are locked: the task lists what is there, for its basis.

        Raises:
            PenstockError: As `lock`.
        """
        if not self._by_segment or not self._rewrite(intervals, named):
            self.lock(intervals)
            return None
        locked = {name for rewrite in self._rewrites.values() for name in rewrite.ids}
        found = [one for one in self._visible(read) if str(one.segment.id) in locked]
        # Marks of these the publish finds by itself, as it names what it rewrites.
        self._claimed = ids_digest([self._claimed or "", *(str(one.segment.id) for one in found)])
        return found

    def _rewrite(self, intervals: Iterable[Interval], named: Collection[str] = ()) -> bool:
        """Lock the visible segments of intervals; false if time chunks have to be locked instead.

        Those of a time chunk that are locked stay all that is rewritten there: rows of others may
        lie in what was read of it before they came.

        Raises:
            PenstockError: As `lock`.
        """
        wanted = tuple(condensed(intervals))
        if any(lock.partition_number is None for lock in self._held()):
            # Of an earlier peon. They would be in the way of what is asked for here.
            self._fall_back("it did so before")
            return False
        tries = 0
        while True:
            tries += 1
            shown = self._visible_of(wanted, named)
            found = rewrites_of(shown, self._spec.segment_granularity)
            if isinstance(found, str):
                self._fall_back(found)
                return False
            segments = tuple(segment for rewrite in found for segment in rewrite.segments)
            self.check_count(len(segments))
            self._acquire(LockTryAcquire((), segments=segments))
            locked = {one.segment.id for one in shown}
            now = {one.segment.id for one in self._visible_of(wanted, named)}
            # What was appended meanwhile is replaced, too; not without end, as it may stay beside.
            if now == locked or (locked <= now and tries >= _LOOKS_MAX):
                self._rewrites |= {rewrite.interval: rewrite for rewrite in found}
                return True
            if not locked <= now:
                # Who had these locks before has replaced what they are on.
                for rewrite in found:
                    self._insistence.ask("releasing locks", LockRelease(rewrite.interval))

    def _held(self) -> Sequence[TaskLockView]:
        return self._insistence.ask("listing locks", LockList())

    def _visible_of(
        self, intervals: Iterable[Interval], named: Collection[str]
    ) -> list[VisibleSegment]:
        """Return what is visible, and named if any are, in time chunks that are not locked yet."""
        return [
            one
            for one in self._visible(intervals)
            if one.segment.interval not in self._rewrites
            and (not named or str(one.segment.id) in named)
        ]

    def _fall_back(self, reason: str) -> None:
        """Lock time chunks from now on; nothing that was read counts on segments that are locked.

        Raises:
            Conflict: Something was.
        """
        if self._claimed is not None:
            raise Conflict(
                f"the segments that it replaces are locked one by one, but {reason}: set"
                " forceTimeChunkLock to true in its context, and submit it again"
            )
        _log.info("task %s locks time chunks, as %s", self._spec.id, reason)
        self._by_segment = False
        # A lock of one segment would be in the way of a larger one, its own task's too.
        for interval in {
            lock.interval for lock in self._held() if lock.partition_number is not None
        }:
            self._insistence.ask("releasing locks", LockRelease(interval))
        self._rewrites.clear()

    def _acquire(self, action: LockTryAcquire) -> HeldLocks:
        return acquire(
            self._ports,
            self._insistence,
            action,
            timeout_ms=self._spec.settings.lock_timeout_ms,
        )
