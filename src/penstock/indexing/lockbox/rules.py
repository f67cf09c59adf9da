"""Which locks go together: the tables of conflict, reuse and coexistence.

Pure questions about one lock and one request, or two locks; who holds what is the lockbox's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.indexing.lockbox.model import LockGranularity, LockType

if TYPE_CHECKING:
    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.model import LockRequest, TaskLock

SOCIABLE: Final = frozenset({LockType.SHARED, LockType.APPEND})
"""Types whose locks go together with each other of the same type, however they overlap."""


def concerns(lock: TaskLock, request: LockRequest) -> bool:
    """Tell whether a lock has a say in a request of its datasource, revoked or not."""
    if not lock.interval.overlaps(request.interval):
        return False
    if LockGranularity.TIME_CHUNK in (lock.granularity, request.granularity):
        return True
    if request.partition_number is None:
        return False  # A segment that has no number yet is none of those that are locked.
    return lock.interval != request.interval or lock.partition_number == request.partition_number


def reusable(lock: TaskLock, request: LockRequest) -> bool:
    """Tell whether who asks has this lock already, by its group.

    A lock on a segment is for one version; but that it was revoked is told whatever that is.
    """
    return (
        lock.type is request.type
        and lock.granularity is request.granularity
        and lock.group == request.group
        and lock.partition_number == request.partition_number
        and lock.interval.covers(request.interval)
        and (lock.revoked or not _is_of_another_version(lock, request))
    )


def _is_of_another_version(lock: TaskLock, other: TaskLock | LockRequest) -> bool:
    is_on_segment = lock.granularity is LockGranularity.SEGMENT
    return is_on_segment and other.version not in (None, lock.version)


def coexist(type_a: LockType, interval_a: Interval, type_b: LockType, interval_b: Interval) -> bool:
    """Tell whether two locks whose intervals overlap may both be held; the order does not matter.

    An append must lie inside of the replace beside it: the replace takes its segments along, and
    could not take half of one. There is never more than one REPLACE for a time, as they exclude
    each other.
    """
    if LockType.KILL in (type_a, type_b):
        return type_a is not type_b
    if type_a is LockType.REPLACE and type_b is LockType.APPEND:
        return interval_a.covers(interval_b)
    if type_a is LockType.APPEND and type_b is LockType.REPLACE:
        return interval_b.covers(interval_a)
    return type_a is type_b and type_a in SOCIABLE


def supersedes(lock: TaskLock, other: TaskLock) -> bool:
    """Tell whether a lock makes another one of the same task needless.

    An APPEND lock does so with a smaller one, and one on a segment with that on the same number of
    another version, as whose part the task publishes nothing any more. A revoked one is never
    needless: its task must learn of it.
    """
    if lock.group != other.group or lock.granularity is not other.granularity or other.revoked:
        return False
    if lock.granularity is LockGranularity.SEGMENT:
        is_same_number = lock.partition_number == other.partition_number
        is_same_place = is_same_number and lock.interval == other.interval
        return is_same_place and _is_of_another_version(lock, other)
    return (
        lock.type is other.type is LockType.APPEND
        and lock.version >= other.version
        and lock.interval != other.interval
        and lock.interval.covers(other.interval)
    )
