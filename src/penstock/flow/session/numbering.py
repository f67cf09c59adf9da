"""Ids for what a session makes, taken from the repository's sequence a few at a time.

Owns what of a range is left. Does not own the sequence (`repository`), whose mutex is worth asking
for many at once. Invariant: what one session makes later has a greater id; ids that are left over
when it ends are never used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.flow.session.wiring import SessionRepository

_MOST_AHEAD: Final = 256


class Numbers:
    """Ids for one session; for the session's thread."""

    __slots__ = ("_end", "_next", "_repository", "_taken")

    def __init__(self, repository: SessionRepository) -> None:
        self._repository = repository
        self._next = self._end = 0
        self._taken = 0

    def take(self, count: int = 1) -> int:
        """Return the first of so many ids that follow each other."""
        if self._end - self._next < count:
            # As many as were taken so far: a session that makes one FlowFile takes one id.
            ahead = max(count, min(self._taken, _MOST_AHEAD))
            self._next = self._repository.next_ids(ahead)
            self._end = self._next + ahead
        first = self._next
        self._next += count
        self._taken += count
        return first
