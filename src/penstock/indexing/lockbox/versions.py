"""Versions of locks: the current time, but never a version that was used for older work.

Only a greater version hides segments. So a lock that follows another one of the same time must have
a greater version, even within one millisecond, and after the clock was set back.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import format_time, parse_time
from penstock.indexing.lockbox.model import APPEND_VERSION, LockType

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
