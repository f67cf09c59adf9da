"""Checks that a task's locks cover a publish, and finds the REPLACE locks that cover an append.

Read-only checks of a critical section.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import Conflict, LockRevoked
from penstock.indexing.lockbox.task_locks import HeldLock, LockGranularity, LockType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.lock_table import LockTable
    from penstock.indexing.lockbox.task_locks import SegmentLike, TaskLock


class SectionLocks:
    """The locks in a critical section, which do not change while it runs.

    Args:
        task_id: The task of the section.
        table: The locks of its datasource.
    """

    def __init__(self, task_id: str, table: LockTable) -> None:
        self._task_id = task_id
        self._table = table

    @property
    def own(self) -> tuple[TaskLock, ...]:
        """All locks of the task that are not revoked."""
        held = self._table.of_task(self._task_id)
        return tuple(group.lock for group in held if not group.lock.revoked)

    def require(self, type: LockType) -> None:  # noqa: A002 - the word of Druid's JSON
        """Require all locks of the task to be of one type, as an append does.

        Raises:
            Conflict: The task holds a lock of another type.
        """
        for lock in self.own:
            if lock.type is not type:
                raise Conflict(
                    f"task {self._task_id!r} holds an {lock}, but its commit requires all locks to"
                    f" be of type {type}: acquire locks of one type"
                )

    def replace_lock_holders(self, segments: Sequence[SegmentLike]) -> list[HeldLock | None]:
        """Return, for each segment, the holder of a REPLACE lock that contains it, or None."""
        known: dict[Interval, HeldLock | None] = {}
        for segment in segments:
            if segment.interval not in known:
                known[segment.interval] = self._replacer(segment.interval)
        return [known[segment.interval] for segment in segments]

    def _replacer(self, interval: Interval) -> HeldLock | None:
        for group in self._table.overlapping_replace_locks(interval):
            lock = group.lock
            if not lock.revoked and lock.interval.covers(interval):
                return HeldLock(next(iter(group.tasks)), lock)
        return None


def require_covered(
    table: LockTable,
    task_id: str,
    *,
    segments: Sequence[SegmentLike] = (),
    intervals: Sequence[Interval] = (),
) -> None:
    """Require locks of a task that are not revoked to contain segments and intervals.

    A lock covers segments of its version and of older ones, which it hides. An APPEND lock covers
    segments of any version, because it adds to existing segments. A lock on a segment covers only
    that segment, and no interval.

    Raises:
        LockRevoked: The covering lock was revoked.
        Conflict: No lock covers a segment or an interval.
    """
    held: dict[Interval, _Held] = {}
    for interval in (*intervals, *(segment.interval for segment in segments)):
        if interval not in held:
            held[interval] = _held(table, task_id, interval)
    for interval in intervals:
        locks = held[interval].of_times
        _refuse_revoked(task_id, f"interval {interval}", [lock for lock in locks if lock.revoked])
        if not locks:
            raise _not_covered(table, task_id, f"interval {interval}")
    for segment in segments:
        of_it = held[segment.interval].of_segments.get(segment.partition_number, [])
        _require_segment(table, task_id, segment, [*held[segment.interval].of_times, *of_it])


@dataclass(frozen=True, slots=True)
class _Held:
    """A task's locks that contain a time: on time chunks, and on segments by partition number."""

    of_times: list[TaskLock]
    of_segments: dict[int | None, list[TaskLock]]


def _held(table: LockTable, task_id: str, interval: Interval) -> _Held:
    found = _Held([], {})
    for group in table.held_over(task_id, interval):
        lock = group.lock
        if lock.granularity is LockGranularity.TIME_CHUNK:
            if lock.interval.covers(interval):
                found.of_times.append(lock)
        elif lock.interval == interval:  # A partition number is unique only within its interval.
            found.of_segments.setdefault(lock.partition_number, []).append(lock)
    return found


def _require_segment(
    table: LockTable, task_id: str, segment: SegmentLike, held: list[TaskLock]
) -> None:
    fitting = [lock for lock in held if _fits(lock, segment)]
    if any(not lock.revoked for lock in fitting):
        return
    _refuse_revoked(task_id, f"segment {segment.id}", fitting)
    older = [lock for lock in held if lock.version < segment.version]
    if older:
        raise Conflict(
            f"segment {segment.id} of task {task_id!r} is newer than the {older[0]}: publish it"
            " under the lock's version"
        )
    raise _not_covered(table, task_id, f"segment {segment.id}")


def _fits(lock: TaskLock, segment: SegmentLike) -> bool:
    """Return whether a lock on a segment, or on its time chunk, covers the segment's version."""
    if lock.granularity is LockGranularity.TIME_CHUNK and lock.type is LockType.APPEND:
        return True
    return lock.version >= segment.version


def _refuse_revoked(task_id: str, what: str, revoked: list[TaskLock]) -> None:
    if revoked:
        raise LockRevoked(
            f"{what} of task {task_id!r} was covered by the {revoked[0]}, which a task with a"
            " higher priority took: abandon the task"
        )


def _not_covered(table: LockTable, task_id: str, what: str) -> Conflict:
    held = [str(group.lock) for group in table.of_task(task_id)[:3]]
    return Conflict(
        f"no lock of task {task_id!r} covers {what} (it holds {'; '.join(held) or 'none'}):"
        " acquire a lock before publishing"
    )
