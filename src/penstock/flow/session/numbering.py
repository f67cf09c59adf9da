"""Ids for the FlowFiles of one session, taken from the repository's sequence a few at a time.

Owns the unused part of a range. Does not own the sequence (`repository`). Taking many ids at once
reduces the use of that sequence's mutex. Invariant: within a session, later ids are greater. Ids
that remain at its end are never used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.flow.session.services import SessionRepository

_MOST_AHEAD: Final = 256


class Numbers:
    """Ids for one session; for the session's thread only."""

    __slots__ = ("_end", "_next", "_repository", "_taken")

    def __init__(self, repository: SessionRepository) -> None:
        self._repository = repository
        self._next = self._end = 0
        self._taken = 0

    def take(self, count: int = 1) -> int:
        """Return the first of `count` consecutive ids."""
        if self._end - self._next < count:
            # Take as many as were taken so far: a session that creates one FlowFile takes one id.
            ahead = max(count, min(self._taken, _MOST_AHEAD))
            self._next = self._repository.next_ids(ahead)
            self._end = self._next + ahead
        first = self._next
        self._next += count
        self._taken += count
        return first
