"""Memory budget of the broker: memory use of its parts, and which parts release memory or wait.

Owns the sum. Caches that only avoid reads from the disk (the newest messages of a stream partition)
are released first, the least recently used before others. Memory that cannot be released (answers
and messages that a client does not read, commands that wait for their turn, the state of messages
in channels) makes others wait: at three quarters of the limit channels deliver no new messages, so
that slow consumers by themselves never reach the limit; at the limit, publishers whose commands
wait are not read. A channel with a small state may deliver up to seven eighths: otherwise one
channel with very many deferred messages, or messages held by a consumer, would stop all others
until they are due.

Does not own bodies being received over HTTP or larger than one read, which have a limit of their
own (`publish_admission`) that is subtracted from this one.

Invariants: used on the event loop only. The cache that grew last is never released, so that a
reader from the disk makes progress; therefore at most one cache exceeds the limit.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.loop_tasks import call_each

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_MODEST_PARTS: Final = 1_024  # of the limit: 128 such channels together fill the difference


class Cache(Protocol):
    """Memory that can be released at any time."""

    def release(self) -> None:
        """Release everything; the budget has already subtracted it."""
        ...


class MemoryBudget:
    """Memory budget of one broker.

    Args:
        limit_bytes: The limit.

    Attributes:
        held_bytes: Memory that cannot be released now.
        cached_bytes: Memory of caches.
        peak_bytes: Maximum of the sum of both.
        releases: Number of released caches.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.cached_bytes = 0
        self.peak_bytes = 0
        self.releases = 0
        self._held: dict[Hashable, int] = {}
        self._caches: OrderedDict[Cache, int] = OrderedDict()
        self._waiting: dict[Callable[[], None], None] = {}
        self._consumers_bytes = limit_bytes // 4 * 3
        self._modest_consumers_bytes = limit_bytes * 7 // 8
        self._modest_bytes = limit_bytes // _MODEST_PARTS

    @property
    def has_room(self) -> bool:
        """Whether any channel may deliver new messages."""
        return self.held_bytes < self._consumers_bytes

    def has_room_for(self, known_bytes: int) -> bool:
        """Return whether a channel may deliver new messages.

        Args:
            known_bytes: Memory used by the state of its messages.
        """
        if known_bytes < self._modest_bytes:
            return self.held_bytes < self._modest_consumers_bytes
        return self.has_room

    @property
    def is_full(self) -> bool:
        """Whether further input must wait."""
        return self.held_bytes >= self.limit_bytes

    def hold(self, owner: Hashable, size_bytes: int) -> None:
        """Set how much an owner holds now; 0 when it has ended."""
        before = self._held.get(owner, 0)
        if size_bytes == before:
            return
        if size_bytes:
            self._held[owner] = size_bytes
        else:
            del self._held[owner]
        total_before = self.held_bytes
        self.held_bytes += size_bytes - before
        if size_bytes > before:
            self._make_room()
        elif self._waiting and (
            self.has_room or self.held_bytes < self._modest_consumers_bytes <= total_before
        ):
            waiting, self._waiting = self._waiting, {}
            # They belong to other owners: an exception of one must not fail this owner's work.
            call_each(waiting)

    def cache(self, cache: Cache, size_bytes: int) -> None:
        """Set how much a cache, which was just used, holds now; 0: it is empty."""
        self.cached_bytes += size_bytes - self._caches.pop(cache, 0)
        if size_bytes:
            self._caches[cache] = size_bytes
            self._make_room()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back once when there may be free memory; the callback only schedules its check.

        A caller whose own state was too large checks again itself when its state shrinks.
        """
        self._waiting[callback] = None

    def _make_room(self) -> None:
        while self.held_bytes + self.cached_bytes > self.limit_bytes and len(self._caches) > 1:
            cache, size_bytes = self._caches.popitem(last=False)
            self.cached_bytes -= size_bytes
            self.releases += 1
            cache.release()
        self.peak_bytes = max(self.peak_bytes, self.held_bytes + self.cached_bytes)
