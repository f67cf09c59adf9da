"""Whether a task's locks cover what it is about to publish, and which appends a replace covers.

Owns the questions of a critical section; it changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.indexing.lockbox.model import HeldLock, LockType, SegmentLike, TaskLock


class CoveringLocks(Protocol):
    """The locks that a critical section sees: they stay as they are while it runs."""

    @property
    def own(self) -> tuple[TaskLock, ...]:
        """All locks that the task holds, none of them revoked."""
        ...

    def require(self, type: LockType) -> None:  # noqa: A002 - the word of Druid's JSON
        """Raise Conflict unless all locks of the task are of this type, as an append must."""
        ...

    def replacing(self, segments: Sequence[SegmentLike]) -> list[HeldLock | None]:
        """Return, for each segment, who holds a REPLACE lock that contains it, None if nobody."""
        ...
