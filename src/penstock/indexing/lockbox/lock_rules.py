"""Rules of locks: conflict, reuse, coexistence and versions.

Pure predicates over one lock and one request, or two locks; the lockbox tracks the holders.

The version of a lock is the current time, but always greater than the versions of earlier locks of
the same interval, because only a greater version hides segments. This holds even within one
millisecond, and after the clock was set back.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import format_time, parse_time
from penstock.indexing.lockbox.task_locks import APPEND_VERSION, LockGranularity, LockType

if TYPE_CHECKING:
    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.task_locks import LockRequest, TaskLock


SHARED_BY_GROUPS: Final = frozenset({LockType.SHARED, LockType.APPEND})
"""Types whose locks never conflict with others of the same type, however they overlap."""


def concerns(lock: TaskLock, request: LockRequest) -> bool:
    """Return whether a lock of the same datasource, revoked or not, matters for a request."""
    if not lock.interval.overlaps(request.interval):
        return False
    if LockGranularity.TIME_CHUNK in (lock.granularity, request.granularity):
        return True
    if request.partition_number is None:
        return False  # A segment without a number yet is not among the locked segments.
    return lock.interval != request.interval or lock.partition_number == request.partition_number


def reusable(lock: TaskLock, request: LockRequest) -> bool:
    """Return whether the requesting group already has this lock.

    A lock on a segment is for one version, but a revoked one is reported for any version.
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
    """Return whether two locks whose intervals overlap may both be held; symmetric.

    An append must lie within a concurrent replace: the replace carries its segments over, and
    cannot carry over a part of one. There is at most one REPLACE lock for a time, because these
    exclude each other.
    """
    if LockType.KILL in (type_a, type_b):
        return type_a is not type_b
    if type_a is LockType.REPLACE and type_b is LockType.APPEND:
        return interval_a.covers(interval_b)
    if type_a is LockType.APPEND and type_b is LockType.REPLACE:
        return interval_b.covers(interval_a)
    return type_a is type_b and type_a in SHARED_BY_GROUPS


def supersedes(lock: TaskLock, other: TaskLock) -> bool:
    """Return whether a lock makes another one of the same task redundant.

    This holds for an APPEND lock and a smaller one inside it, and for two locks on a segment with
    the same number but different versions, because the task publishes nothing more in the other
    version. A revoked lock is never redundant, because its task must learn of the revocation.
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


_LENGTH: Final = len(APPEND_VERSION)
# No version is greater than this one.
_LAST: Final = "9999-12-31T23:59:59.999Z"


def next_version(lock_type: LockType, now_ms: int, floor: str) -> str:
    """Return the version of a new lock.

    Args:
        lock_type: The lock's type.
        now_ms: The time.
        floor: The greatest version of locks that were released or revoked, "" if there is none.
    """
    if lock_type is LockType.APPEND:
        return APPEND_VERSION
    version = _time_version(now_ms)
    return version if version > floor else format_time(parse_time(floor) + 1)


def raised_floor(floor: str, version: str) -> str:
    """Return the floor after a lock with this version has ended.

    Versions that users chose need not be times; such versions are ignored.
    """
    return version if version > floor and floor_of(version) else floor


@lru_cache(maxsize=16)
def floor_of(version: str) -> str:
    """Return the floor above a published version; "" if the version has no place in time.

    That is the case for the last time, and for a version that is not written in our format: no
    greater version could be derived from them.
    """
    if len(version) != _LENGTH or version >= _LAST:
        return ""
    try:
        is_ours = format_time(parse_time(version)) == version
    except InvalidRequest:
        return ""
    return version if is_ours else ""


@lru_cache(maxsize=16)
def _time_version(now_ms: int) -> str:
    """Return the version of an instant; cached, because many locks of a batch share it."""
    return format_time(now_ms)
