"""How much memory the broker's parts hold, and who has to let go or to wait when it is too much.

Owns the sum. What is kept only to spare a read from the disk (the newest messages of a stream
partition) is let go first, the longest unused before others. What cannot be let go (answers and
messages that a client does not read, commands that wait for their turn, what channels know of their
messages) makes others wait: at three quarters of the bound channels give out nothing new, so that
slow consumers alone never reach the bound; at the bound, publishers whose commands wait are not
read. Does not own bodies under way over HTTP or larger than a read, which have a bound of their own
(`admission`) that is taken off this one.

Invariants: used on the event loop only; the cache that grew last is never the one that is let go,
so that whoever reads from the disk gets on; so the bound is passed by one cache at most.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


class Cache(Protocol):
    """What can be let go at any time."""

    def shed(self) -> None:
        """Let go of everything; the ledger knows."""
        ...


class MemoryLedger:
    """The ledger of one broker.

    Args:
        limit_bytes: The bound.

    Attributes:
        held_bytes: What cannot be let go now.
        cached_bytes: What can.
        peak_bytes: The most that both were together.
        sheds: How many caches were let go.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.cached_bytes = 0
        self.peak_bytes = 0
        self.sheds = 0
        self._held: dict[Hashable, int] = {}
        self._caches: OrderedDict[Cache, int] = OrderedDict()
        self._waiting: dict[Callable[[], None], None] = {}
        self._consumers_bytes = limit_bytes // 4 * 3

    @property
    def has_room(self) -> bool:
        """Say whether something new may be given out."""
        return self.held_bytes < self._consumers_bytes

    @property
    def is_full(self) -> bool:
        """Say whether nothing more may come in."""
        return self.held_bytes >= self.limit_bytes

    def hold(self, owner: Hashable, size_bytes: int) -> None:
        """Take note of how much an owner holds now; 0 when it is gone."""
        before = self._held.get(owner, 0)
        if size_bytes == before:
            return
        if size_bytes:
            self._held[owner] = size_bytes
        else:
            del self._held[owner]
        self.held_bytes += size_bytes - before
        if size_bytes > before:
            self._make_room()
        elif self._waiting and self.has_room:
            waiting, self._waiting = self._waiting, {}
            for callback in waiting:
                callback()

    def cache(self, cache: Cache, size_bytes: int) -> None:
        """Take note of how much a cache holds now, which was just used; 0: nothing any more."""
        self.cached_bytes += size_bytes - self._caches.pop(cache, 0)
        if size_bytes:
            self._caches[cache] = size_bytes
            self._make_room()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back, once, when there is room again; the callback takes note and looks later."""
        self._waiting[callback] = None

    def _make_room(self) -> None:
        while self.held_bytes + self.cached_bytes > self.limit_bytes and len(self._caches) > 1:
            cache, size_bytes = self._caches.popitem(last=False)
            self.cached_bytes -= size_bytes
            self.sheds += 1
            cache.shed()
        self.peak_bytes = max(self.peak_bytes, self.held_bytes + self.cached_bytes)
