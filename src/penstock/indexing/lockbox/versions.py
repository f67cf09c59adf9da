"""The versions that locks are given: the time, but never one that was given for older work.

Segments are hidden by a greater version alone. So a lock that comes after another one of the same
time must have a greater version, also within one millisecond, and when the clock was set back.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import format_time, parse_time
from penstock.indexing.lockbox.model import APPEND_VERSION, LockType

_LENGTH: Final = len(APPEND_VERSION)
# No version follows this one that is greater.
_LAST: Final = "9999-12-31T23:59:59.999Z"


def next_version(lock_type: LockType, now_ms: int, floor: str) -> str:
    """Return the version of a new lock.

    Args:
        lock_type: The lock's type.
        now_ms: The time.
        floor: The greatest version of locks that were given back or revoked, "" if there is none.
    """
    if lock_type is LockType.APPEND:
        return APPEND_VERSION
    version = _time_version(now_ms)
    return version if version > floor else format_time(parse_time(floor) + 1)


def raised_floor(floor: str, version: str) -> str:
    """Return the floor after a lock with this version has ended.

    Versions that somebody chose need not be times; those say nothing of order in time.
    """
    return version if version > floor and floor_of(version) else floor


@lru_cache(maxsize=16)
def floor_of(version: str) -> str:
    """Return the floor above what was published under a version; "" if it says nothing of time.

    Nor does a time after which there is none, or one that is not written as ours are: no greater
    version could be told from it.
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
    """Return the version of an instant, which the many locks of a batch share."""
    return format_time(now_ms)
