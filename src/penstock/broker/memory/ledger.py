"""How much memory the broker's parts hold, and who has to let go or to wait when it is too much.

Owns the sum. What is kept only to spare a read from the disk (the newest messages of a stream
partition) is let go first, the longest unused before others. What cannot be let go (answers and
messages that a client does not read, commands that wait for their turn, what channels know of their
messages) makes others wait: at three quarters of the bound channels give out nothing new, so that
slow consumers alone never reach the bound; at the bound, publishers whose commands wait are not
read. A channel that knows of few messages may go on up to seven eighths: else one with very many
that are deferred, or that a consumer keeps, would stop all others until they are due.

Does not own bodies under way over HTTP or larger than a read, which have a bound of their own
(`admission`) that is taken off this one.

Invariants: used on the event loop only; the cache that grew last is never the one that is let go,
so that whoever reads from the disk gets on; so the bound is passed by one cache at most.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.looptasks import call_each

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_MODEST_PARTS: Final = 1_024  # of the bound: 128 such channels together make up the difference


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
        self._modest_consumers_bytes = limit_bytes * 7 // 8
        self._modest_bytes = limit_bytes // _MODEST_PARTS

    @property
    def has_room(self) -> bool:
        """Say whether anybody may give out something new."""
        return self.held_bytes < self._consumers_bytes

    def has_room_for(self, known_bytes: int) -> bool:
        """Say whether a channel may give out something new.

        Args:
            known_bytes: What it knows of its messages takes so much.
        """
        if known_bytes < self._modest_bytes:
            return self.held_bytes < self._modest_consumers_bytes
        return self.has_room

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
        total_before = self.held_bytes
        self.held_bytes += size_bytes - before
        if size_bytes > before:
            self._make_room()
        elif self._waiting and (
            self.has_room or self.held_bytes < self._modest_consumers_bytes <= total_before
        ):
            waiting, self._waiting = self._waiting, {}
            # They belong to others than the owner: what one raises must not fail the owner's work.
            call_each(waiting)

    def cache(self, cache: Cache, size_bytes: int) -> None:
        """Take note of how much a cache holds now, which was just used; 0: nothing any more."""
        self.cached_bytes += size_bytes - self._caches.pop(cache, 0)
        if size_bytes:
            self._caches[cache] = size_bytes
            self._make_room()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back, once, when there may be room again; the callback takes note and looks later.

        Who knew of too much, and knows of less since, looks by itself.
        """
        self._waiting[callback] = None

    def _make_room(self) -> None:
        while self.held_bytes + self.cached_bytes > self.limit_bytes and len(self._caches) > 1:
            cache, size_bytes = self._caches.popitem(last=False)
            self.cached_bytes -= size_bytes
            self.sheds += 1
            cache.shed()
        self.peak_bytes = max(self.peak_bytes, self.held_bytes + self.cached_bytes)
