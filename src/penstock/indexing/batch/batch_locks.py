"""Locks of a batch task: time chunks, or the single segments that it replaces.

`BatchTaskLocks` owns which of the two a task uses and which locked segments it has read. `acquire`
requests locks until they are granted or the time limit of the task's context ends.
`rewrites_of` decides whether the segments can be locked one by one: the output replaces a range
of root partition numbers without a gap and keeps their version. Does not own the basis of a
publish or the published segments (the task).

A task starts with segment locks if its spec requests them, and falls back to time chunk locks
if the existing segments do not allow them:

    never both for one time    the task's own locks would conflict, so segment locks are
                               released before time chunks are locked, and no time chunk is
                               locked around another one of the task
    locked is what is visible  an earlier holder may have replaced the segments, so the visible
                               ones are read again under the locks
    read is what is locked     once segments with single locks were read there is no fallback:
                               the task fails instead, and segments that appear later in a
                               locked time chunk are not added
    kept by the next peon      a peon that dies leaves its locks; a restarted task that finds
                               time chunk locks continues with these

Used on the task's thread.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import Conflict, InvalidRequest, LockRevoked
from penstock.core.intervals import Granularity, Interval, condensed
from penstock.core.timeline.chunks import OVERWRITE_END, OVERWRITE_START
from penstock.indexing.actions import (
    LockedSegment,
    LockList,
    LockRelease,
    LockTryAcquire,
    TaskLockView,
)
from penstock.indexing.batch.job import ids_digest
from penstock.indexing.specs.task_context import IngestionMode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penstock.indexing.batch.batch_ports import BatchPorts
    from penstock.indexing.batch.input_segments import SegmentListing, VisibleSegment
    from penstock.indexing.batch.retrying_caller import RetryingCaller
    from penstock.indexing.specs.task_context import TaskContext
    from penstock.segments.segment import Segment


_RETRY_PAUSE_MS: Final = 1_000
# Segments of other kinds cannot share a time chunk with segments that rewrite.
_REWRITABLE: Final = frozenset(
    {"numbered", "hashed", "single", "range", "dim_value_set", "numbered_overwrite"}
)
# Minimum of unused partition numbers for the new segments.
_NUMBERS_LEFT: Final = 4_096


@dataclass(frozen=True, slots=True)
class HeldLocks:
    """Locks that cover the requested intervals, in order."""

    locks: tuple[TaskLockView, ...]

    def version_of(self, interval: Interval) -> str:
        """Return the version of the lock that covers an interval."""
        after = bisect_right(self.locks, interval.start_ms, key=lambda one: one.interval.start_ms)
        # Usually the first one: a task's locks rarely overlap.
        return next(
            self.locks[at].version
            for at in reversed(range(after))
            if self.locks[at].interval.covers(interval)
        )

    @property
    def types(self) -> list[str]:
        """The types of the locks."""
        return [lock.type for lock in self.locks]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The segments of one time chunk that a task rewrites together, under their version.

    Attributes:
        interval: The time chunk.
        version: The version of all of them.
        start: Their first root number.
        end: The number after their last root number.
        ids: Their ids.
        segments: The segments to lock.
    """

    interval: Interval
    version: str
    start: int
    end: int
    ids: frozenset[str]
    segments: tuple[LockedSegment, ...]


def rewrites_of(
    found: Iterable[VisibleSegment], granularity: Granularity | None
) -> list[Rewrite] | str:
    """Return the rewrite of each time chunk; or the reason to lock time chunks instead.

    Args:
        found: All segments to replace.
        granularity: The new time chunks; None keeps the existing ones.
    """
    pieces = sorted(found, key=lambda one: one.segment.id)
    if cut := next((one for one in pieces if one.interval != one.segment.interval), None):
        return f"only a part of segment {cut.segment.id} is visible or requested"
    chunks = {one.segment.interval for one in pieces}
    if granularity is None:
        if len({Granularity.of_bucket(chunk) for chunk in chunks}) > 1:
            return "the segments have different granularities"
    elif any(granularity.bucket(chunk.start_ms) != chunk for chunk in chunks):
        return f"the segments do not have the granularity {granularity}"
    made = []
    for interval, group in groupby((one.segment for one in pieces), lambda one: one.interval):
        rewrite = _rewrite(interval, list(group))
        if isinstance(rewrite, str):
            return rewrite
        made.append(rewrite)
    return made


def _rewrite(interval: Interval, segments: Sequence[Segment]) -> Rewrite | str:
    """Return the rewrite of a time chunk, or the reason why it is not possible."""
    first = segments[0]
    odd = next(
        (
            one
            for one in segments
            if one.shard_spec.kind not in _REWRITABLE
            or one.shard_spec.is_chained
            or one.version != first.version
        ),
        None,
    )
    if odd is not None:
        return f"segment {odd.id} ({odd.shard_spec.kind}) cannot share a time chunk with a rewrite"
    members = Counter(one.shard_spec.roots for one in segments)
    ordered = sorted(members, key=lambda roots: (roots.start, roots.end))
    start = at = ordered[0].start
    for roots in ordered:
        if roots.start != at:
            return f"{interval} has other root numbers between those of its segments, from {at} on"
        if members[roots] != roots.group_size:
            return f"a part of an atomic update group of {interval} is left out"
        at = roots.end
    highest = max(one.shard_spec.partition_number for one in segments)
    if highest >= OVERWRITE_END - _NUMBERS_LEFT or at > OVERWRITE_START:
        return f"the partition numbers of {interval} are nearly exhausted"
    return Rewrite(
        interval,
        first.version,
        start,
        at,
        frozenset(str(one.id) for one in segments),
        tuple(
            LockedSegment(interval, first.version, one.shard_spec.partition_number)
            for one in segments
        ),
    )


def acquire(
    ports: BatchPorts, retries: RetryingCaller, action: LockTryAcquire, *, timeout_ms: int
) -> HeldLocks:
    """Acquire locks, and wait while other tasks hold conflicting ones.

    Raises:
        Conflict: The timeout passed; the message names the conflicting tasks.
        LockRevoked: A task of higher priority revoked a lock of the task.
        Stopped: The task was stopped.
    """
    until_s = ports.clock.monotonic_s() + timeout_ms / 1000
    while True:
        answer = retries.perform("acquiring locks", action)
        if answer.granted:
            break
        if ports.clock.monotonic_s() >= until_s:
            raise Conflict(
                "the task could not acquire its locks within taskLockTimeout"
                f" ({timeout_ms} ms): {'; '.join(answer.refused)}. Submit it again when the"
                " conflicting tasks have ended, or increase taskLockTimeout in its context"
            )
        retries.pause(_RETRY_PAUSE_MS)
    for lock in answer.locks:
        if lock.revoked:
            raise LockRevoked(
                f"a task of higher priority revoked the task's lock on {lock.interval}: submit the"
                " task again"
            )
    return HeldLocks(tuple(sorted(answer.locks, key=lambda one: one.interval)))


def outside(wanted: Sequence[Interval], held: Sequence[Interval]) -> list[Interval]:
    """Return the parts of intervals that no other interval covers.

    Args:
        wanted: The requested intervals.
        held: The other intervals: disjoint, in order.
    """
    left = []
    for one in wanted:
        start_ms = one.start_ms
        for other in held[bisect_right(held, start_ms, key=lambda i: i.end_ms) :]:
            if other.start_ms >= one.end_ms:
                break
            left.append(Interval(start_ms, max(start_ms, other.start_ms)))
            start_ms = other.end_ms
        left.append(Interval(start_ms, max(start_ms, one.end_ms)))
    return [part for part in left if not part.is_empty]


_log = logging.getLogger(__name__)

_LISTINGS_MAX: Final = 5


class IngestSpec(Protocol):
    """Fields of the spec of a segment-writing task that determine its locks."""

    @property
    def id(self) -> str:
        """The id of the task."""
        ...

    @property
    def datasource(self) -> str:
        """The datasource of the rows."""
        ...

    @property
    def mode(self) -> IngestionMode:
        """How the task treats existing segments."""
        ...

    @property
    def settings(self) -> TaskContext:
        """The context with its defaults."""
        ...

    @property
    def segment_granularity(self) -> Granularity | None:
        """The new time chunks; None keeps the existing ones."""
        ...

    @property
    def locks_segments(self) -> bool:
        """Whether the task locks single segments, if the existing ones allow it."""
        ...

    @property
    def locks_max(self) -> int | None:
        """Maximum number of locks; None means unlimited."""
        ...


class BatchTaskLocks:
    """The locks of one task. Used on the task's thread.

    Args:
        spec: The spec of the task.
        ports: The peon's ports.
        retries: Repeats actions until they succeed.
        listing: Lists the visible segments of the task's datasource.
    """

    def __init__(
        self,
        spec: IngestSpec,
        ports: BatchPorts,
        retries: RetryingCaller,
        listing: SegmentListing,
    ) -> None:
        self._spec = spec
        self._ports = ports
        self._retries = retries
        self._listing = listing
        self._by_segment = spec.locks_segments
        self._locked: list[Interval] = []
        self._rewrites: dict[Interval, Rewrite] = {}
        self._claimed: str | None = None

    @property
    def by_segment(self) -> bool:
        """Whether the task locks single segments, as far as it has decided."""
        return self._by_segment

    @property
    def rewrites(self) -> Mapping[Interval, Rewrite]:
        """The segments that are locked one by one, by time chunk."""
        return self._rewrites

    @property
    def claimed(self) -> str | None:
        """Fingerprint of the segments that were read under segment locks, if any."""
        return self._claimed

    def types(self) -> list[str]:
        """Return the types of all locks that the task holds."""
        return [lock.type for lock in self._held()]

    def check_count(self, more: int) -> None:
        """Check that the task may hold this many locks in addition to those of its rewrites.

        Raises:
            InvalidRequest: The number exceeds the maximum.
        """
        most = self._spec.locks_max
        locks = more + sum(len(rewrite.segments) for rewrite in self._rewrites.values())
        if most is not None and locks > most:
            raise InvalidRequest(
                f"the rows are in intervals that need {locks} locks, more than"
                f" maxAllowedLockCount {most}: increase it, or ingest fewer time chunks at once",
                place="tuningConfig.maxAllowedLockCount",
            )

    def lock(self, intervals: Iterable[Interval]) -> HeldLocks:
        """Lock intervals in addition to those that are locked.

        Raises:
            InvalidRequest: The number of locks would exceed the maximum.
            PenstockError: As `acquire`.
        """
        if not self._locked:
            # An earlier peon may hold more locks than it requested: allocation also locks.
            held = {one.interval for one in self._held() if one.partition_number is None}
            self._locked = sorted(held)
        # A lock must not overlap another lock of the task: it would wait for itself.
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
        """Lock what the task replaces without reading it: segments if possible, else time chunks.

        Raises:
            PenstockError: As `lock`.
        """
        if self._by_segment and self._spec.mode is IngestionMode.APPEND:
            return  # It locks the segments that it adds.
        if not self._by_segment or not self._rewrite(intervals):
            self.lock(intervals)

    def cover_written(self, chunks: Sequence[Interval]) -> None:
        """Lock the segments of time chunks that only the rows determined, if the task still may.

        If the task has locked segments before, it locks no others: these remain visible.

        Raises:
            PenstockError: As `lock`.
        """
        if self._by_segment and chunks and not self._rewrites and self._claimed is None:
            self._rewrite(chunks)

    def claim(
        self, intervals: Sequence[Interval], *, read: Sequence[Interval], named: Collection[str]
    ) -> list[VisibleSegment] | None:
        """Lock the segments that the task replaces, and return those that it reads.

        Args:
            intervals: The intervals.
            read: The parts of the intervals to read.
            named: The ids of the segments, if they are known.

        Returns:
            None if time chunks are locked: the task lists the segments, for its basis.

        Raises:
            PenstockError: As `lock`.
        """
        if not self._by_segment or not self._rewrite(intervals, named):
            self.lock(intervals)
            return None
        locked = {name for rewrite in self._rewrites.values() for name in rewrite.ids}
        found = [
            one
            for one in self._listing.visible(self._spec.datasource, read)
            if str(one.segment.id) in locked
        ]
        # The publish finds changes to these by itself, because it lists the rewritten segments.
        self._claimed = ids_digest([self._claimed or "", *(str(one.segment.id) for one in found)])
        return found

    def _rewrite(self, intervals: Iterable[Interval], named: Collection[str] = ()) -> bool:
        """Lock the visible segments of intervals; return false to lock time chunks instead.

        The task rewrites only the segments of a time chunk that it locked first, because it may
        have read the chunk before other tasks added segments.

        Raises:
            PenstockError: As `lock`.
        """
        wanted = tuple(condensed(intervals))
        if any(lock.partition_number is None for lock in self._held()):
            # Locks of an earlier peon, which would conflict with locks on segments.
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
            # Segments appended meanwhile are also replaced, up to a limit of attempts.
            if now == locked or (locked <= now and tries >= _LISTINGS_MAX):
                self._rewrites |= {rewrite.interval: rewrite for rewrite in found}
                return True
            if not locked <= now:
                # The previous owner of these locks has replaced the segments.
                for rewrite in found:
                    self._retries.perform("releasing locks", LockRelease(rewrite.interval))

    def _held(self) -> Sequence[TaskLockView]:
        return self._retries.perform("listing locks", LockList())

    def _visible_of(
        self, intervals: Iterable[Interval], named: Collection[str]
    ) -> list[VisibleSegment]:
        """Return the visible segments, or the named ones of them, in chunks that are not locked."""
        return [
            one
            for one in self._listing.visible(self._spec.datasource, intervals)
            if one.segment.interval not in self._rewrites
            and (not named or str(one.segment.id) in named)
        ]

    def _fall_back(self, reason: str) -> None:
        """Lock time chunks from now on, unless the task has read under segment locks.

        Raises:
            Conflict: The task has read segments that it locked.
        """
        if self._claimed is not None:
            raise Conflict(
                f"the task locks the segments that it replaces one by one, but {reason}: set"
                " forceTimeChunkLock to true in its context, and submit it again"
            )
        _log.info("task %s locks time chunks, because %s", self._spec.id, reason)
        self._by_segment = False
        # A lock of a segment conflicts with a larger lock, even of its own task.
        for interval in {
            lock.interval for lock in self._held() if lock.partition_number is not None
        }:
            self._retries.perform("releasing locks", LockRelease(interval))
        self._rewrites.clear()

    def _acquire(self, action: LockTryAcquire) -> HeldLocks:
        return acquire(
            self._ports,
            self._retries,
            action,
            timeout_ms=self._spec.settings.lock_timeout_ms,
        )
