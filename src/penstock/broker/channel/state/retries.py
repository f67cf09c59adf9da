"""The messages that come again, or come later: requeued, timed out, deferred.

Owns their order: by the time they are due, then by id. Memory is bounded by their number, whatever
stands between them.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.channel.state.recorder import remove_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Retry(NamedTuple):
    """A message that waits: its id, and how often it was delivered."""

    id: int
    attempts: int


class Retries:
    """What waits for its time, and what waits for a consumer since then."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}  # id -> (due, attempts)
        # Heaps of (due, id, ticket). A message that comes, goes and comes again, even in the same
        # millisecond, has a new ticket each time: entries with an old one are left behind.
        self._later: list[tuple[int, int, int]] = []
        self._ready: list[tuple[int, int, int]] = []
        self._offered: list[tuple[int, int, int]] = []
        self._tickets: dict[int, int] = {}
        self._ticket = 0
        self._ready_ids: set[int] = set()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, number: int) -> bool:
        return number in self._known

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield (id, due, attempts)."""
        return ((number, due, attempts) for number, (due, attempts) in self._known.items())

    def ids(self) -> list[int]:
        """Return the ids of all."""
        return list(self._known)

    def find(self, number: int) -> tuple[int, int] | None:
        """Return when a message is due and how often it was delivered; None: it does not wait."""
        return self._known.get(number)

    @property
    def ready(self) -> int:
        """Return how many have been found due."""
        return len(self._ready_ids)

    @property
    def next_ms(self) -> int | None:
        """Return when the next one is due that was not found due yet."""
        while self._later and not self._stands(self._later[0]):
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else None

    def put(self, number: int, due_ms: int, attempts: int) -> None:
        """Add a message."""
        self._known[number] = (due_ms, attempts)
        self._ready_ids.discard(number)
        self._ticket += 1
        self._tickets[number] = self._ticket
        heapq.heappush(self._later, (due_ms, number, self._ticket))

    def shift(self, step_ms: int) -> None:
        """Move the time of what was not found due yet."""
        self._later = [
            (due_ms + step_ms, number, ticket)
            for due_ms, number, ticket in self._later
            if self._tickets.get(number) == ticket
        ]
        heapq.heapify(self._later)
        for due_ms, number, _ in self._later:
            self._known[number] = (due_ms, self._known[number][1])

    def ripen(self, now_ms: int) -> None:
        """Find what is due now."""
        while self._later and self._later[0][0] <= now_ms:
            entry = self._later[0]
            if self._stands(entry):
                # An entry leaves one heap when it is in the other: none is lost by an exception.
                self._ready_ids.add(entry[1])
                heapq.heappush(self._ready, entry)
            heapq.heappop(self._later)

    def first(self, limit: int) -> list[Retry]:
        """Return the first of what was found due; it stays until it is removed."""
        offered = self._offered
        while offered:
            entry = offered[-1]
            if self._stands(entry) and entry[1] in self._ready_ids:
                heapq.heappush(self._ready, entry)
            offered.pop()
        found: list[Retry] = []
        while self._ready and len(found) < limit:
            entry = self._ready[0]
            if self._stands(entry) and entry[1] in self._ready_ids:
                found.append(Retry(entry[1], self._known[entry[1]][1]))
                offered.append(entry)
            heapq.heappop(self._ready)
        return found

    def remove(self, numbers: Iterable[int]) -> None:
        """Forget messages; those that are not there are fine."""
        for number in numbers:
            if self._known.pop(number, None) is not None:
                del self._tickets[number]
                self._ready_ids.discard(number)

    def remove_range(self, first: int, last: int) -> None:
        """Forget the messages with ids [first, last)."""
        gone = remove_range(self._known, first, last)
        self._ready_ids.difference_update(gone)
        for number in gone:
            del self._tickets[number]

    def _stands(self, entry: tuple[int, int, int]) -> bool:
        return self._tickets.get(entry[1]) == entry[2]
